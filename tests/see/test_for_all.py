"""The page for people who use it with a screen reader, or without much motion: what axe-core finds is nothing."""

import pytest
from left_runs import write_run

from .runs_to_see import full_run, page_at


@pytest.mark.parametrize(
    ("width", "scheme", "runs"), [(360, "light", 1), (360, "dark", 2), (1280, "dark", 1), (1280, "light", 2)]
)
def test_axe_finds_nothing(show, axe, tmp_path, scheme, width, runs):
    folders = [full_run(tmp_path / name) for name in ("one", "two")[:runs]]
    opened = show(page_at(*folders), width=width, color_scheme=scheme)
    opened.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert opened.findings(axe) == []


def test_axe_finds_nothing_on_a_page_without_curves(show, axe, tmp_path):
    run = write_run(tmp_path / "run", metrics=None, events=None, results=None, timing=None)
    assert show(page_at(run)).findings(axe) == []


def test_who_wants_less_motion_gets_none(show, tmp_path):
    address = page_at(full_run(tmp_path / "run"))
    moving = show(address, reduced_motion="no-preference")
    still = show(address, reduced_motion="reduce")
    behaviours = [one.value("getComputedStyle(document.documentElement).scrollBehavior") for one in (moving, still)]
    assert behaviours == ["smooth", "auto"]
    durations = (
        "[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).transitionDuration !== '0s').length"
    )
    assert still.value(durations) == 0


def test_what_is_read_out_has_a_name(show, tmp_path):
    opened = show(page_at(full_run(tmp_path / "run")))
    tree = opened.page.locator("figure").first.aria_snapshot()
    assert "loss: train/loss from 2 to 0.033333, lowest 0.033333, highest 2; eval/loss from 0.15 to 0.05" in tree
