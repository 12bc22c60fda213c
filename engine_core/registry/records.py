"""The record of an installed plugin: its name, its distribution, whether it may be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["algorithms", "passes", "callbacks", "loops", "commands"]
Status = Literal["available", "disabled", "ambiguous", "broken"]
KINDS: tuple[Kind, ...] = ("algorithms", "passes", "callbacks", "loops", "commands")
CORE, PREFIX = "engine-core", "engine_core."
ALLOW, DENY = "ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"


class Origin(NamedTuple):
    """The distribution that ships something, and its version; as text, `some-plugin 1.2`."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    @classmethod
    def of(cls, distribution: str | None, version: str | None) -> Origin | None:
        """Return what was saved as two values; None: the user's own."""
        return cls(distribution, version or "?") if distribution else None


def display_name(name: str, origin: Origin | None) -> str:
    """Return a name with its origin as messages show it, `Crop (some-plugin 1.2)`; None: the user's own."""
    return name if origin is None else f"{name} ({origin})"


@dataclass(frozen=True)
class PluginRecord:
    """One entry point: its name, its distribution, and whether it can be used.

    Args:
        kind: `algorithms`, `passes`, `callbacks`, `loops`, which say what a training loop offers, or `commands`.
        name: the entry point's name, which is also the plugin's.
        distribution, version: what ships it.
        entry_point: its value, `module:attribute`.
        status: `available`; `disabled` by the environment; `ambiguous`: others claim the bare name too;
            `broken`: it can't be loaded, as metadata or an attempt showed.
        reason: why it is not simply available, and what to do.
    """

    kind: Kind
    name: str
    distribution: str
    version: str
    entry_point: str
    status: Status = "available"
    reason: str = ""

    @property
    def qualified_name(self) -> str:
        """The distribution and the name with a colon between them, which no other distribution can claim."""
        return f"{self.distribution}:{self.name}"

    @property
    def module(self) -> str:
        """The module that the entry point names."""
        return self.entry_point.partition(":")[0]

    @property
    def attribute(self) -> str:
        """What the entry point names in its module, dotted if it is inside a class."""
        return self.entry_point.partition(":")[2]

    @property
    def origin(self) -> Origin:
        """The distribution that ships it."""
        return Origin(self.distribution, self.version)

    @property
    def title(self) -> str:
        """The kind, name, distribution and version, as messages show them."""
        singular = "pass" if self.kind == "passes" else self.kind[:-1]
        return f"{singular} {self.name!r} of {self.origin}"
