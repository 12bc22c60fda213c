"""Which distribution owns a module, class or object: by entry points or, if several claim a package, by files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .distributions import Installed, normalise, ships
from .records import CORE, PREFIX, PluginRecord, Source


class Ownership:
    """The modules that belong to a single distribution, since only its entry points lie in them.

    If several claim a package, their files decide. A namespace that several distributions share belongs to none of
    them, but modules deeper in it may.
    """

    def __init__(self, sources: Mapping[PluginRecord, Source]) -> None:
        self._claimants = claimants_of(sources.items())
        self._claims: dict[str, set[str]] = defaultdict(set)
        for record in sources:
            module = record.module
            contested = len(self._claimants[module.partition(".")[0]]) > 1
            while module and not (contested and record.status == "disabled"):
                self._claims[module].add(record.distribution)
                module = module.rpartition(".")[0]
        self._known: dict[str, str | None] = {}

    def distribution_of(self, plugin: object) -> str | None:
        """Return that of the first class in the MRO shipped by a plugin; the core's only for what the core ships."""
        owners = [self._owner(module) for module in _modules(plugin)]
        return next((owner for owner in owners if owner not in (None, CORE)), None) or (owners[0] if owners else None)

    def _owner(self, module: str) -> str | None:
        if module not in self._known:
            claimants = self._claimants.get(module.partition(".")[0], [])
            self._known[module] = owner_among(module, claimants) or self._only_claimant(module)
        return self._known[module]

    def _only_claimant(self, module: str) -> str | None:
        while module:
            if len(owners := self._claims.get(module, ())) == 1:
                return next(iter(owners))
            module = module.rpartition(".")[0]
        return None


def claimants_of(sources: Iterable[tuple[PluginRecord, Source]]) -> dict[str, list[Installed]]:
    """Return the distributions whose entry points lie in each top-level package."""
    claims: dict[str, dict[str, Installed]] = defaultdict(dict)
    for record, source in sources:
        claims[record.module.partition(".")[0]][record.distribution] = source.installed
    return {package: list(claimants.values()) for package, claimants in claims.items()}


def owner_among(module: str, claimants: Sequence[Installed]) -> str | None:
    """Return the distribution of a module that several claim; None if only one claims it or it can't be decided.

    It is the one that lists the module's file or, if none lists files, the one named like the top-level package.
    """
    package = module.partition(".")[0]
    if package == PREFIX[:-1]:
        return CORE
    if len(claimants) < 2:
        return None
    while module:
        shipping = [claimant.name for claimant in claimants if ships(claimant, module)]
        if shipping:
            return shipping[0] if len(shipping) == 1 else None
        module = module.rpartition(".")[0]
    unknown = [claimant.name for claimant in claimants if ships(claimant, package) is None]
    if len(unknown) == 1:
        return unknown[0]
    return normalise(package) if normalise(package) in unknown else None


def _modules(plugin: object) -> list[str]:
    if isinstance(plugin, type):
        return [cls.__module__ for cls in plugin.__mro__]
    own = getattr(plugin, "__module__", None) if callable(plugin) and hasattr(plugin, "__name__") else None
    return [own] if own else [cls.__module__ for cls in type(plugin).__mro__]
