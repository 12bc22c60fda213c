"""Options of `train` that say the same as each other, or as `--set`: what contradicts itself is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import click

from ..config import Config, contradicting
from ..messages import enumerated

_CHECKPOINTS = {"every": "--checkpoint-every", "keep_last": "--keep-last", "keep_best": "--keep-best"}


def take_checkpoints(settings: dict[str, Any]) -> dict[str, Any] | Literal[False]:
    """Take the options about checkpoints out of all, and return them by the config's keys; False: there are to be none.

    Raises:
        click.UsageError: for `--no-checkpoints` beside another of them.
    """
    is_off = settings.pop("no_checkpoints")
    found = {"every": settings.pop("checkpoint_every"), **{k: settings.pop(k) for k in ("keep_last", "keep_best")}}
    if not is_off:
        return found
    if given := [option for key, option in _CHECKPOINTS.items() if found[key] is not None]:
        raise click.UsageError(f"--no-checkpoints and {enumerated(given)} contradict each other: leave one of them out")
    return False


def check_agreement(
    config: Config, checkpoints: Mapping[str, Any] | Literal[False], settings: Mapping[str, Any]
) -> None:
    """Refuse a `--set` that says otherwise than an option.

    Raises:
        click.UsageError: with both.
    """
    values = config.model_dump(exclude_unset=True)
    names = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    given = [("trainer", name, names.get(name), value) for name, value in settings.items()]
    given += [("checkpoints", key, _CHECKPOINTS[key], value) for key, value in (checkpoints or {}).items()]
    for section, name, option, value in given:
        text = None if value is None else contradicting(values, config.place(section, name), value)
        if text is not None:
            _contradict(text, str(option) if value is True else f"{option} {value}")
    said = _said_of_checkpoints(config)
    if said is None:
        return
    if checkpoints is False and config.checkpoints.every is not None:
        _contradict(said, "--no-checkpoints")
    options = [_CHECKPOINTS[key] for key, value in (checkpoints or {}).items() if value is not None]
    if options and config.checkpoints.every is None:
        _contradict(said, options[0])


def _said_of_checkpoints(config: Config) -> str | None:
    """Return a `--set` that is about checkpoints, if there is one."""
    origins = (config.place("checkpoints", *keys).origin for keys in ((), *((key,) for key in _CHECKPOINTS)))
    return next((origin for origin in origins if isinstance(origin, str)), None)


def _contradict(text: str, option: str) -> NoReturn:
    raise click.UsageError(f"--set {text} contradicts {option}; leave one of them out")
