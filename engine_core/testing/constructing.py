"""Which arguments does `make_algorithm` pass to the algorithm's class?"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from .kit import AlgorithmKit


def recorded(kit: AlgorithmKit) -> tuple[Any, inspect.BoundArguments | None]:
    """Return a new algorithm and the arguments that its constructor was called with, None if that can't be recorded.

    To record it, `__init__` of its class is wrapped while make_algorithm runs.
    """
    cls: Any = type(kit.make_algorithm())
    signature, original = inspect.signature(cls), cls.__init__
    if original is object.__init__:
        return kit.make_algorithm(), None if signature.parameters else signature.bind()
    calls: dict[int, inspect.BoundArguments] = {}

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is cls:
            calls[id(self)] = signature.bind(*args, **kwargs)
        original(self, *args, **kwargs)

    was_own = "__init__" in vars(cls)
    try:
        cls.__init__ = init
    except (TypeError, AttributeError):  # the class forbids it
        return kit.make_algorithm(), None
    try:
        algorithm = kit.make_algorithm()
    finally:
        if was_own:
            cls.__init__ = original
        else:
            del cls.__init__
    return algorithm, calls.get(id(algorithm))
