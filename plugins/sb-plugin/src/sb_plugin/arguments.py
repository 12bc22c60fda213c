"""What arguments may be, checked where they are given."""

from __future__ import annotations

import copy
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from engine_core import Event
from engine_core.arguments import check_key, check_number, check_whole
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError, ArgumentTypeError, suggestion

from .untouched import own_randomness

if TYPE_CHECKING:
    import torch

    from engine_core import State

__all__ = [
    "BN_MODES",
    "LOG_BY",
    "PRECISIONS",
    "REUSES",
    "SCOPES",
    "SCORERS",
    "SELECTORS",
    "Maker",
    "ScorerArgument",
    "Selector",
    "check_choice",
    "check_floor",
    "check_generator_seed",
    "check_interrupt",
    "check_interval",
    "check_keep",
    "check_keys",
    "check_log_by",
    "check_maker",
    "check_momentum",
    "check_multiple_of",
    "check_nets",
    "check_refresh",
    "check_reuse",
    "check_scale_factor",
    "check_scorer",
    "check_scoring",
    "check_selection",
    "check_selector",
    "declared",
    "made_by",
]

SELECTORS = ("composer", "cdf", "topk", "uniform")
SCORERS = ("forward", "stale", "carried", "proxy", "rho")
BY_ID = ("stale", "carried", "rho")
BN_MODES = ("frozen", "eval", "train")
PRECISIONS = ("engine", "fp32", "bf16")
REUSES = ("off", "auto", "on")
SCOPES = ("global", "rank")
LOG_BY = ("class", "loss")
_NETS = {
    "proxy": "a small net such as nn.Linear(8, 2), or the import path of a function that makes it, 'mynets:small'",
    "irreducible": "the losses (examples,) by a model that was trained on other data, or that model",
}
_OR_A_FUNCTION = ", or, in Python, a function"

Selector: TypeAlias = "str | Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]"
"""A distribution by name, or a function that takes scores (n,), k and a generator, and returns k positions (k,)."""

ScorerArgument: TypeAlias = "str | Callable[[Any, State], torch.Tensor]"
"""Where scores come from, by name, or a function that takes the batch and the State, and returns scores (n,)."""

Maker: TypeAlias = Any
"""An nn.Module or a tensor, or a function without arguments that makes what is wanted."""


def check_choice(name: str, value: object, choices: Sequence[str], otherwise: str = "") -> str:
    """Return `value` if it is one of `choices`.

    Args:
        otherwise: what else it may be, for the message.
    """
    if not isinstance(value, str):
        kind = type(value).__name__
        raise ArgumentTypeError(f"{name}={value!r} ({kind}) has to be one of {_listed(choices)}{otherwise}")
    if value not in choices:
        near = suggestion(value, choices)
        raise ArgumentError(f"{name}={value!r} has to be one of {_listed(choices)}{otherwise}{near}")
    return value


def check_selector(selector: Any) -> Selector:
    """Return the name of a distribution, or a function that draws."""
    if not callable(selector):
        return check_choice("selector", selector, SELECTORS, _OR_A_FUNCTION)
    _check_takes("selector", selector, "scores", "k", "generator")
    function: Selector = selector
    return function


def check_scorer(scorer: Any) -> ScorerArgument:
    """Return the name of a scorer, or a function that scores."""
    if not callable(scorer):
        return check_choice("scorer", scorer, SCORERS, _OR_A_FUNCTION)
    _check_takes("scorer", scorer, "batch", "state")
    function: ScorerArgument = scorer
    return function


def check_maker(name: str, given: Any) -> Maker:
    """Return a net, a tensor, or the function that makes it, which may be given by its import path; None: nothing.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for anything else.
    """
    if isinstance(given, str):
        try:
            given = pkgutil.resolve_name(given)
        except (ImportError, AttributeError, ValueError) as error:
            raise ArgumentError(f"{name}={given!r} can't be imported: {error}; write 'module:function'") from error
    if given is None or hasattr(given, "shape") or hasattr(given, "state_dict"):
        return given
    if not callable(given):
        raise ArgumentTypeError(f"{name}={given!r:.80} has to be a net, a function that makes it, or 'module:function'")
    if not isinstance(given, type):
        _check_takes(name, given)
    return given


def made_by(maker: Maker, seed: int) -> Any:
    """Return what a function makes, with draws from `seed`, or a copy of what was given."""
    if isinstance(maker, type) or (callable(maker) and not hasattr(maker, "state_dict")):
        with own_randomness(seed):
            return maker()
    return copy.deepcopy(maker)


