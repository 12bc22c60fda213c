"""Make what a config describes: everything is imported first, and the seed is set before model and data are made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..config import (
    Config,
    bind,
    build,
    build_algorithms,
    build_listeners,
    build_passes,
    find_target,
    import_plugin,
    make_factory,
)
from ..errors import ArgumentError, ArgumentTypeError, did_you_mean
from ..randomness import seed_generators
from ..registry import Registry
from ..trainer import Trainer, check_seed


def make_trainer(
    config: Config,
    loggers: Iterable[Any] = (),
    callbacks: Iterable[Any] = (),
    profile: Path | str | None = None,
) -> Trainer:
    """Return the Trainer that `config` describes; the seed is set before model and data are made.

    Args:
        loggers, callbacks: more of them, besides the config's.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
    """
    _import_all(config)
    _check_results(config)
    settings = config.trainer.model_dump()
    settings["seed"] = check_seed(settings["seed"])
    seed_generators(settings["seed"])
    model = build(config.model, config.place("model"))
    data = build(config.data, config.place("data"))
    algorithms = build_algorithms(config)
    callbacks = [*build_listeners(config, "callbacks"), *callbacks]
    parts: dict[str, Any] = {
        "loss_fn": None if config.loss is None else bind(config.loss, config.place("loss")),
        "optimizers": make_factory(config.optimizer, config.place("optimizer")),
        "schedulers": [
            (make_factory(entry, config.place("schedulers", index)), entry.interval)
            for index, entry in enumerate(config.schedulers)
        ],
        "eval_dataloader": {name: build(t, config.place("eval_data", name)) for name, t in config.eval_data.items()},
        "metrics": {name: build(t, config.place("metrics", name)) for name, t in config.metrics.items()},
        "algorithms": algorithms,
        "callbacks": callbacks if profile is None else [*callbacks, ("profiler", {"path": str(profile)})],
        "loggers": [*loggers, *build_listeners(config, "loggers")],
        "algorithm_passes": build_passes(config, algorithms),
    }
    try:
        trainer = Trainer(model, data, **parts, **settings)
    except (ArgumentError, ArgumentTypeError) as error:
        raise config.place().error(str(error)) from error
    trainer.state.config = config.model_dump(exclude_unset=True)
    trainer.state.results.set_directions(**config.results.model_dump())
    return trainer


def _import_all(config: Config) -> None:
    """Import everything that is named, so that import errors come first and nothing is made before seeding."""
    registry = Registry.scan()
    for index, entry in enumerate(config.algorithms):
        import_plugin("algorithms", entry, config.place("algorithms", index), registry)
    for section in ("model", "data", "loss", "optimizer"):
        if (target := getattr(config, section)) is not None:
            find_target(target.target, config.place(section))
    for section in ("eval_data", "metrics"):
        for name, target in getattr(config, section).items():
            find_target(target.target, config.place(section, name))


def _check_results(config: Config) -> None:
    """Refuse a direction for a result that no evaluation can have, or two directions."""
    labels, metrics = [*config.eval_data], ["loss", *config.metrics]
    for way, names in config.results.model_dump().items():
        for index, name in enumerate(names):
            place = config.place("results", way, index)
            label, _, rest = name.partition("/")
            metric = rest if label in labels else name
            if metric.partition("/")[0] not in metrics:
                known = [*metrics, *(f"{label}/{metric}" for label in labels for metric in metrics)]
                raise place.error(f"no evaluation has a result {name!r}{did_you_mean(name, known)}", name)
            if name in config.results.higher and name in config.results.lower:
                raise place.error(f"{name!r} is both under lower and under higher: give it once", name)
