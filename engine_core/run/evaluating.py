"""Evaluate what a training left, as its config evaluated it. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..arguments import path_of
from ..checkpoint import check_which
from ..config import Config, override
from ..errors import ArgumentError, EngineError, did_you_mean
from .making import make_evaluator
from .models import find_weights
from .rebuilding import importing_beside


class Evaluated(NamedTuple):
    """The results of an evaluation by name, the weights they are of, and how long those had been trained."""

    results: Mapping[str, float]
    weights: str
    step: int
    epoch: int


def evaluate(
    path: Path | str,
    config: Config | None = None,
    *,
    data: str | None = None,
    device: str | None = None,
    weights: str = "evaluated",
    trust: bool = False,
) -> Evaluated:
    """Evaluate a trained model on the evaluation loaders of its config.

    Args:
        path: a run's folder, a checkpoint, or the folder of a saver, for its latest.
        config: what makes the model, loss, metrics and loaders; None: the one that the run kept.
        data: the label of the one loader to evaluate on; None: all of them.
        device: overrides the config's.
        weights: `evaluated`, which are the average where an algorithm kept one, or `trained`.
        trust: without `config`, import and call what the run's own names: that runs code that whoever wrote the folder
            chose.

    Raises:
        ArgumentError: (a ValueError) if there is no such loader, or none at all.
        CheckpointError: if there are no weights, or they don't fit the model.
        EngineError: if neither `config` nor trust is given.
    """
    found = find_weights(path_of(path), check_which(weights))
    source, own = found.source, config is None
    if config is None:
        config = source.config("give the file of one, with --config FILE")
        if not trust:
            raise EngineError(
                f"to evaluate, {config.model.target!r:.200} and more would be imported and called, because the "
                f"manifest in {str(source.folder)!r} says so: give your own config with --config FILE, or, if you "
                "trust whoever wrote that folder, --trust"
            )
    elif isinstance(seed := source.manifest.get("seed"), int):
        config = override(config, seed=seed)  # a split of the data may depend on it
    labels = [*config.eval_data]
    if not labels:
        raise ArgumentError("the config has no eval_data, so there is nothing to evaluate on")
    if data is not None and data not in labels:
        raise ArgumentError(f"the config has no evaluation loader {data!r}{did_you_mean(data, labels)}")
    with importing_beside(source, trust=own):
        evaluator = make_evaluator(config, [data] if data is not None else labels, device)
    with evaluator:
        assert evaluator.state.model is not None
        found.load_into(evaluator.state.model)
        return Evaluated(evaluator.eval(), found.weights, found.step, found.epoch)
