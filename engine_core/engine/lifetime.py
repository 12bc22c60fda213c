"""The end of a callback's life: which are open, and closing each of them once, whatever happens."""

from __future__ import annotations

import atexit
import functools
import logging
import weakref
from collections.abc import Sequence
from typing import NoReturn

from ..callback import Callback
from ..errors import EngineError
from ..logger import Logger
from ..state import State

log = logging.getLogger("engine_core")

_open: dict[int, weakref.ref[Life]] = {}
"""Which engine opened each callback that is still open, by the callback's id, since it may be unhashable."""


class Life:
    """The callbacks that one engine has opened, with what closing them needs.

    They are closed by the engine, when the engine is collected (even from a cycle, which a callback that refers to its
    engine makes), or at interpreter exit.
    """

    def __init__(self, state: State, logger: Logger) -> None:
        self._state = state
        self._logger = logger
        self._opened: list[Callback] = []

    def open(self, callbacks: Sequence[Callback]) -> None:
        """Mark those callbacks as open that are not yet, or raise EngineError if one is open on another engine."""
        mine = {id(callback) for callback in self._opened}
        new = [callback for callback in callbacks if id(callback) not in mine]
        for callback in new:
            if id(callback) in _open:
                raise EngineError(
                    f"callback {type(callback).__name__} is still open on another engine; "
                    "close that engine first, or make a second instance"
                )
        for callback in new:
            _open[id(callback)] = weakref.ref(self)
            self._opened.append(callback)
        _close_the_rest_at_exit()

    def close(self, listed: Sequence[Callback] = ()) -> None:
        """Call `close` of each callback in order, destinations last, then `post_close` of those that succeeded.

        Args:
            listed: further ones that are closed although no event opened them, unless another engine has them open.
        """
        destinations = {id(destination) for destination in self._logger.destinations}
        both = [*self._opened, *(callback for callback in listed if id(callback) not in _open)]
        opened, self._opened = sorted(both, key=lambda callback: id(callback) in destinations), []
        closed = []
        for callback in opened:
            _open.pop(id(callback), None)
            if _survives(callback, "close", self._state, self._logger):
                closed.append(callback)
        for callback in closed:
            _survives(callback, "post_close")

    __del__ = close


def refuse_to_copy(owner: object, _: object) -> NoReturn:
    """Be the `__reduce_ex__` of what has a life of its own, so that neither `copy` nor `pickle` makes a second one."""
    raise EngineError(
        f"{type(owner).__name__} can't be copied or pickled, since callbacks, hooks and the loader belong to one run: "
        "copy the weights with state.model.state_dict(), and the run with checkpoints (callback checkpoint_saver)"
    )


@functools.cache
def _close_the_rest_at_exit() -> None:
    atexit.register(_close_the_rest)


def _close_the_rest() -> None:
    """Close what is open, the youngest engine first."""
    while _open:
        life = _open.popitem()[1]()
        if life is not None:
            life.close()


def _survives(callback: Callback, what: str, *arguments: object) -> bool:
    method = getattr(callback, what, None)
    try:
        if method is not None:
            method(*arguments)
    except BaseException:  # the others must be closed whatever this one raises
        log.exception("%s of callback %s failed", what, type(callback).__name__)
        return False
    return True
