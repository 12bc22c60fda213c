"""What the tests of the trackers share."""

import shutil
import warnings

import pytest


@pytest.fixture
def _quiet(monkeypatch, tmp_path):
    """Let MLflow tell nobody that it is used, and keep what it writes by itself out of this tree."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def _database(tmp_path_factory):
    """Make an empty database of MLflow's, which takes a second."""
    mlflow = pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.chdir(path.parent)
        warnings.simplefilter("ignore")  # SQLAlchemy's, about MLflow
        mlflow.MlflowClient(f"sqlite:///{path}").get_experiment_by_name("none")
    return path


@pytest.fixture
def uri(_quiet, _database, tmp_path):
    """Return where a test's runs are kept."""
    return f"sqlite:///{shutil.copy(_database, tmp_path / 'mlflow.db')}"
