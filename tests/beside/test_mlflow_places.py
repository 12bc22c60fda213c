"""Where MLflow keeps runs, and what happens where it can't."""

import sqlite3
import time

import pytest

from engine_core import Logger, State
from engine_core.errors import DestinationWarning
from engine_core.loggers import values
from engine_core_author import RecordingDestination
from engine_core_mlflow import MLflow

from . import tracker_runs as runs
from .test_tensorboard_values import running
from .tracker_runs import Cut, fit, in_mlflow, mlflow_runs, same_values

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # MLflow's own


class Outage:
    """A database that refuses new metrics for as long as it is out."""

    def __init__(self, uri):
        self._path = uri.removeprefix("sqlite:///")

    def _run(self, statement):
        connection = sqlite3.connect(self._path)
        with connection:
            connection.execute(statement)
        connection.close()

    def begin(self, *_):
        refusal = "BEFORE INSERT ON metrics BEGIN SELECT RAISE(ABORT, 'out of order'); END"
        self._run(f"CREATE TRIGGER IF NOT EXISTS refuse {refusal}")

    def end(self, *_):
        self._run("DROP TRIGGER IF EXISTS refuse")


@pytest.fixture
def outage(uri):
    return Outage(uri)


@pytest.mark.parametrize("uri", ["sqlite:///folder/x.db", "http://127.0.0.1:9", "nonsense://x", "file:folder"])
@pytest.mark.usefixtures("_quiet")
def test_a_place_that_cant_be_is_an_error_before_anything_is_trained(uri, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    if "folder" in uri:
        (tmp_path / "folder").write_text("this is a file")
    seen = []
    began_s = time.monotonic()
    with pytest.raises(ValueError, match=r"MLflow can't keep runs with uri='.*'sqlite:///mlflow.db', for which you"):
        fit(MLflow(uri), None, Cut("batch_start", 0, seen.append))
    assert seen == []
    assert time.monotonic() - began_s < 60  # MLflow itself tries to open a file for 100 seconds


def test_the_folder_of_a_file_is_made(tmp_path):
    uri = f"sqlite:///{tmp_path}/new/folder/mlflow.db"
    fit(MLflow(uri), None)
    assert same_values(in_mlflow(uri), runs.expected())


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"batch_size": 1001}, {"batch_size": 1.5}, {"interval_s": -1}])
def test_what_cant_be_is_refused_at_once(given):
    with pytest.raises((ValueError, TypeError), match=next(iter(given))):
        MLflow(**given)


def test_without_an_argument_it_is_where_mlflow_says(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    fit(MLflow(), None)
    assert same_values(in_mlflow(uri), runs.expected())


def test_values_are_sent_together(uri, monkeypatch):
    from mlflow import MlflowClient  # noqa: PLC0415

    sent = []
    log_batch = MlflowClient.log_batch

    def count(self, *given, **parts):
        sent.append(len(parts.get("metrics", ())))
        return log_batch(self, *given, **parts)

    monkeypatch.setattr(MlflowClient, "log_batch", count)
    with running(MLflow(uri, batch_size=7, interval_s=3600)) as (_, logger):
        for step in range(8):
            logger.log_metrics({"a": 1.0, "b": 1.0}, step)
    assert [size for size in sent if size] == [7, 1, 7, 1]


def test_a_place_that_is_there_again_has_each_value_once(uri, outage, monkeypatch):
    monkeypatch.setattr(values, "_REST", 0)
    tracker = MLflow(uri, interval_s=0)
    with pytest.warns(DestinationWarning, match="failed in log_metrics") as caught:
        fit(tracker, None, Cut("batch_start", 4, outage.begin), Cut("batch_start", 5, outage.end))
    assert len(caught) >= 1
    assert same_values(in_mlflow(uri), runs.expected())


def test_what_fails_later_is_told_and_the_training_is_the_same(uri, outage):
    beside = RecordingDestination()
    with pytest.warns(DestinationWarning) as caught:
        fit([MLflow(uri), beside], None, Cut("batch_start", 1, outage.begin))
    failed, lost = (str(each.message) for each in caught if issubclass(each.category, DestinationWarning))
    assert failed.startswith("logger destination MLflow (engine-core-mlflow 0.1.0) failed in fit_end at batch 9")
    assert lost == "logger destination MLflow: 24 entries are lost, as nothing could be sent"
    assert len({step for step, _ in beside.metrics}) == 10


def test_values_that_wait_are_in_the_checkpoint(uri, outage):
    tracker = MLflow(uri)
    with running(tracker) as (_, logger):
        logger.log_metrics({"a": 1.0}, 1)
        tracker.state_dict()
        outage.begin()
        logger.log_metrics({"a": 2.0, "b": 2.0}, 2)
        state = tracker.state_dict()
        with pytest.warns(DestinationWarning, match="2 entries are lost"):
            tracker.close()
        outage.end()
    again = MLflow(uri)
    again.load_state_dict(state)
    again.fit_start(State(), Logger())
    again.log_metrics({"a": 3.0}, 3)
    again.close()
    assert sorted(in_mlflow(uri)) == [("a", 1, 1.0), ("a", 2, 2.0), ("a", 3, 3.0), ("b", 2, 2.0)]


def test_without_a_fit_there_is_no_run_and_that_is_told(uri):
    made = runs.trainer(MLflow(uri), None)
    made.eval()
    with pytest.warns(DestinationWarning, match="1 entry is lost, as no fit began"):
        made.close()
    assert mlflow_runs(uri) == []
