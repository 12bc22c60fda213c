"""One run of MLflow: begun or continued, what it has not sent again. Knows no run of ours; imports on first use."""

from __future__ import annotations

import re
import sqlite3
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LONGEST_NAME, LONGEST_VALUE, LONGEST_TAG = 200, 6_000, 5_000
OUR_NAME, NOT_FINITE = "engine_core.run_name", "engine_core.not_finite"


class Value(NamedTuple):
    """A number, with its time in milliseconds."""

    name: str
    value: float
    at: int
    step: int


class MlflowRun:
    """A run in an experiment, which is made if it is missing; `begin` first.

    Raises:
        Exception: whatever MLflow raises.
    """

    def __init__(self, uri: str | None, experiment: str) -> None:
        import mlflow  # noqa: PLC0415  takes seconds

        self._mlflow = mlflow
        _check_file(uri or mlflow.get_tracking_uri())
        self._client = mlflow.MlflowClient(uri)
        self._experiment = self._id_of(experiment)
        self._there: set[tuple[str, int]] = set()
        self._not_finite = 0
        self.id = ""

    def _id_of(self, experiment: str) -> str:
        if found := self._client.get_experiment_by_name(experiment):
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(experiment))
        except self._mlflow.MlflowException:
            if found := self._client.get_experiment_by_name(experiment):  # another run has just made it
                return str(found.experiment_id)
            raise

    def begin(self, name: str | None, former: str | None) -> bool:
        """Continue a former run, and return if that could be done; else begin a new one."""
        run = None if former is None else self._find(former)
        if run is None:
            tags = {} if name is None else {OUR_NAME: name}
            self.id = self._client.create_run(self._experiment, run_name=name, tags=tags).info.run_id
            return False
        self.id = run.info.run_id
        self._client.update_run(self.id, status="RUNNING")
        histories = (self._client.get_metric_history(self.id, name) for name in run.data.metrics)
        self._there = {(metric.key, metric.step) for history in histories for metric in history}
        return True

    def _find(self, former: str) -> Any:
        """Return a run, or None if it was deleted."""
        try:
            run = self._client.get_run(former)
        except self._mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run.info.lifecycle_stage == "active" else None

    def end_killed(self, name: str | None) -> None:
        """Set runs of this name that still seem to run to KILLED: they ended without a word."""
        token: str | None = None
        while True:
            found = self._client.search_runs(
                [self._experiment], "attributes.status = 'RUNNING'", max_results=1_000, page_token=token
            )
            for run in found:
                if name is not None and run.data.tags.get(OUR_NAME) == name:
                    self._client.set_terminated(run.info.run_id, "KILLED")
            token = found.token
            if not token:
                return

    def describe(self, parameters: Mapping[str, Any], orders: Mapping[str, str]) -> None:
        """Send hyperparameters that the run does not have, and as tags the order of the algorithms at each event."""
        entities = self._mlflow.entities
        there = self._client.get_run(self.id).data.params
        named = {_clean(name): _cut(value, LONGEST_VALUE) for name, value in parameters.items()}
        params = [entities.Param(name, value) for name, value in named.items() if name not in there]
        tags = [entities.RunTag(f"order/{event}", _cut(order, LONGEST_TAG)) for event, order in orders.items()]
        self._client.log_batch(self.id, params=params, tags=tags)

    def send(self, values: list[Value]) -> None:
        """Send values, but for those that the run has at their step: an earlier attempt has sent them."""
        named = [value._replace(name=_clean(value.name)) for value in values]
        metric = self._mlflow.entities.Metric
        due = [metric(*value) for value in named if (value.name, value.step) not in self._there]
        if due:
            self._client.log_batch(self.id, metrics=due)

    def send_file(self, name: str, content: bytes, step: int) -> None:
        """Send a file as the artifact `files/<step>/<name>`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            path.write_bytes(content)
            self._client.log_artifact(self.id, str(path), f"files/{step}")

    def count_not_finite(self, count: int) -> None:
        """Say how many values were left out, unless that is said already."""
        if count != self._not_finite:
            self._client.set_tag(self.id, NOT_FINITE, str(count))
            self._not_finite = count

    def set_status(self, status: str) -> None:
        """Say that it runs, is to be continued, or has ended."""
        if status in ("RUNNING", "SCHEDULED"):
            self._client.update_run(self.id, status=status)
        else:
            self._client.set_terminated(self.id, status)


def _check_file(uri: str) -> None:
    """Make the folder of SQLite's file, and raise at once if it can't be opened, which MLflow tries for 100 seconds."""
    if found := re.match(r"sqlite(?:\+\w+)?:///(?!file:|:memory:)([^?]+)", uri):
        path = Path(found[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        sqlite3.connect(path).close()


def _clean(name: Any) -> str:
    """Return a name that MLflow takes, of its own even where others differ only in what was taken out."""
    text = str(name)
    parts = [part for part in re.sub(r"[^\w/. -]", "_", text, flags=re.ASCII).split("/") if part.strip(".")]
    clean = "/".join(parts)[:LONGEST_NAME].rstrip("/") or "_"
    return clean if clean == text else f"{clean}-{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def _cut(value: Any, longest: int) -> str:
    text = str(value).encode("utf-8", "replace").decode()
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
