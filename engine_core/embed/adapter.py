"""What an adapter to another library's trainer begins with: the names that it uses there, its loop, its patches."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..batch import Batches
from ..errors import ArgumentTypeError, UnsupportedError
from ..logger import Logger
from ..messages import enumerated
from ..needs import Offers
from ..objective import check_loss_fn, check_own_objective
from ..randomness import check_seed
from ..registry import as_plugins, installed_version, normalise, required_by
from ..state import State
from .loop import EmbeddedLoop


def make_loop(
    offers: Offers,
    *,
    algorithms: Any = (),
    callbacks: Any = (),
    loggers: Any = (),
    algorithm_passes: Any = None,
    batches: Batches | None = None,
    **fields: Any,
) -> EmbeddedLoop:
    """Return a loop for what a user lists: instances, names of installed plugins, and `(name, arguments)` pairs.

    Args:
        offers: what is known of the loop so far; say the rest by `EmbeddedLoop.offer`.
        batches: what a row of a batch is, where its tensors do not tell.
        fields: those of State that are known.

    Raises:
        ArgumentError, ArgumentTypeError: for a seed, a `loss_fn` or `batches` that is none.
        PluginError: for a name that is not installed, with the nearest.
        UnsupportedError: (an EngineError) if one of them needs what the loop does not offer.

    Example:
        >>> from engine_core.needs import EVERYTHING
        >>> make_loop(EVERYTHING, max_duration="3ep").state.max_duration
        Time('3ep')
    """
    rank = fields.get("rank", 0)
    check_loss_fn(fields.get("loss_fn"))
    if (objective := fields.get("objective")) is not None:
        check_own_objective(objective, fields.get("loss_fn"))
    check_seed(fields.get("seed"))
    state = State(
        batches=check_batches(batches),
        algorithms=as_plugins("algorithms", algorithms, "algorithms"),
        callbacks=as_plugins("callbacks", callbacks, "callbacks", rank),
        **fields,
    )
    logger = Logger(as_plugins("callbacks", loggers, "loggers", rank))
    return EmbeddedLoop(state, offers, logger=logger, algorithm_passes=algorithm_passes)


def check_batches(batches: Any) -> Batches:
    """Return what a user says of batches, the strict rule if that is nothing.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but `Batches`.
    """
    if batches is None or isinstance(batches, Batches):
        return batches or Batches()
    raise ArgumentTypeError(f"batches has to be such as engine_core.Batches(shared=('x',)), not {batches!r}")


def check_names(adapter: str, library: str, names: Iterable[str]) -> None:
    """Raise unless a library still has the names that are not public and that an adapter uses all the same.

    Args:
        adapter: the adapter's distribution, which declares a range of the library's versions.
        library: the library's distribution.
        names: each as `module:Class.attribute`.

    Raises:
        UnsupportedError: (an EngineError) with the names that are gone, the installed version, and the range.

    Example:
        >>> check_names("engine-core", "pluggy", ["pluggy:PluginManager.hook_of"])
        Traceback (most recent call last):
        engine_core.errors.UnsupportedError: engine-core can't work with pluggy ...: it lacks PluginManager.hook_of...
    """
    gone = [name.partition(":")[2] for name in names if not _is_there(name)]
    if gone:
        raise UnsupportedError(
            f"{adapter} can't work with {library} {installed_version(library)}: it lacks {enumerated(gone)}; install "
            f"{_range_of(adapter, library)}, or another version of {adapter}"
        )


def _is_there(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError):
        return False
    return True


def _range_of(adapter: str, library: str) -> str:
    """Return what the adapter's metadata require of the library."""
    for requirement in required_by(adapter):
        if normalise(requirement).startswith(normalise(library)):
            return f"{requirement.partition(';')[0].strip()!r}"
    return f"a {library} that it was made for"


class Patched(partial[Any]):
    """Calls `wrapper(original, ...)`, and has the attributes and the signature of the original, which a copy is."""

    def __getattr__(self, name: str) -> Any:
        # The last: what a `wrapper` that is a partial itself was given comes before it.
        return self.args[-1] if name == "__wrapped__" else getattr(self.args[-1], name)

    def __deepcopy__(self, memo: Any) -> Any:
        """Return a copy of the original: a copy of its owner is not ours."""
        return copy.deepcopy(self.args[-1], memo)


@contextmanager
def patched(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Let `owner.<name>(...)` call `wrapper(original, ...)` within the block; then `vars(owner)` is as it was.

    Example:
        >>> class Greeter:
        ...     def greet(self, name):
        ...         return f"Hello {name}"
        >>> greeter = Greeter()
        >>> with patched(greeter, "greet", lambda original, name: original(name).upper()):
        ...     greeter.greet("Ada")
        'HELLO ADA'
        >>> greeter.greet("Ada"), vars(greeter)
        ('Hello Ada', {})
    """
    own, missing = vars(owner), object()
    former = own.get(name, missing)
    own[name] = Patched(wrapper, getattr(owner, name))
    try:
        yield
    finally:
        own.pop(name, None) if former is missing else own.__setitem__(name, former)
