"""Can the states of a run be saved, and do all ranks see the folder? Asked before it trains."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Any

from ..algorithm import unique_names
from ..errors import CheckpointError
from ..logger import Logger
from ..observed_list import ObservedList
from ..ranks import Ranks
from ..state import State


def check_states(state: State, logger: Logger) -> None:
    """Raise if a state as it is now can't be saved: each save would fail, and there would never be a checkpoint.

    Lazy parameters are left out, since the first batch creates them.
    """
    from torch.nn import Module  # noqa: PLC0415  as above
    from torch.nn.parameter import is_lazy  # noqa: PLC0415

    from ..checkpoint import check_weight, flatten  # noqa: PLC0415
    from ..parallel import in_slices  # noqa: PLC0415

    modules = (("model", state.model), ("loss_fn", state.loss_fn))
    named: list[tuple[str, Any]] = [(name, owner) for name, owner in modules if isinstance(owner, Module)]
    listeners = [*state.callbacks, *logger.destinations]
    for owners in (state.algorithms, listeners, state.optimizers, state.schedulers):
        named += zip(unique_names(ObservedList.of(owners)), ObservedList.of(owners), strict=True)
    for name, owner in named:
        try:
            own: Any = in_slices(getattr(owner, "state_dict", dict)())
        except Exception:  # noqa: BLE001, S112  the first save reports it, and isolates a destination
            continue
        for key, value in own.items() if isinstance(own, dict) else ():
            if not is_lazy(value):
                flatten(value, f"{name}.state_dict()[{key!r}]", {})
                if name == "model":
                    check_weight(key, value)
        if not isinstance(owner, Module):
            flatten(own, f"{name}.state_dict()", {})


def check_folder(folder: Path, ranks: Ranks, *, writes: bool) -> None:
    """Raise on all ranks if one of them does not see what rank 0 writes in the folder, from which all resume.

    Args:
        writes: do all ranks write there? Then they try it.
    """
    if ranks.size == 1:
        return
    # Of this name, the saver removes it if the process is killed here.
    token = folder / ranks.first(f".ep-{secrets.token_hex(8)}.new")
    ranks.decide(token.mkdir)
    why = _why_unusable(token / str(ranks.rank), writes=writes)
    reasons = ranks.each(why)
    if ranks.rank == 0:
        shutil.rmtree(token, ignore_errors=True)
    if found := [f"rank {rank} {why}" for rank, why in enumerate(reasons) if why]:
        raise CheckpointError(
            f"{str(folder)!r} has to be one folder for all ranks, since each of them resumes from it: "
            f"{'; '.join(found)}; save to a file system that all machines share"
        )


def _why_unusable(file: Path, *, writes: bool) -> str | None:
    if not file.parent.is_dir():
        return "does not see what rank 0 writes there"
    try:
        if writes:
            file.touch()
    except OSError as error:
        return f"can't write there ({error.strerror})"
    return None