def _check_takes(name: str, function: Any, *parameters: str) -> None:
    """Raise for a function that can't be called with these; its first call would be in the middle of training."""
    what, call = getattr(function, "__qualname__", type(function).__name__), f"({', '.join(parameters)})"
    if isinstance(function, type):
        raise ArgumentTypeError(f"{name}={what} is a class: give a function {call}, or an instance to call like this")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some builtins have none
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise ArgumentTypeError(f"{name}={what} can't be called with {call}: {error}") from error


def check_floor(floor: object) -> float:
    """Return the share of the uniform distribution, if it is in [0, 1)."""
    return check_number("floor", floor, "[0, 1)", "the share of the uniform distribution that is mixed in")


def check_multiple_of(multiple_of: object) -> int:
    """Return what the number of kept rows is a multiple of, if it is a positive whole number."""
    return check_whole("multiple_of", multiple_of, "[1, inf)", "the number of kept rows is rounded down to a multiple")


def check_refresh(refresh: object) -> int:
    """Return for how many visits a score is used, if it is a positive whole number."""
    return check_whole("refresh", refresh, "[1, inf)", "for how many visits of an example its score is used")


def check_momentum(momentum: object) -> float:
    """Return the share of the old value in a carried loss, if it is in [0, 1)."""
    return check_number("momentum", momentum, "[0, 1)", "the share of the old value in a carried loss")


def check_generator_seed(seed: object) -> int | None:
    """Return the seed that replaces the run's, if there is one."""
    if seed is None:
        return None
    return check_whole("generator_seed", seed, "[0, inf)", "the seed of the draws; None: the run's")


def check_log_by(log_by: object, selector: Selector, scorer: ScorerArgument) -> str | None:
    """Return what kept rows are logged by, if anything, and if the scorer gives it."""
    by = None if log_by is None else check_choice("log_by", log_by, LOG_BY, ", or None")
    if by == "loss" and (selector == "uniform" or callable(scorer) or scorer == "rho"):
        who = "scorer='rho' gives" if scorer == "rho" else "your own scorer gives"
        why = "selector='uniform' draws without scores" if selector == "uniform" else f"{who} others"
        raise ArgumentError(f"log_by='loss' needs the losses of rows, and {why}: use log_by='class', or leave it out")
    return by


def check_selection(selector: Selector, floor: float) -> None:
    """Raise if there is no built-in distribution to mix `floor` into."""
    if not floor:
        return
    if callable(selector):
        raise ArgumentError(f"floor={floor!r} is not used with your own selector: mix there, or set floor=0")
    if selector == "uniform":
        raise ArgumentError(f"floor={floor!r} mixes with the uniform law, which selector='uniform' is: set floor=0")


def check_nets(scorer: ScorerArgument, proxy: Maker, irreducible: Maker) -> None:
    """Raise unless each of the other nets is given for its scorer, and for that alone."""
    for name, given, of in (("proxy", proxy, "proxy"), ("irreducible", irreducible, "rho")):
        if scorer == of and given is None:
            raise ArgumentError(f"scorer={of!r} needs {name}, {_NETS[name]}")
        if scorer != of and given is not None:
            raise ArgumentError(f"{name} is not used with scorer={scorer!r}: set scorer={of!r}, or leave {name} out")


def check_scoring(settings: Mapping[str, Any]) -> None:
    """Raise for scoring arguments that exclude each other, or that would not be used.

    Args:
        settings: by the names of the constructor's arguments, each checked by itself.
    """
    selector, scorer = settings["selector"], settings["scorer"]
    if selector == "uniform" and scorer != "forward":
        raise ArgumentError(f"scorer={scorer!r} is not used with selector='uniform', which draws without scores")
    if scorer in ("stale", "carried") and settings["index_key"] is None:
        raise ArgumentError(
            f"scorer={scorer!r} keeps scores by example and needs index_key, where the ids are in a batch: "
            "sb_plugin.WithIndex(dataset) puts them last in each item, at index_key=2 for pairs"
        )
    forward = "a scoring forward, and there is none with " + (
        "selector='uniform'" if selector == "uniform" else f"scorer={scorer!r}"
    )
    without_forward = selector == "uniform" or scorer in ("carried", "proxy")
    takes_scale = scorer in ("forward", "stale") and not without_forward
    idle: tuple[tuple[str, tuple[object, ...], bool, str], ...] = (
        ("index_key", (None,), scorer not in BY_ID, "scorer='stale', scorer='carried' or scorer='rho'"),
        ("refresh", (3,), scorer != "stale", "scorer='stale'"),
        ("momentum", (0.5,), scorer != "carried", "scorer='carried'"),
        ("scale_factor", (0.5, 1), not takes_scale, "scorer='forward' or scorer='stale'"),
        ("bn", ("frozen",), without_forward, forward),
        ("precision", ("engine",), without_forward, forward),
    )
    for name, harmless, is_unused, needed in idle:
        if is_unused and settings[name] not in harmless:
            raise ArgumentError(f"{name}={settings[name]!r} needs {needed}; leave it out")


