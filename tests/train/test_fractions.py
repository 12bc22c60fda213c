"""`1dur`: intervals as fractions of the training, and what can't be counted in it."""

import functools
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import StepLR

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError

from .parts import at, trainer
from .test_schedules import four_batches


class Unsized:
    """A loader that doesn't know its length."""

    def __iter__(self) -> Any:
        return iter(four_batches())


HALVE = functools.partial(StepLR, step_size="0.5dur")
PREFIX = "schedulers: StepLR: step_size="


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_duration": None, "schedulers": HALVE},
            f"{PREFIX}'0.5dur': max_duration is not known, so '0.5dur' of it can't be counted: set it in ep or ba",
        ),
        (
            {"max_duration": "1h", "schedulers": (HALVE, "1sec")},
            f"{PREFIX}'0.5dur': max_duration is '3600sec', so '0.5dur' of it can't be counted: set it in ep or ba",
        ),
        (
            {"max_duration": None, "eval_interval": "0.1dur"},
            "eval_interval: max_duration is not known, so '0.1dur' of it can't be counted: set it in ep or ba",
        ),
        (
            {"data": Unsized(), "schedulers": (HALVE, "1ba")},
            f"{PREFIX}'0.5dur': '0.5dur' can't be counted in ba: the train_dataloader has no length",
        ),
        (
            {"data": Unsized(), "eval_interval": "0.3dur"},
            "eval_interval: '0.3dur' can't be counted in ba: the train_dataloader has no length",
        ),
        (
            {"schedulers": (functools.partial(StepLR, step_size="90sp"), "1ba")},
            f"{PREFIX}'90sp': '90sp' can't be counted in ba: give it in ba",
        ),
        (
            {"schedulers": (HALVE, "8sp")},
            f"{PREFIX}'0.5dur': '0.5dur' can't be counted in sp: give it in sp",
        ),
        (
            {"schedulers": functools.partial(StepLR, step_size="0.5ba")},
            f"{PREFIX}'0.5ba': '0.5ba': batches are counted in whole numbers",
        ),
        (
            {"schedulers": functools.partial(StepLR, step_size="-1ep")},
            f"{PREFIX}'-1ep': a length can't be negative",
        ),
        (
            {"schedulers": (lambda o, steps: StepLR(o, steps + 1), "1ba"), "max_duration": None},
            (
                "schedulers: <lambda>: steps='1dur': max_duration is not known, so '1dur' of it can't be counted: set "
                "it in ep or ba"
            ),
        ),
        (
            {"schedulers": (HALVE, "2dur")},
            "schedulers: the interval='2dur' has to be within the training: 0 or more, and at most 1dur",
        ),
        ({"max_duration": "1dur"}, "max_duration: give it in ep, ba, sp, tok or sec, not as '1dur'"),
        (
            {"max_duration": None, "callbacks": [("checkpoint_saver", {"folder": "unused", "interval": "0.1dur"})]},
            "interval: max_duration is not known, so '0.1dur' of it can't be counted: set it in ep or ba",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_at_construction(settings: dict[str, Any], message: str) -> None:
    given = {"data": four_batches(), **settings}
    with pytest.raises(ArgumentError) as error:
        trainer(**given)
    assert str(error.value) == message


def test_no_length_is_needed_where_units_are_the_same() -> None:
    made = trainer(Unsized(), max_duration="3ep", eval_interval="1dur", schedulers=HALVE)
    assert made.state.schedulers[0].step_size == 1


@pytest.mark.parametrize(
    ("duration", "interval", "at_batches"),
    [("4ep", "0.5dur", [8, 16]), ("2ep", "0.25dur", [2, 4, 6, 8]), ("10ba", "0.29dur", [2, 4, 6, 8, 10])],
)
def test_intervals_are_fractions_of_the_training(
    duration: str, interval: str, at_batches: list[int], tmp_path: Path
) -> None:
    seen: list[int] = []
    made = trainer(
        four_batches(),
        max_duration=duration,
        eval_dataloader=four_batches(),
        eval_interval=interval,
        callbacks=[
            CheckpointSaver(tmp_path, interval, keep_last=None),
            at("eval_start", lambda state: seen.append(state.timestamp.batch)),
        ],
    )
    with made:
        made.fit()
    assert seen == at_batches
    assert sorted({int(path.name.rpartition("ba")[2]) for path in tmp_path.glob("ep*")}) == at_batches


def test_fit_takes_a_fraction_of_the_training() -> None:
    made = trainer(four_batches(), max_duration="3ep")
    made.fit("0.5dur")
    assert made.state.timestamp.batch == 6
    made.fit("0.5dur")
    assert made.state.timestamp.epoch == 3
