"""Each output and each picture that README, docs and the plugins' READMEs show is what is printed and drawn."""

import json
import re
import runpy
import warnings
from pathlib import Path

import pytest

from engine_core.explain import explain_algorithms
from engine_core_report.pictures import to_svg

from .conftest import DOCS, blocks_of, name_of
from .test_examples import run

OUTPUTS = runpy.run_path(str(DOCS / "outputs.py"))
Shown, differences = OUTPUTS["Shown"], OUTPUTS["differences"]
TEXTS = {page: page.read_text(encoding="utf-8") for page in OUTPUTS["PAGES"]}
WITH_OUTPUTS = [page for page, text in TEXTS.items() if OUTPUTS["shown_in"](text)]
TEXT_BLOCKS = [block for page in TEXTS for block in OUTPUTS["text_blocks"](page)]
TUTORIAL = DOCS / "quickstart.md"


@pytest.mark.parametrize("page", WITH_OUTPUTS, ids=name_of)
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path):
    differ = [differences(*output) for output in OUTPUTS["printed_by"](page, tmp_path)]
    assert "\n".join(filter(None, differ)) == "", f"python docs/outputs.py --write docs/{page.relative_to(DOCS)}"
    if page == TUTORIAL:
        what_the_tutorial_says_of_its_run(*(tmp_path / "runs").iterdir())


def what_the_tutorial_says_of_its_run(folder):
    """Compare what the text says of numbers that no output shows, and of the files in the run's folder."""
    results = json.loads((folder / "results.json").read_text())
    pruned = results["algorithms"]["SelectiveBackprop/AFTER_DATALOADER"]
    named = re.findall(r"`(\w+\.\w+|\w+/)`", TEXTS[TUTORIAL])
    assert f"pruned {pruned} of the {results['batches']} batches" in TEXTS[TUTORIAL]
    assert {f"{file.name}{'/' * file.is_dir()}" for file in folder.iterdir()} == set(named)


def test_each_text_block_that_is_not_compared_says_why():
    reasons = OUTPUTS["NOT_COMPARED"]
    found = {
        (page, text): [key for key in reasons if key[0] == page and text.startswith(key[1])]
        for page, text in TEXT_BLOCKS
    }
    assert [block for block, keys in found.items() if len(keys) != 1] == []
    assert sorted(key for keys in found.values() for key in keys) == sorted(reasons)


TRAIN, LIST = "engine-core train a.yaml", "engine-core plugins list"


def test_what_varies_is_not_compared_and_everything_else_is():
    for command, shown, printed in [
        ("engine-core diff a b", "one  1.2.3\n", "one      1.10.0rc1\n"),
        (LIST, "first\n...\nlast\n", "first\nsecond\nthird\nlast\n"),
        (TRAIN, "in runs/a-20260101-000000-00ff\n", "in runs/a-20270202-111111-12e4\n"),
        (TRAIN, "eval/loss  0.25*  1:02\n", "eval/loss  1e-05  0:59\n"),
        (TRAIN, "samples/s  7825\n", "samples/s  12,345\n"),
        (TRAIN, "a  0.5  best 0.5  epoch 5, batch 10\n", "a  0.4  best 0.6  epoch 6, batch 12\n"),
        (TRAIN, "start\n", "epoch 1/10  3%  loss 2.1\nstart\nepoch 2/10  14%  loss 1.1\n"),
    ]:
        assert differences(Shown(command, shown, 0), printed) == ""
    for command, shown, printed in [
        (TRAIN, "SelectiveBackprop  84x\n", "SelectiveBackprop  83x\n"),
        (TRAIN, "in runs/a-20260101-000000\n", "in runs/a-20270202-111111-12e4\n"),
        (LIST, "first\n...\nlast\n", "first\nlast\nmore\n"),
        ("engine-core explain a.yaml", "weight 0.25\n", "weight 0.5\n"),
    ]:
        assert f"+{printed.splitlines()[-1].split()[0]}" in differences(Shown(command, shown, 0), printed)


def test_a_page_is_rewritten_where_it_differs_and_nowhere_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```console\n$ engine-core train a\nloss 0.5\n$ engine-core diff a b\nold\n```\n", encoding="utf-8")
    same, other = OUTPUTS["shown_in"](page.read_text(encoding="utf-8"))
    text = OUTPUTS["rewritten"](page, [(same, "loss 0.7\n"), (other, "new\nlines\n")])
    assert text == "```console\n$ engine-core train a\nloss 0.5\n$ engine-core diff a b\nnew\nlines\n```\n"


def test_a_command_of_another_program_can_not_be_shown_with_an_output(tmp_path, monkeypatch):
    page = Path(OUTPUTS["ROOT"], "docs", "no-such-page.md")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "```console\n$ ls\nfile\n```\n")
    with pytest.raises(ValueError, match="'ls', which can't be compared"):
        list(OUTPUTS["printed_by"](page, tmp_path))


PAGE, PICTURE = DOCS / "howto" / "order.md", DOCS / "images" / "order.svg"


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    with warnings.catch_warnings():
        for block in blocks_of(PAGE):
            if block.language == "python" and not block.text.startswith(">>>"):
                run(block, PAGE, names)
    return to_svg(explain_algorithms(names["algorithms"], names["pad_last"]), "after_dataloader")


def test_the_picture_shows_the_order_as_it_is(drawn):
    assert PICTURE.read_text(encoding="utf-8") == drawn, f"draw {PICTURE.name} anew"


def test_the_picture_of_the_loop_shows_the_events_and_who_listens_as_they_are():
    drawn = runpy.run_path(str(DOCS / "loop_picture.py"))["as_svg"]()
    assert (DOCS / "images" / "loop.svg").read_text(encoding="utf-8") == drawn, "run python docs/loop_picture.py"


@pytest.mark.full
def test_the_picture_of_a_run_shows_what_a_run_shows():
    """As text, without what differs from run to run, of which outputs.py has the rules."""
    program, normal = (runpy.run_path(str(DOCS / f"{name}.py")) for name in ("run_picture", "outputs"))
    shown, drawn = (
        normal["normal"]("\n".join(program["lines_in"](svg)), program["COMMAND"])
        for svg in ((DOCS / "images" / "run.svg").read_text(encoding="utf-8"), program["as_svg"](program["screen"]()))
    )
    assert shown == drawn, "run python docs/run_picture.py"


def test_what_was_erased_from_a_terminal_is_not_drawn():
    left_of = runpy.run_path(str(DOCS / "run_picture.py"))["left_of"]
    assert left_of("first\n10%\r\x1b[2K20%\r\x1b[2Ksecond\n90%\n\x1b[1A\r\x1b[2K100%\n") == "first\nsecond\n100%"
