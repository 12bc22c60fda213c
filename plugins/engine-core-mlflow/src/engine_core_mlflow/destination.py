"""Send what a run logs to MLflow, which is imported when a fit starts. Knows no Trainer."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from engine_core import Logger, LoggerDestination, State
from engine_core.arguments import check_number, check_whole
from engine_core.callback import continues_itself
from engine_core.errors import ArgumentError
from engine_core.loggers import Waiting, numbers, orders
from engine_core.messages import cause_of

from .run import MlflowRun, Value


class MLflow(LoggerDestination):
    """Sends each logged number to a run of MLflow, once at its step, however often the run is resumed.

    They are sent together, before each checkpoint and at the end; while they can't be, the latest wait.

    Args:
        uri: where it keeps runs, such as `sqlite:///mlflow.db` or `https://host`; None: as MLflow's own settings say.
        experiment: made if it is missing.
        batch_size: how many values are sent at once, at most 1,000.
        interval_s: after how many seconds those that wait are sent.
    """

    def __init__(
        self, uri: str | None = None, experiment: str = "engine-core", batch_size: int = 500, interval_s: float = 5
    ) -> None:
        self.uri, self.experiment = uri, experiment
        self.batch_size = check_whole("batch_size", batch_size, "[1, 1000]", "how many values are sent at once")
        self.interval_s = check_number("interval_s", interval_s, "[0, inf)", "after how many seconds they are sent")
        self._begin_run()

    def _begin_run(self) -> None:
        interval_s = self.interval_s
        self._waiting = Waiting[Value]("MLflow", self._send, at_once=self.batch_size, interval_s=interval_s)
        self._run: MlflowRun | None = None
        self._status, self._not_finite = "KILLED", 0
        self._parameters: dict[str, Any] = {}
        self._files = Waiting[tuple[str, bytes, int]]("MLflow", self._send_file, at_once=1, interval_s=interval_s)
        self._saved: Mapping[str, Any] = {}
        self._starts_over = False

    def init(self, state: State, logger: Logger) -> None:
        """Begin with nothing, as each run does."""
        self._begin_run()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin a run of MLflow, or continue that of the loaded checkpoint.

        Raises:
            ArgumentError: (a ValueError) if MLflow can't keep runs there.
        """
        self._status = "KILLED"  # unless the fit says how it ended
        try:
            if self._run is not None:
                self._run.set_status("RUNNING")
                return
            run = MlflowRun(self.uri, self.experiment)
            if self._starts_over:
                run.end_killed(state.run_name)
            is_same = continues_itself(state) and not self._starts_over
            continues = run.begin(state.run_name, self._saved.get("run_id") if is_same else None)
            run.describe(self._parameters, orders(logger))
        except Exception as error:
            raise ArgumentError(
                f"MLflow can't keep runs with uri={self.uri!r} ({cause_of(error)}); give it a uri such as "
                "'sqlite:///mlflow.db', for which you install engine-core-mlflow[local]"
            ) from error
        self._run = run
        if continues:
            self._not_finite += self._saved.get("not_finite", 0)
        self._waiting.open(Value(*item) for item in (self._saved.get("due", ()) if continues else ()))
        self._waiting.flush()
        self._files.open()
        self._files.flush()

    def start_over(self) -> None:
        """Let the next fit begin a run of its own, and end those of earlier attempts that were killed."""
        self._starts_over = True

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Keep them until the fit starts."""
        self._parameters.update(hyperparameters)

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Let the numbers wait, and count those that are not finite, which MLflow can't draw."""
        step, now = _checked(step), time.time_ns() // 1_000_000
        values = [Value(name, float(value), now, step) for name, value in numbers(metrics).items()]
        finite = [value for value in values if math.isfinite(value.value)]
        self._not_finite += len(values) - len(finite)
        self._waiting.add(*finite)

    def log_file(self, name: str, content: bytes | str, step: int) -> None:
        """Send a file as the artifact `files/<step>/<name>`."""
        whole = content.encode() if isinstance(content, str) else content
        self._files.add((name, whole, _checked(step)), weight=500)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Send what waits, and say how the run ended: complete, or paused."""
        self._status = "SCHEDULED" if state.is_interrupted else "FINISHED"
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """Send what waits, and return which run this is; values that can't be sent are kept with that."""
        if self._run is None:
            return dict(self._saved)
        due = [[*value] for value in self._waiting.kept()]
        return {"run_id": self._run.id, "due": due, "not_finite": self._not_finite}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next fit continue the saved run."""
        if not isinstance(run_id := state.get("run_id", ""), str):
            raise ArgumentError(f"run_id={run_id!r:.80} in the state of MLflow is not something it saved")
        self._saved = state

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Send what waits, and end the run if no fit has; a warning says how much can't be sent and is lost."""
        self._waiting.close()
        self._files.close()
        with suppress(Exception):
            self._end()
        self._begin_run()

    def _end(self) -> None:
        if self._run is not None:
            self._waiting.flush()
            self._run.count_not_finite(self._not_finite)
            self._run.set_status(self._status)

    def _send(self, values: list[Value]) -> None:
        assert self._run is not None
        self._run.send(values)
        self._run.count_not_finite(self._not_finite)

    def _send_file(self, files: list[tuple[str, bytes, int]]) -> None:
        assert self._run is not None
        self._run.send_file(*files[0])


def _checked(step: int) -> int:
    return check_whole("step", step, "[-9e18, 9e18]", "the number of complete batches")  # of 64 bits
