"""What MLflow has of a run, read back by its own client."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from engine_core import Callback, Engine, Logger, State
from engine_core.errors import DestinationWarning
from engine_core_mlflow import MLflow

from .test_tensorboard_values import png, running
from .tracker_runs import fit, in_mlflow, mlflow_runs, trainer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # MLflow's own


def logged(uri, *metrics, step=3):
    """Log values between FIT_START and FIT_END, and return what MLflow has."""
    with running(MLflow(uri)) as (engine, logger):
        for each in metrics:
            logger.log_metrics(each, step)
        engine.run_event("fit_end")
    return in_mlflow(uri)


def test_numbers_are_logged_and_tensors_of_one_element_are_numbers(uri):
    values = {"a": 1, "b": torch.tensor([[0.5]]), "c": np.float64(2), "d": True}
    others = {"e": "text", "f": None, "g": torch.zeros(2), "h": [], "i": {"x": 1}}
    assert sorted(logged(uri, values, others)) == [("a", 3, 1.0), ("b", 3, 0.5), ("c", 3, 2.0), ("d", 3, 1.0)]


def test_what_is_not_finite_is_left_out_and_counted(uri):
    assert logged(uri, {"a": math.nan, "b": math.inf}, {"a": -math.inf, "c": 1.0}) == [("c", 3, 1.0)]
    (run,) = mlflow_runs(uri)
    assert run.data.tags["engine_core.not_finite"] == "3"


def test_the_count_of_what_is_not_finite_is_that_of_all_attempts(uri):
    first = MLflow(uri)
    with running(first) as (_, logger):
        logger.log_metrics({"a": math.nan}, 1)
        state = first.state_dict()
        logger.log_metrics({"a": math.nan}, 2)  # which the resumed run logs again
    again = MLflow(uri)
    again.load_state_dict(state)
    again.fit_start(State(), Logger())
    again.log_metrics({"a": math.nan}, 2)
    again.close()
    (run,) = mlflow_runs(uri)
    assert run.data.tags["engine_core.not_finite"] == "2"


def test_names_that_mlflow_does_not_take_are_made_ones_that_it_takes(uri):
    names = ["", ".", "..", "/", "../../x", "a//b", "/a", "a\n\0b", "\udc80", "a<b", "a>b", "é" * 400, "a" * 100_000]
    kept = ["train/loss", "a b", "x.y-z_1"]
    found = [name for name, _, _ in logged(uri, dict.fromkeys([*names, *kept], 1.0))]
    assert len({*found}) == len(names) + len(kept) == len(found)
    assert {*kept} <= {*found}
    assert all(name.isascii() and len(name) <= 250 for name in found)


def test_the_hyperparameters_are_there_and_long_ones_are_cut(uri):
    given = {"lr": 0.1, "seed": 2**62, "bad?": "\udc80", "none": None, "long": "x" * 10_000, "empty": ""}
    many = {f"p{number:03}": number for number in range(250)}
    logger = Logger([MLflow(uri)])
    engine = Engine(State(run_name="it's"), logger)
    engine.run_event("init")
    logger.log_hyperparameters({**given, **many})
    engine.run_event("fit_start")
    engine.close()
    (run,) = mlflow_runs(uri)
    found = run.data.params
    assert {name: found[name] for name in many} == {name: str(value) for name, value in many.items()}
    rest = {name: value for name, value in found.items() if name not in many}
    (strange,) = {*rest} - {*given}
    assert strange.startswith("bad_-") and rest.pop(strange) == "?"
    assert rest == {"lr": "0.1", "seed": str(2**62), "none": "None", "long": "x" * 5997 + "...", "empty": ""}
    assert (run.info.run_name, run.data.tags["engine_core.run_name"]) == ("it's", "it's")


def test_the_order_with_its_reasons_is_there_as_tags(uri):
    fit(MLflow(uri), None)
    (run,) = mlflow_runs(uri)
    lines = (
        "1. Other: before Listed: FILO, the list is reversed on AFTER events\n"
        "2. Listed: after Other: FILO, the list is reversed on AFTER events"
    )
    found = {name: text for name, text in run.data.tags.items() if name.startswith("order/")}
    assert found == {"order/after_dataloader": lines, "order/after_loss": lines}


def test_files_are_artifacts(uri, tmp_path):
    class Logs(Callback):
        def fit_start(self, state, logger):
            logger.log_file("early.txt", "before the place is open")

        def epoch_end(self, state, logger):
            logger.log_file("picture.png", png())
            logger.log_file("table.json", b'{"a": "\xff"}')

    fit(MLflow(uri), None, Logs(), max_duration="1ep")
    (run,) = mlflow_runs(uri)
    got = Path(MlflowClient(uri).download_artifacts(run.info.run_id, "files", str(tmp_path)))
    found = {path.relative_to(got).as_posix(): path.read_bytes() for path in got.rglob("*.*")}
    wanted = {"0/early.txt": b"before the place is open", "3/picture.png": png(), "3/table.json": b'{"a": "\xff"}'}
    assert found == wanted


def test_an_experiment_of_ones_own_is_made_and_used_again(uri):
    for _ in range(2):
        fit(MLflow(uri, experiment="it's mine"), None)
    assert len(mlflow_runs(uri, "it's mine")) == 2


def test_a_number_or_a_step_that_no_float_or_integer_holds_spoils_nothing_else(uri):
    with running(MLflow(uri)) as (_, logger):
        logger.log_metrics({"good": 1.0}, 1)
        for value, step, said in ((10**400, 1, "int too large"), (1.0, 2**63, "step=9"), (1.0, 1.5, "whole number")):
            with pytest.warns(DestinationWarning, match=said):
                logger.log_metrics({"bad": value}, step)
            logger.log_metrics({"good": 2.0}, 2)
    assert {name for name, _, _ in in_mlflow(uri)} == {"good"}


def test_values_from_before_the_fit_are_there(uri):
    with trainer(MLflow(uri), None) as made:
        made.eval()
        made.fit()
    assert [step for name, step, _ in in_mlflow(uri) if name == "eval/loss"] == [0, 3, 6, 9]
