"""A signal anywhere in a fit with each algorithm: it arrives, what the loop promises is whole, the next fit works."""

from __future__ import annotations

import functools
import random
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest

from engine_core import Algorithm, Trainer
from engine_core.registry import Registry

from ..train.interrupting import Steps, broken_by, count_places, cut, cut_after
from .conftest import ARGUMENTS, BATCHES, NAMES, make, trainer_of

PAIRS = ["mixup", "cutmix", "label_smoothing", "gradient_penalty", "ema", "sam", "layer_freezing"]
OTHERS = ["swa", "label_smoothing", "mixup of losses", "gradient_penalty", "sam", "stochastic_depth"]


def scoring(**given: Any) -> Algorithm:
    cls = Registry.scan().load("algorithms", "selective_backprop")
    return cls(**ARGUMENTS["selective_backprop"], **given)  # type: ignore[no-any-return]


def algorithms_of(group: str) -> Sequence[Algorithm]:
    """Return algorithms that run together; each of the repository is in one of the groups."""
    match group:
        case "halves of pairs alone":
            return [make(name) for name in PAIRS]
        case "all but swa":
            return [make(name) for name in NAMES if name != "swa"]
        case "swa and scoring in eval mode, in bf16":
            return [*(make(name) for name in OTHERS), scoring(bn="eval")]
        case _:
            return [make("ema"), scoring(reuse="auto")]


OPTIONS: dict[str, dict[str, Any]] = {
    "halves of pairs alone": {},
    "all but swa": {"microbatch_size": 20},
    "swa and scoring in eval mode, in bf16": {"microbatch_size": 20, "precision": "amp_bf16"},
    "reused outputs": {},
}


def made_of(group: str, batches: int) -> Trainer:
    options = {"eval_interval": "2ba", "max_duration": f"{batches}ba", **OPTIONS[group]}
    trainer = trainer_of(algorithms_of(group), callbacks=[Steps()], **options)
    trainer.state.model[2].norm.eval()  # type: ignore[index, union-attr]  # the user froze it
    return trainer


@functools.cache
def whole_run(group: str, batches: int) -> tuple[Steps, int, float]:
    """Return what a run that is not cut keeps, its number of places, and how long it takes in seconds."""
    with made_of(group, batches) as trainer:
        places = count_places(trainer.fit)
    with made_of(group, batches) as trainer:
        began_s = time.perf_counter()
        trainer.fit()
        taken_s = time.perf_counter() - began_s
    (steps,) = (callback for callback in trainer.state.callbacks if isinstance(callback, Steps))
    return steps, places, taken_s


def data() -> list[Any]:
    return [tuple(part.clone() for part in batch) for batch in BATCHES[:-1]]


def check(group: str, *, batches: int, times: int, seed: int) -> None:
    drawn, before = random.Random(seed), data()
    steps, places, _ = whole_run(group, batches)
    for place in drawn.sample(range(places), times):
        with made_of(group, batches) as trainer:
            found = broken_by(trainer, steps, before, lambda fit, place=place: cut(fit, place))
        assert found == [], f"cut at place {place} of {places}"


@pytest.mark.filterwarnings("ignore::engine_core.errors.DurationWarning")
def test_at_a_few_calls_and_returns():
    check("halves of pairs alone", batches=2, times=3, seed=1)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", OPTIONS)
def test_at_hundreds_of_calls_and_returns(group):
    check(group, batches=4, times=60, seed=2)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that signal are POSIX's")
@pytest.mark.parametrize("group", OPTIONS)
def test_by_a_timer(group):
    drawn, before = random.Random(3), data()
    steps, _, taken_s = whole_run(group, 4)
    for _ in range(40):
        with made_of(group, 4) as trainer:
            seconds = drawn.uniform(1e-4, taken_s)
            assert broken_by(trainer, steps, before, lambda fit, seconds=seconds: cut_after(fit, seconds)) == []
