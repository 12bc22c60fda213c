"""What can go wrong, as types, and the two things every message needs: a near name and a note. A leaf."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EngineError(Exception):
    """Base of every error that engine-core raises on purpose."""


class ArgumentError(EngineError, ValueError):
    """An argument has an impossible value."""


class ArgumentTypeError(EngineError, TypeError):
    """An argument has an impossible type."""


class ObjectiveError(ArgumentError):
    """The loss of a batch is not the sum of the losses of its parts, so that it can't be computed in parts."""


class UnwritableError(ArgumentError):
    """The files of a run can't be written, as on a full disk."""


class SameRunError(ArgumentError):
    """A run was to start in a folder that holds this very run."""


class MatchError(ArgumentTypeError):
    """An algorithm's `match` returned neither True nor False."""


class BatchKeyError(EngineError, LookupError):
    """A batch has no item under the key that was asked for."""


class ClosedEngineError(EngineError, RuntimeError):
    """An event was fired on an engine that is closed."""


class OrderError(EngineError):
    """Declared constraints form a cycle, or a pass broke one of them."""


class UnsupportedError(EngineError):
    """An algorithm or a callback needs what the loop does not offer; the message has a line for each."""


class PluginError(EngineError):
    """A requested plugin can't be used."""


class MetadataError(EngineError, ValueError):
    """Metadata, or a config made in Python, has an impossible or an unknown field."""


class ConfigError(EngineError, ValueError):
    """A config file is invalid; the message names file, line and key."""


class CheckpointError(EngineError):
    """A checkpoint can't be written, is invalid, or belongs to another run."""


class NonFiniteLossError(EngineError):
    """A loss or a gradient is NaN or infinite, and training is configured to stop on that."""


class RankError(EngineError):
    """This rank ends because of another one, which the message names."""


class OutOfMemoryError(EngineError, MemoryError):
    """Memory ran out; the message names the sizes and what to set."""


class CheckpointWarning(UserWarning):
    """A run can't be saved, or can't be resumed exactly."""


class DestinationWarning(UserWarning):
    """A logger destination raised, and training continues without it having received the value."""


class NonFiniteLossWarning(UserWarning):
    """The training loss became NaN or infinite."""


class OrderWarning(UserWarning):
    """The user's own pass breaks a declared constraint, or a name in an order matches no algorithm."""


class HookNameWarning(UserWarning):
    """A callback has a public method whose name is nearly an event's."""


class IdleAlgorithmWarning(UserWarning):
    """An algorithm was asked throughout a training and never matched."""


class AuditWarning(UserWarning):
    """An algorithm broke a promise about what it writes or restores."""


class UncountedRowsWarning(UserWarning):
    """The rows of a batch can't be counted, and training continues without; the message says what to write."""


class NothingReplacedWarning(UserWarning):
    """A surgery algorithm found nothing in the model that it could replace."""


class UntrainedParametersWarning(UserWarning):
    """Trainable parameters of the model are in no optimizer."""


class UnreadItemWarning(UserWarning):
    """Nothing reads an item of the batch: neither the model, the loss, nor an algorithm."""


class DurationWarning(UserWarning):
    """A length does not fit that of the whole training: of a `fit` at or past its end, or of a scheduler."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, else the sorted list of what is known."""
    options = sorted(set(known))
    shown = ", ".join(option if option.isprintable() else repr(option) for option in options)
    return suggestion(name, options) or (f"; known: {shown}" if options else "; none is known")


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, or nothing."""
    near = nearest(name, known, cutoff)
    return f"; did you mean {near!r}?" if near is not None else ""


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most like `name`, if any; compared as written first, then ignoring case."""
    options = list(known)
    for way in (str, str.lower):
        written = {way(option): option for option in options}
        if near := difflib.get_close_matches(way(name), written, n=1, cutoff=cutoff):
            return written[near[0]]
    return None


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to `error` as `BaseException.add_note` does, on Python 3.10 too."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]
