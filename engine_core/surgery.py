"""Let optimizers follow when a model's parameters change: groups, names and state. Knows parameters by name only."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from .errors import ArgumentError
from .moved import moved

__all__ = ["follow_parameters"]

__getattr__ = moved(__name__, "Policy", "replace_modules", "warn_of_nothing", extra="surgery")

Parameters: TypeAlias = Mapping[str, nn.Parameter]
_Kind: TypeAlias = "tuple[str, int | None]"
"""The last part of a parameter's name, and its number of dimensions."""


class _Group:
    """A parameter group of an optimizer, and the parameters it will have."""

    def __init__(self, optimizer: torch.optim.Optimizer, entry: dict[str, Any]) -> None:
        self.optimizer = optimizer
        self.entry = entry
        self.former: list[nn.Parameter] = list(entry["params"])
        self.params: list[nn.Parameter] = []


def follow_parameters(
    optimizers: Iterable[torch.optim.Optimizer],
    before: Parameters,
    after: Parameters,
    sources: Mapping[str, str] | None = None,
) -> None:
    """Give optimizers a model's new parameters in place of the old ones.

    A parameter that is still there keeps its group and its state, even under a new name. One that has the name of an
    old one takes its place, which may be outside all groups. One whose name is gone is dropped with its state. A new
    name joins a group that trains what was nearest to it: in the same module, else in the one around it, and so on.
    Among several groups, those with a parameter of the same last name there (`weight`) are preferred, then those
    with one of as many dimensions, then the last.

    Args:
        before, after: the model's parameters by name, best with all their names (`remove_duplicate=False`).
        sources: for new names, those of old parameters that they are copies of: they join the groups that train these,
            with a copy of what the optimizers keep for them.

    Raises:
        ArgumentError: (a ValueError) if groups of several optimizers remain for a new name, or an optimizer can't
            be changed. Then nothing was changed.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> before = dict(model.named_parameters())
        >>> model[1] = nn.PReLU()
        >>> follow_parameters([optimizer], before, dict(model.named_parameters()))
        >>> optimizer.param_groups[0]["params"][2] is model[1].weight
        True
    """
    groups = [_Group(optimizer, entry) for optimizer in optimizers for entry in optimizer.param_groups]
    if not groups:
        return
    origins = {after[name]: before[source] for name, source in (sources or {}).items()}
    _replace_former(groups, before, after)
    _add_new(groups, before, after, origins)
    changed = [group for group in groups if [*map(id, group.former)] != [*map(id, group.params)]]
    for kind in {type(group.optimizer) for group in changed}:
        # It remembers more about its parameters than their groups and state.
        if issubclass(kind, torch.optim.LBFGS) or kind.__module__.startswith("torch.distributed"):
            raise ArgumentError(
                f"optimizers: {kind.__name__} can't replace parameters once it is made; make it after the surgery"
            )
    names = [(group, _names(group, before, after)) for group in groups if "param_names" in group.entry]
    for group, current in names:  # nothing can fail from here on
        group.entry["param_names"] = current
    for group in changed:
        group.entry["params"][:] = group.params
    for group in changed:
        kept = {parameter for entry in group.optimizer.param_groups for parameter in entry["params"]}
        for parameter in set(group.former) - kept:
            group.optimizer.state.pop(parameter, None)
        for parameter, origin in origins.items():  # in their order, which a saved state shows
            if parameter in kept and origin in group.optimizer.state:
                group.optimizer.state[parameter] = copy.deepcopy(group.optimizer.state[origin])


def _replace_former(groups: Sequence[_Group], before: Parameters, after: Parameters) -> None:
    """Keep what is still there, and replace the rest with the parameters that have their names now."""
    former, present = set(before.values()), set(after.values())
    heirs: dict[nn.Parameter, list[nn.Parameter]] = {p: [] for p in before.values() if p not in present}
    for name, parameter in before.items():
        if parameter in heirs and name in after and after[name] not in former:
            heirs[parameter].append(after[name])
    optimizers = {group.optimizer for group in groups}
    trained = {o: {parameter for entry in o.param_groups for parameter in entry["params"]} for o in optimizers}
    for group in groups:
        for parameter in group.former:
            if parameter not in heirs:
                group.params.append(parameter)
                continue
            joining = [heir for heir in dict.fromkeys(heirs[parameter]) if heir not in trained[group.optimizer]]
            group.params += joining
            trained[group.optimizer].update(joining)


def _add_new(
    groups: Sequence[_Group],
    before: Parameters,
    after: Parameters,
    origins: Mapping[nn.Parameter, nn.Parameter],
) -> None:
    """Add the parameters that take no old one's place."""
    settled = {*before.values(), *(parameter for group in groups for parameter in group.params)}
    new = {name: parameter for parameter, name in _name_of(after).items() if parameter not in settled}
    homes: dict[nn.Parameter, list[_Group]] = {}
    for group in groups:
        for parameter in group.former:
            homes.setdefault(parameter, []).append(group)
    nearest: dict[str, dict[_Group, list[_Kind]]] = {}
    for name, parameter in before.items() if new else ():
        for place, group in itertools.product(_places(name), homes.get(parameter, ())):
            nearest.setdefault(place, {}).setdefault(group, []).append(_kind_of(name, parameter))
    for name, parameter in new.items():
        if parameter in origins:
            joined = homes.get(origins[parameter], [])
        elif name in before:  # whose old parameter stayed elsewhere, or was in no group
            joined = homes.get(before[name], [])
        else:
            around: Mapping[_Group, list[_Kind]] = next(
                (nearest[place] for place in _places(name) if place in nearest), {group: [] for group in groups}
            )
            alike = _most_alike(_kind_of(name, parameter), around)
            joined = [_last_of(name, [group for group in groups if group in alike])]
        for group in joined:
            group.params.append(parameter)


def _places(name: str) -> list[str]:
    """Return the qualified names of the modules around a parameter, the nearest first and `""` last."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]


def _kind_of(name: str, parameter: nn.Parameter) -> _Kind:
    return name.rpartition(".")[2], None if isinstance(parameter, nn.UninitializedParameter) else parameter.dim()


def _most_alike(new: _Kind, around: Mapping[_Group, Sequence[_Kind]]) -> list[_Group]:
    """Return the groups that train what is most like a new parameter: weights and biases are often in two."""
    found = list(around)
    for same in ({group for group in around if any(kind[i] == new[i] for kind in around[group])} for i in range(2)):
        found = [group for group in found if group in same] or found
    return found


def _last_of(name: str, groups: Sequence[_Group]) -> _Group:
    if len({group.optimizer for group in groups}) > 1:
        raise ArgumentError(
            f"optimizers: several of them could train the new parameter {name!r}; make the optimizers after the "
            "surgery (give the Trainer callables that make them)"
        )
    return groups[-1]


def _names(group: _Group, before: Parameters, after: Parameters) -> list[str]:
    """Return the names of a group's parameters: as they are in the model now, or as they were if they are not."""
    given = dict(zip(group.former, group.entry["param_names"], strict=True))
    current = _name_of(after)
    stale = {p for p, name in given.items() if before.get(name) is p and after.get(name) is not p}
    return [current[p] if p in stale or p not in given else given[p] for p in group.params]


def _name_of(parameters: Parameters) -> dict[nn.Parameter, str]:
    """Return the first name of each parameter."""
    names: dict[nn.Parameter, str] = {}
    for name, parameter in parameters.items():
        names.setdefault(parameter, name)
    return names
