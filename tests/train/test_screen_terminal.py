"""What a run shows on a terminal: the bar, the rows above it, colours, and little room."""

import re
import sys
from types import SimpleNamespace

import pytest

from engine_core import Engine, Logger, State
from engine_core.callbacks import progress, reporter
from engine_core.callbacks.progress import ProgressBar

from .screens import terminal

LOADER = range(4)


@pytest.fixture
def run(monkeypatch):
    """Return `run(...)`, four batches with an evaluation after two of them, by a clock that takes 0.5 s for each."""
    clock = SimpleNamespace(s=0.0)
    monkeypatch.setattr(reporter, "time", SimpleNamespace(perf_counter=lambda: clock.s))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.s))

    def run(refresh_s=0.0, at_batch=lambda: None, metrics=None, label="eval"):
        bar, loss = ProgressBar(refresh_s=refresh_s), SimpleNamespace(is_cuda=False, item=lambda: 0.25)
        state = State(callbacks=[bar], max_duration="4ba", loss=loss, evaluators={label: LOADER}, seed=1)
        with Engine(state, Logger()) as engine:
            engine.run_event("init")
            engine.run_event("fit_start")
            for number in range(4):
                clock.s += 0.5
                state.timestamp = state.timestamp.to_next_batch(samples=800, duration_s=0.5)
                engine.run_event("batch_end")
                at_batch()
                if number == 1:
                    evaluate(engine, state, metrics or {f"{label}/loss": 0.5}, label)
            engine.run_event("fit_end")

    def evaluate(engine, state, metrics, label):
        state.dataloader, state.dataloader_label = LOADER, label
        engine.run_event("eval_start")
        state.eval_timestamp = state.timestamp
        engine.run_event("eval_batch_end")
        state.metrics = metrics
        state.results.record(metrics, 2, 0)
        engine.run_event("eval_end")

    return run


def test_rows_stay_above_the_bar(run, monkeypatch):
    with terminal(monkeypatch, columns=100) as screen:
        run()
    bar = "━" * 40
    assert screen.lines()[9:] == [
        "seed        1",
        "folder      none",
        "batch 2/4  train/loss 0.25  eval/loss 0.5*  0:01",
        f"batch 4/4  {bar}  100%  loss 0.25  1,600 samples/s",
        "",
    ]


def test_the_bar_shows_training_and_in_an_evaluation_the_evaluation(run, monkeypatch):
    with terminal(monkeypatch, columns=100) as screen:
        run()
    assert screen.drawings()[11:] == [
        "batch 0/4  0%",
        "batch 1/4  25%  loss 0.25  1,600 samples/s  0:02 left",
        "batch 2/4  50%  loss 0.25  1,600 samples/s  0:01 left",
        "evaluating eval 2/4  50%",
        "batch 2/4  train/loss 0.25  eval/loss 0.5*  0:01",
        "evaluating eval 2/4  50%",  # drawn again below the row
        "batch 2/4  50%  loss 0.25  1,600 samples/s  0:01 left",
        "batch 3/4  75%  loss 0.25  1,600 samples/s  0:00 left",
        "batch 4/4  100%  loss 0.25  1,600 samples/s",
    ]


@pytest.mark.parametrize("columns", [20, 33, 47])
def test_little_room_wraps_and_cuts_nothing(run, monkeypatch, columns):
    label = "a_label_that_is_longer_than_the_screen_is_wide"
    with terminal(monkeypatch, columns=columns) as screen:
        run(label=label)
    lines = screen.lines()
    assert max(map(len, lines)) <= columns
    shown = "".join("".join(lines).split())
    row = f"batch2/4train/loss0.25{label}/loss0.5*0:01"
    assert f"eval{label}?samples,4batches" in shown
    assert shown.endswith(f"{row}batch4/4100%loss0.251,600samples/s")


def test_names_are_text_and_not_markup(run, monkeypatch):
    with terminal(monkeypatch, columns=100) as screen:
        run(label="[red]x[/red]\x1b[2J:smile:")
    assert "[red]x[/red]\\x1b[2J:smile:/loss 0.5*" in screen.lines()[11]
    assert "\x1b[2J" not in screen.written


COLOURED = re.compile(r"\x1b\[[\d;]*3\dm")


@pytest.mark.parametrize(("environment", "has_colours"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_a_terminal_that_wants_them(run, monkeypatch, environment, has_colours):
    with terminal(monkeypatch, columns=100, **environment) as screen:
        run()
    assert bool(COLOURED.search(screen.written)) is has_colours


def test_a_dumb_terminal_gets_plain_lines(run, monkeypatch):
    with terminal(monkeypatch, columns=40, TERM="dumb", FORCE_COLOR="1") as screen:
        run()
    assert screen.written.endswith("folder      none\nbatch 2/4  train/loss 0.25  eval/loss 0.5*  0:01\n")
    assert "\x1b" not in screen.written
    assert "\r" not in screen.written


def test_the_cursor_comes_back_when_training_fails(run, monkeypatch):
    def fail():
        raise SystemExit

    with terminal(monkeypatch) as screen, pytest.raises(SystemExit):
        run(at_batch=fail)
    assert screen.written.count("\x1b[?25l") == screen.written.count("\x1b[?25h") == 1


def test_what_the_run_prints_stays_on_stdout_if_that_is_no_terminal(run, monkeypatch, capsys):
    with terminal(monkeypatch) as screen:
        run(at_batch=lambda: (sys.stdout.write("on stdout\n"), sys.stderr.write("on stderr\n")))
    assert capsys.readouterr().out == "on stdout\n" * 4
    assert "on stdout" not in screen.written
    assert screen.lines()[11:14] == ["on stderr"] * 2 + ["batch 2/4  train/loss 0.25  eval/loss 0.5*  0:01"]
