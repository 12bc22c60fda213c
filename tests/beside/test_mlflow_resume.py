"""A run that is cut and resumed: MLflow has each of its values once, in one run."""

import shutil
import signal

import pytest
from mlflow import MlflowClient

from engine_core_mlflow import MLflow

from . import tracker_runs as runs
from .tracker_runs import Cut, SendsAtOnce, Stopped, fit, in_mlflow, mlflow_runs, same_values, stop

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # MLflow's own


@pytest.fixture(scope="module")
def whole():
    return runs.expected()


@pytest.fixture(scope="module")
def train():
    with runs.killing() as train:
        yield train


def attempt(folder, uri, *cuts, **settings):
    tracker = MLflow(uri, interval_s=0)
    fit(tracker, folder, *cuts, SendsAtOnce(tracker), **{"run_name": "mine", **settings})


def statuses(uri):
    return [run.info.status for run in mlflow_runs(uri)]


@pytest.mark.parametrize("point", runs.SOME_POINTS[::2], ids=str)
def test_a_run_that_an_exception_cuts_has_each_value_once(point, uri, whole, tmp_path):
    for _ in range(2):  # the second attempt has resumed, and is cut at the same point
        with pytest.raises(Stopped):
            attempt(tmp_path, uri, Cut(*point, stop))
    attempt(tmp_path, uri)
    last = mlflow_runs(uri)[-1]
    assert same_values(runs.metrics_of(uri, last), whole)
    assert statuses(uri) == [*["KILLED"] * (len(statuses(uri)) - 1), "FINISHED"]
    assert (len(statuses(uri)) == 1) == (point[1] > 2 or (point[0] == "batch_start" and point[1] == 2))


@pytest.mark.parametrize("point", runs.SOME_POINTS[1::2], ids=str)
def test_a_run_that_is_killed_has_each_value_once(point, train, uri, whole, tmp_path):
    job = {"tracker": "mlflow", "place": uri, "folder": str(tmp_path)}
    assert [train(point=point, **job) for _ in range(2)] == [-signal.SIGKILL] * 2
    assert train(point=None, **job) == 0
    assert same_values(runs.metrics_of(uri, mlflow_runs(uri)[-1]), whole)
    assert statuses(uri) == [*["KILLED"] * (len(statuses(uri)) - 1), "FINISHED"]


def test_only_runs_of_this_name_that_seem_to_run_are_ended_by_a_run_that_starts_over(uri, tmp_path):
    client = MlflowClient(uri)
    experiment = client.create_experiment("engine-core")
    names = ["mine", "mine", "other's", None]
    made = [client.create_run(experiment, tags={"engine_core.run_name": n} if n else {}) for n in names]
    client.set_terminated(made[1].info.run_id, "FAILED")
    attempt(tmp_path, uri)
    assert [client.get_run(run.info.run_id).info.status for run in made] == ["KILLED", "FAILED", "RUNNING", "RUNNING"]


def test_a_run_that_starts_from_another_runs_checkpoint_is_a_run_of_its_own(uri, whole, tmp_path):
    attempt(tmp_path / "first", uri)
    (path,) = (tmp_path / "first" / "checkpoints").glob("*-ba6")
    for autoresume, folder in ((True, "second"), (False, "third")):
        attempt(tmp_path / folder, uri, load_path=path, autoresume=autoresume, run_name=folder)
    first, *others = mlflow_runs(uri)
    assert same_values(runs.metrics_of(uri, first), whole)
    later = [value for value in whole if value[1] >= 6]
    assert [same_values(runs.metrics_of(uri, other), later) for other in others] == [True, True]


@pytest.mark.parametrize("is_gone", ["deleted", "purged"])
def test_where_the_run_was_deleted_another_one_begins(is_gone, uri, tmp_path):
    with pytest.raises(Stopped):
        attempt(tmp_path, uri, Cut("batch_start", 5, stop))
    (run,) = mlflow_runs(uri)
    if is_gone == "deleted":
        MlflowClient(uri).delete_run(run.info.run_id)
    else:
        uri = f"sqlite:///{shutil.copy(tmp_path / 'mlflow.db', tmp_path / 'new.db')}".replace("new", "newer")
    attempt(tmp_path, uri)
    (other,) = mlflow_runs(uri)
    assert other.info.run_id != run.info.run_id
    assert min(step for _, step, _ in runs.metrics_of(uri, other)) == 4


def test_a_paused_run_is_scheduled_and_one_that_goes_on_runs(uri, whole, tmp_path):
    attempt(tmp_path, uri, Cut("batch_end", 5, lambda state: state.pause_training()))
    assert statuses(uri) == ["SCHEDULED"]
    seen = []
    attempt(tmp_path, uri, Cut("batch_end", 6, lambda state: seen.extend(statuses(uri))))
    assert {*seen} == {"RUNNING"}
    assert statuses(uri) == ["FINISHED"]
    assert same_values(in_mlflow(uri), whole)


def test_a_second_fit_of_a_trainer_goes_on_in_the_same_run(uri, whole):
    seen = []
    with runs.trainer(MLflow(uri), None, Cut("batch_end", 0, lambda _: seen.extend(statuses(uri)))) as trainer:
        trainer.fit("1ep")
        assert statuses(uri) == ["FINISHED"]
        trainer.fit("2ep")
    assert {*seen} == {"RUNNING"}
    assert same_values(in_mlflow(uri), whole)


def test_a_state_that_it_never_saved_is_refused():
    with pytest.raises(ValueError, match="run_id=7 in the state of MLflow is not something it saved"):
        MLflow().load_state_dict({"run_id": 7})
