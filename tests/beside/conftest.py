"""What the tests of the trackers share."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let MLflow tell nobody that it is used, and keep what it writes by itself out of this tree."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def _database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an empty database of MLflow's, which takes a second."""
    mlflow: Any = pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.chdir(path.parent)
        warnings.simplefilter("ignore")  # SQLAlchemy's, about MLflow
        mlflow.MlflowClient(f"sqlite:///{path}").get_experiment_by_name("none")
    return path


@pytest.fixture
def uri(_quiet: None, _database: Path, tmp_path: Path) -> str:
    """Return where a test's runs are kept."""
    return f"sqlite:///{shutil.copy(_database, tmp_path / 'mlflow.db')}"
