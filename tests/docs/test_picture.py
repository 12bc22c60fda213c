"""The pictures are current: the order as the docs' command draws it, the loop as its program does."""

from __future__ import annotations

import runpy
import warnings

import pytest

from engine_core.explain import explain_algorithms
from engine_core_report.pictures import to_svg

from .conftest import DOCS, blocks_of
from .test_examples import run

PAGE, PICTURE = DOCS / "howto" / "order.md", DOCS / "images" / "order.svg"


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
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
