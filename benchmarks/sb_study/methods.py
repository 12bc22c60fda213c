"""The methods of the study by name: what each trains with, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from weighting import ChangeKeep, ForgetAtStart, KeepTheHardest, Reweight

from engine_core import Algorithm, Callback
from sb_plugin import SelectiveBackprop

Parts = tuple[list[Algorithm], list[Callback]]


class Method(NamedTuple):
    """What makes a run.

    Args:
        parts: makes algorithms and callbacks, new ones for each run, from its number of epochs.
        kind: which lengths of the case it runs at: `vanilla`, `pruned`, or fewer for a `variant`.
        load: rows of the loader's batch, as a share of the case's batch size.
        trained: the rows of a batch that the learning rate is chosen for, as such a share.
    """

    parts: Callable[[float], Parts]
    kind: str = "pruned"
    load: float = 1
    trained: float = 1


ALWAYS: dict[str, Any] = {"start": 0.1, "end": 1.0, "interrupt": 0, "keep": 0.5, "scale_factor": 1}
CARRIED: dict[str, Any] = {**ALWAYS, "scorer": "carried", "index_key": 2}
UNPRUNED_END: dict[str, Any] = {**CARRIED, "selector": "cdf", "end": 0.9}


def _vanilla(epochs: float) -> Parts:
    return [], []


def _selective(given: dict[str, Any], epochs: float) -> Parts:
    return [SelectiveBackprop(**given)], []


def _selective_with(callback: Callable[[SelectiveBackprop], Callback], epochs: float) -> Parts:
    algorithm = SelectiveBackprop(**CARRIED)
    return [algorithm], [callback(algorithm)]


def _whole_first_epoch(epochs: float) -> Parts:
    return [SelectiveBackprop(**{**CARRIED, "start": min(0.5, 1 / epochs)})], []


def _infobatch(keep: float, share: float, end: float, epochs: float) -> Parts:
    selector = KeepTheHardest(share)
    return [SelectiveBackprop(**{**CARRIED, "keep": keep, "end": end, "selector": selector}), Reweight(selector)], []


def _method(given: dict[str, Any], kind: str = "pruned", load: float = 1, trained: float = 1) -> Method:
    return Method(partial(_selective, given), kind, load, trained)


METHODS: dict[str, Method] = {
    "vanilla": Method(_vanilla, "vanilla"),
    "vanilla, half batch": Method(_vanilla, "vanilla", 1 / 2, 1 / 2),
    "vanilla, quarter batch": Method(_vanilla, "vanilla", 1 / 4, 1 / 4),
    "defaults": _method({}),
    "composer": _method(ALWAYS),
    "uniform": _method({**ALWAYS, "selector": "uniform"}),
    "stale": _method({**ALWAYS, "scorer": "stale", "refresh": 3, "index_key": 2}),
    "carried": _method(CARRIED),
    "cdf": _method({**ALWAYS, "selector": "cdf"}, "variant"),
    "carried, cdf": _method({**CARRIED, "selector": "cdf"}, "variant"),
    "carried, rate of half": _method(CARRIED, "variant", trained=1 / 2),
    "carried, cdf, rate of half": _method({**CARRIED, "selector": "cdf"}, "variant", trained=1 / 2),
    "carried, topk, floor .2": _method({**CARRIED, "selector": "topk", "floor": 0.2}, "variant"),
    "carried, floor .2": _method({**CARRIED, "floor": 0.2}, "variant"),
    "carried, keep .25": _method({**CARRIED, "keep": 0.25}, "variant"),
    "carried, keep .75": _method({**CARRIED, "keep": 0.75}, "variant"),
    "carried, end .9": _method({**CARRIED, "end": 0.9}, "variant"),
    "carried, cdf, end .9": _method(UNPRUNED_END, "variant"),
    "carried, cdf, end .9, rate of half": _method(UNPRUNED_END, "variant", trained=1 / 2),
    "carried, keep .75 to .25": Method(partial(_selective_with, partial(ChangeKeep, first=0.75, last=0.25)), "variant"),
    "carried, keep .25 to .75": Method(partial(_selective_with, partial(ChangeKeep, first=0.25, last=0.75)), "variant"),
    "carried, whole first epoch": Method(_whole_first_epoch, "variant"),
    "carried, cold table": Method(partial(_selective_with, ForgetAtStart), "variant"),
    "carried, double batch": _method(CARRIED, "variant", 2),
    "infobatch": Method(partial(_infobatch, 0.5, 0.25, 1.0), "variant"),
    "infobatch, keep .625, end .875": Method(partial(_infobatch, 0.625, 0.25, 0.875), "variant"),
}
