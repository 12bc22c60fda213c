"""A list that calls its observers before it changes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["ObservedList"]

T = TypeVar("T")


class ObservedList(list[T]):
    """A list that calls its observers before each change, so that an engine sees when it is edited in place."""

    __slots__ = ("_observers",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(items)
        self._observers: list[Callable[[], None]] = []

    @classmethod
    def of(cls, given: Any) -> ObservedList[Any]:
        """Return one object, several, or none (None) as an ObservedList; an ObservedList is returned as it is."""
        if isinstance(given, cls):
            return given
        return cls(given if isinstance(given, (list, tuple)) else [] if given is None else [given])

    def observe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` at each change from now on."""
        if on_change not in self._observers:
            self._observers.append(on_change)

    def stop_observing(self, on_change: Callable[[], None]) -> None:
        """Stop calling `on_change`."""
        if on_change in self._observers:
            self._observers.remove(on_change)

    def hand_over(self, successor: ObservedList[Any]) -> None:
        """Call the observers, because `successor` replaces this list."""
        if successor is not self:
            self._changed()

    def _changed(self) -> None:
        for on_change in self._observers:
            on_change()

    def __reduce__(self) -> tuple[type[ObservedList[T]], tuple[list[T]]]:
        return type(self), (list(self),)


def _announcing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of `list` call the observers first."""

    @functools.wraps(method)
    def call(self: ObservedList[Any], *args: Any, **options: Any) -> Any:
        self._changed()
        return method(self, *args, **options)

    return call


_CHANGES = "append extend insert remove pop clear reverse sort __setitem__ __delitem__ __iadd__ __imul__"
for _name in _CHANGES.split():
    setattr(ObservedList, _name, _announcing(getattr(list, _name)))
