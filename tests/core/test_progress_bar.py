"""The progress bar on a real terminal (a pseudo-terminal) and where there is none."""

import os
import subprocess
import sys

RUN = """
from engine_core import Engine, Logger, State
from engine_core.callbacks.progress import ProgressBar

class Loss:
    def numel(self): return 1
    def item(self): return 0.25

state = State(callbacks=[ProgressBar(refresh_s=REFRESH)], max_duration="4ba", loss=Loss())
with Engine(state, Logger()) as engine:
    engine.run_event("fit_start")
    for _ in range(4):
        state.timestamp = state.timestamp.to_next_batch(samples=8, duration_s=0.5)
        engine.run_event("batch_end")
        END
    engine.run_event("fit_end")
"""


def script(refresh_s, end=""):
    return RUN.replace("REFRESH", str(refresh_s)).replace("END", end)


def test_it_shows_position_share_loss_and_rate(on_terminal):
    written = on_terminal(script(refresh_s=0))
    for text in ("batch 0/4", "batch 2/4", " 50%", "loss 0.25", "16 samples/s", " left", "batch 4/4", "100%"):
        assert text in written


def test_between_two_drawings_nothing_is_drawn(on_terminal):
    written = on_terminal(script(refresh_s=60))
    assert "batch 2/4" not in written
    assert "batch 4/4" in written


def test_the_cursor_comes_back_when_training_fails(on_terminal):
    written = on_terminal(script(refresh_s=0, end="raise SystemExit"))
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1


def test_it_is_silent_where_there_is_no_terminal(tmp_path):
    command = [sys.executable, "-c", script(refresh_s=0)]
    environment = {**os.environ, "FORCE_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == (b"", b"")
