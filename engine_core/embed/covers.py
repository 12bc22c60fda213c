"""What stands before an object's attribute for a while, without a change to its class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any


class Cover(partial[Any]):
    """Calls `around(original, ...)`, and has the attributes and the signature of the original, which a copy is."""

    def __getattr__(self, name: str) -> Any:
        # The last: what an `around` that is a partial itself was given comes before it.
        return self.args[-1] if name == "__wrapped__" else getattr(self.args[-1], name)

    def __deepcopy__(self, memo: Any) -> Any:
        """Return a copy of the original: a copy of its owner is not ours."""
        return copy.deepcopy(self.args[-1], memo)


def cover(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Let `owner.<name>(...)` call `around(original, ...)` until the stack is closed.

    `vars(owner)` is then as it was before.

    Example:
        >>> class Greeter:
        ...     def greet(self, name):
        ...         return f"Hello {name}"
        >>> greeter = Greeter()
        >>> with ExitStack() as stack:
        ...     cover(stack, greeter, "greet", lambda original, name: original(name).upper())
        ...     greeter.greet("Ada")
        'HELLO ADA'
        >>> greeter.greet("Ada"), vars(greeter)
        ('Hello Ada', {})
    """
    own = vars(owner)
    stack.callback(own.__setitem__, name, own[name]) if name in own else stack.callback(own.pop, name, None)
    own[name] = Cover(around, getattr(owner, name))
