"""Can the states of a run be saved? Asked before it trains. Writes nothing."""

from __future__ import annotations

from typing import Any

from ..algorithm import unique_names
from ..logger import Logger
from ..observed_list import ObservedList
from ..state import State


def check_states(state: State, logger: Logger) -> None:
    """Raise if a state as it is now can't be saved: each save would fail, and there would never be a checkpoint.

    Lazy parameters are left out, since the first batch creates them.
    """
    from torch.nn import Module  # noqa: PLC0415  as above
    from torch.nn.parameter import is_lazy  # noqa: PLC0415

    from ..checkpoint import flatten  # noqa: PLC0415
    from ..parallel import in_pieces  # noqa: PLC0415

    modules = (("model", state.model), ("loss_fn", state.loss_fn))
    named: list[tuple[str, Any]] = [(name, owner) for name, owner in modules if isinstance(owner, Module)]
    listeners = [*state.callbacks, *logger.destinations]
    for owners in (state.algorithms, listeners, state.optimizers, state.schedulers):
        named += zip(unique_names(ObservedList.of(owners)), ObservedList.of(owners), strict=True)
    for name, owner in named:
        try:
            own: Any = in_pieces(getattr(owner, "state_dict", dict)())
        except Exception:  # noqa: BLE001, S112  the first save reports it, and isolates a destination
            continue
        for key, value in own.items() if isinstance(own, dict) else ():
            if not is_lazy(value):
                flatten(value, f"{name}.state_dict()[{key!r}]", {})
        if not isinstance(owner, Module):
            flatten(own, f"{name}.state_dict()", {})