def check_reuse(settings: Mapping[str, Any]) -> None:
    """Raise if the outputs of the scoring forward are to be reused, and it is not what the step computes."""
    reuse = settings["reuse"]
    if reuse == "off":
        return
    needs: tuple[tuple[str, object], ...] = (
        ("scorer", "forward"),
        ("scale_factor", 1),
        ("bn", "frozen"),
        ("precision", "engine"),
    )
    for name, value in needs:
        if settings[name] != value:
            raise ArgumentError(
                f"reuse={reuse!r} reuses what the scoring forward computed, which has to be what the step would "
                f"compute: that needs {name}={value!r}, not {settings[name]!r}"
            )
    if settings["selector"] == "uniform":
        raise ArgumentError(f"reuse={reuse!r} needs a scoring forward, and there is none with selector='uniform'")


def declared(settings: Mapping[str, Any]) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """Return the events at which there may be something to do, and what else the loop has to offer.

    Args:
        settings: by the names of the constructor's arguments, each checked.

    Example:
        >>> given = {"keep": 0.5, "selector": "uniform", "scorer": "forward", "reuse": "off", "scope": "rank"}
        >>> declared({**given, "start": 0.5, "end": 0.9})[1]
        ('duration',)
    """
    is_uniform, is_carried = settings["selector"] == "uniform", settings["scorer"] == "carried"
    is_global = settings["scope"] == "global"
    events = {Event.INIT, Event.FIT_START, Event.AFTER_DATALOADER, Event.FIT_END}
    needs: tuple[str, ...] = ()
    if settings["keep"] != 1:  # else nothing is selected
        if is_carried:
            events |= {Event.BEFORE_TRAIN_BATCH, Event.AFTER_LOSS, *([Event.BATCH_END] if is_global else ())}
        if settings["reuse"] != "off":
            events |= {Event.BEFORE_FORWARD, Event.AFTER_FORWARD}
        wanted = {
            # Each process decides by its own rows whether it scores them.
            "own_forward": not (is_global or is_uniform or is_carried or settings["scorer"] == "proxy"),
            "duration": (settings["start"], settings["end"]) != (0, 1),
            "whole_batch": is_carried,  # it counts at BEFORE_TRAIN_BATCH the rows whose losses will come
            "row_loss": not is_uniform,
            "global_batch": is_global,
        }
        needs = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    return tuple(event for event in Event if event in events), needs


def _listed(choices: Sequence[str]) -> str:
    return ", ".join(map(repr, choices))


def check_keep(keep: object) -> float:
    """Return the fraction of rows to keep, if it is in (0, 1]."""
    return check_number("keep", keep, "(0, 1]", "the fraction of rows to keep, such as 0.5")


def check_scale_factor(scale_factor: object) -> float:
    """Return the factor for the size of the scoring input, if it is in (0, 1]."""
    return check_number("scale_factor", scale_factor, "(0, 1]", "0.5 scores at half the size, 1 at full size")


def check_interval(start: object, end: object) -> tuple[float, float]:
    """Return both ends of the interval of training, if 0 <= start < end <= 1."""
    what = "a fraction of the whole training"
    first, last = check_number("start", start, "[0, 1]", what), check_number("end", end, "[0, 1]", what)
    if first >= last:
        raise ArgumentError(f"start={first!r} has to be before end={last!r}, or no step is ever selected")
    return first, last


def check_keys(
    input_key: BatchKey, target_key: BatchKey, index_key: BatchKey | None
) -> tuple[BatchKey, BatchKey, BatchKey | None]:
    """Return where inputs, targets and ids are in a batch; there may be no ids."""
    check_key("input_key", input_key)
    check_key("target_key", target_key)
    if index_key is not None:
        check_key("index_key", index_key)
        if index_key in (input_key, target_key):
            raise ArgumentError(
                f"index_key={index_key!r} is where inputs or targets are, but has to be where the ids of the examples "
                "are; sb_plugin.WithIndex(dataset) puts them last in each item, at index_key=2 for pairs"
            )
    return input_key, target_key, index_key


def check_interrupt(interrupt: object) -> int:
    """Return the interval of ordinary steps, if it is a whole number, at least 0."""
    return check_whole("interrupt", interrupt, "[0, inf)", "batches from one ordinary step to the next; 0: none")
