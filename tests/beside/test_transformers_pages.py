"""The programs that the page on Hugging Face's Trainer and its README show: short, and they run."""

import re
import runpy
from pathlib import Path

import pytest
import torch
import transformers

ROOT = Path(__file__).parents[2]
EXAMPLES, PAGE = ROOT / "docs" / "examples" / "beside", ROOT / "docs" / "howto" / "transformers.md"
README = ROOT / "plugins" / "engine-core-transformers" / "README.md"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("transformers_trainer.py", r"loss of the averaged weights: 0\.\d{3}\nat batch 72\n"),
        ("transformers_objective.py", r"BertForSequenceClassification\n"),
    ],
)
def test_a_program_of_the_page_is_a_screenful_and_trains(program, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert f"{{literalinclude}} ../examples/beside/{program}" in PAGE.read_text(encoding="utf-8")
    assert len((EXAMPLES / program).read_text(encoding="utf-8").splitlines()) <= 40
    runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    assert re.search(f"{printed}$", capsys.readouterr().out)


def test_the_averages_of_a_checkpoint_are_read_as_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "{literalinclude} ../examples/beside/transformers_averages.py" in PAGE.read_text(encoding="utf-8")
    trainer = runpy.run_path(str(EXAMPLES / "transformers_trainer.py"))["trainer"]
    runpy.run_path(str(EXAMPLES / "transformers_averages.py"))

    read = transformers.AutoModelForSequenceClassification.from_pretrained("averaged").state_dict()
    averages = trainer.engine_state.algorithms[-1].averaged_state_dict()
    assert {name for name, average in averages.items() if torch.equal(average, read[name])} == read.keys()
    assert any(not torch.equal(weight, read[name]) for name, weight in trainer.model.state_dict().items())


@pytest.mark.parametrize("page", [PAGE, README], ids=["page", "readme"])
def test_a_page_names_the_versions_that_the_tests_run_with(page):
    pinned = [(ROOT / f"constraints-beside{of}.txt").read_text(encoding="utf-8") for of in ("-lowest", "")]
    for library in ("transformers", "accelerate"):
        lowest, latest = (re.search(rf"^{library}==(\S+)$", text, re.MULTILINE)[1] for text in pinned)
        assert f"`{library}` {lowest} and {latest}" in page.read_text(encoding="utf-8")


def test_the_program_of_the_readme_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    exec(program, names := {})
    assert names["trainer"].engine_state.timestamp.epoch == 2
