"""The programs that the pages on the adapters and their READMEs show: short, and they run."""

import re
import runpy
from pathlib import Path

import pytest
import torch
import transformers

from .accelerate_runs import make_accelerator
from .lightning_runs import ITS_WARNINGS

ROOT = Path(__file__).parents[2]
EXAMPLES, PAGES = ROOT / "docs" / "examples" / "beside", ROOT / "docs" / "howto"
pytestmark = [*ITS_WARNINGS, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]
SHOWN = [PAGES / "transformers.md", ROOT / "plugins" / "engine-core-transformers" / "README.md"]


@pytest.fixture(autouse=True)
def _begin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_accelerator()
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("program", "printed", "again"),
    [
        ("accelerate_trainer.py", r"epoch 0: .*\nepoch 1: .*\nepoch 2: .*\n", ""),
        ("lightning_trainer.py", r"\D0\.9\d+\n", None),
        ("transformers_trainer.py", r"loss of the averaged weights: 0\.\d{3}\nat batch 72\n", None),
        ("transformers_objective.py", r"BertForSequenceClassification\n", None),
    ],
)
def test_a_program_of_a_page_is_a_screenful_and_trains_and_what_resumes_has_no_more_to_do(
    program, printed, again, capsys
):
    page = PAGES / f"{program.partition('_')[0]}.md"
    assert f"{{literalinclude}} ../examples/beside/{program}" in page.read_text(encoding="utf-8")
    assert len((EXAMPLES / program).read_text(encoding="utf-8").splitlines()) <= 40
    runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    assert re.search(f"{printed}$", capsys.readouterr().out)
    if again is not None:
        make_accelerator()
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        assert capsys.readouterr().out == again


def test_the_averages_of_a_checkpoint_are_read_as_the_page_shows():
    assert "{literalinclude} ../examples/beside/transformers_averages.py" in SHOWN[0].read_text(encoding="utf-8")
    trainer = runpy.run_path(str(EXAMPLES / "transformers_trainer.py"))["trainer"]
    runpy.run_path(str(EXAMPLES / "transformers_averages.py"))

    read = transformers.AutoModelForSequenceClassification.from_pretrained("averaged").state_dict()
    averages = trainer.engine_state.algorithms[-1].averaged_state_dict()
    assert {name for name, average in averages.items() if torch.equal(average, read[name])} == read.keys()
    assert any(not torch.equal(weight, read[name]) for name, weight in trainer.model.state_dict().items())


@pytest.mark.parametrize("page", SHOWN, ids=["page", "readme"])
def test_a_page_names_the_versions_that_the_tests_run_with(page):
    pinned = [(ROOT / f"constraints-beside{of}.txt").read_text(encoding="utf-8") for of in ("-lowest", "")]
    for library in ("transformers", "accelerate"):
        lowest, latest = (re.search(rf"^{library}==(\S+)$", text, re.MULTILINE)[1] for text in pinned)
        assert f"`{library}` {lowest} and {latest}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("library", "trained"),
    [
        ("accelerate", "loop.state.timestamp[:2] == (3, 24)"),
        ("lightning", "True"),
        ("transformers", "trainer.engine_state.timestamp.epoch == 2"),
    ],
)
def test_the_program_of_a_readme_trains(library, trained):
    readme = ROOT / "plugins" / f"engine-core-{library}" / "README.md"
    (program,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    exec(program, names := {"__name__": "__main__"})
    assert eval(trained, names)
