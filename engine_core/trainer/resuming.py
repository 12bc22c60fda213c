"""Find the checkpoint that a Trainer resumes, and check that this run matches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..algorithm import unique_names
from ..arguments import check_flag, path_of
from ..callback import saver_folders
from ..checkpoint import (
    Checkpoint,
    attempt_of,
    clock_of,
    has_checkpoint,
    open_content,
    read_content,
    read_manifest,
    read_resolved,
)
from ..errors import ArgumentError, CheckpointError, CheckpointWarning, add_note, did_you_mean
from ..event import Event
from ..loop import prepare_to_load
from ..messages import is_of_user, warn
from ..randomness import check_seed
from ..ranks import Ranks
from .manifest import describe_run, differences, missing_algorithms, other_length, other_optimizers
from .saved import put_back, resume_feed
from .session import Session
from .weights import differing_modes, load_weights

_POLICIES = ("error", "warn", "adopt")


@dataclass(frozen=True)
class Resumed:
    """A checkpoint to start from, and how to load it."""

    content: Checkpoint
    weights_only: bool
    strict: bool
    changed: str
    path: Path
    is_own: bool = False
    """Was it saved by one of this run's own savers?"""

    def seed(self, given: int | None) -> int:
        """Return the seed of the saved run, which decides what algorithms draw."""
        if self.weights_only:
            return check_seed(given)
        saved = self.content.manifest.get("seed")
        if type(saved) is not int or not 0 <= saved < 2**63:
            raise CheckpointError(f"the checkpoint's manifest has an invalid seed: {saved!r:.80}")
        return saved

    def resume(self, session: Session, seed: int | None) -> None:
        """Load the checkpoint, fire AFTER_LOAD, restore generators and loader; `seed` is what the user asked for."""
        if self.weights_only:
            prepare_to_load(session.engine, self.content.model)
            load_weights(session.state.model, self.content.model, strict=self.strict, casts=True)
            session.engine.run_event(Event.AFTER_LOAD)
            return
        with _blaming_the_checkpoint("raised when the run was resumed"):
            session.attempt = attempt_of(self.content.manifest) + 1
            changes = self._check_same_run(session, seed)
            load_rest = put_back(session, self.content, strict=self.strict)
        # Before loader and generators are restored: a callback may draw, or set a dataset's epoch.
        session.engine.run_event(Event.AFTER_LOAD)
        at = session.state.timestamp
        reading = (
            f"raised when the resumed run read the epoch again, up to batch {at.batch_in_epoch} of epoch {at.epoch}"
        )
        with _blaming_the_checkpoint(reading if at.batch_in_epoch else "raised when the run was resumed"):
            load_rest()
            for change in changes:  # only now is it certain that the run resumes
                warn(f"this run differs from the one that was saved: {change}", CheckpointWarning)
            resume_feed(session, self.content)
        session.status.resume()
        session.state.loaded_from = self.path

    def _check_same_run(self, session: Session, seed: int | None) -> list[str]:
        """Return the differences to warn about, or raise a CheckpointError for those that load_changed forbids."""
        saved, now = self.content.manifest, describe_run(session)
        others = other_optimizers(saved, now)
        fatal = missing_algorithms(saved, now, required=not self.strict) + others
        kept = f"it keeps the seed {saved['seed']} of the saved run; seed={seed} is ignored"
        seeds = [] if seed in (None, saved["seed"]) else [kept]
        given = self.content.state.get("modes", {}).get("given", {})  # older versions saved none
        modes = differing_modes(given, session.given_modes)
        changes = [*missing_algorithms(saved, now), *others, *differences(saved, now), *modes]
        # Checked first: this error lists the fatal differences too.
        if self.changed == "error" and (found := [*seeds, *changes, *other_length(saved, now)]):
            lines = "".join(f"\n  {change}" for change in found)
            raise CheckpointError(
                "this run differs from the one that was saved, and load_changed='error' allows no differences:"
                f"{lines}\nundo these changes, or accept all of them with load_changed='warn' or 'adopt'; "
                "nothing has been loaded"
            )
        if fatal:
            raise CheckpointError("; ".join(fatal))
        return seeds if self.changed == "adopt" else [*seeds, *changes]


@contextmanager
def _blaming_the_checkpoint(note: str) -> Iterator[None]:
    """Turn any exception that damaged content causes into a CheckpointError; one of the user's code gets a note."""
    try:
        yield
    except (CheckpointError, Warning):  # the user's filter may have made a warning an error
        raise
    except Exception as error:
        if is_of_user(error):
            add_note(error, note)
            raise
        raise CheckpointError(f"the checkpoint can't have been saved by a run: {error!r}") from error


class Loading(NamedTuple):
    """What the Trainer's arguments say about loading, as given."""

    load_path: Path | str | None
    autoresume: bool
    load_weights_only: bool
    load_strict: bool
    load_changed: str


def find_resumed(loading: Loading, callbacks: Iterable[Any], ranks: Ranks) -> Resumed | None:
    """Return the checkpoint that the run starts from, or None; rank 0 chooses it for all."""
    load_path, autoresume, weights_only, strict, changed = loading
    weights_only, strict = check_flag("load_weights_only", weights_only), check_flag("load_strict", strict)
    if changed not in _POLICIES:
        raise ArgumentError(
            f"load_changed is 'error', 'warn' or 'adopt', not {changed!r}{did_you_mean(str(changed), _POLICIES)}"
        )
    if weights_only and load_path is None:
        raise ArgumentError(
            "load_weights_only=True needs load_path, the checkpoint with the weights: give it, or leave "
            "load_weights_only out, since autoresume resumes the whole run"
        )
    resumes, folders = check_flag("autoresume", autoresume), saver_folders(callbacks)
    if resumes and not folders:
        raise ArgumentError(
            "autoresume needs a CheckpointSaver among the callbacks, to resume from its folder: "
            "add callbacks=[('checkpoint_saver', {'folder': 'checkpoints'})]"
        )
    read: dict[str, Checkpoint] = {}
    # Of a sharded model each rank reads its part, when it is loaded.
    load: Any = partial(open_content, in_part=True) if ranks.is_sharded else read_content

    def choose() -> tuple[str, bool] | None:
        """Return the checkpoint's path, and whether it is the run's own."""
        clocks = [(clock_in(folder), folder) for folder in folders if has_checkpoint(folder)] if resumes else []
        if not clocks and load_path is None:
            return None
        # The run's own ahead of load_path, where only the first attempt starts, maybe with the weights alone.
        path, content = read_resolved(max(clocks)[1] if clocks else path_of(load_path or ""), load)
        read[str(path)] = content
        return str(path), bool(clocks)

    chosen = ranks.decide(choose)
    if chosen is None:
        return None
    path, is_own = Path(chosen[0]), chosen[1]
    content = read[chosen[0]] if chosen[0] in read else load(path)
    return Resumed(content, weights_only and not is_own, strict, changed, path, is_own)


def clock_in(folder: Path) -> tuple[int, int]:
    """Return batch and epoch of the latest checkpoint in a folder."""
    clock = clock_of(read_resolved(folder, read_manifest)[1])
    return clock["batch"], clock["epoch"]


def start_over(listeners: Iterable[Any]) -> None:
    """Call `start_over` of callbacks and destinations, since autoresume found no checkpoint of this run."""
    listeners = list(listeners)
    for name, listener in zip(unique_names(listeners), listeners, strict=True):
        if callable(getattr(listener, "start_over", None)):
            try:
                listener.start_over()
            except BaseException as error:
                add_note(error, f"raised by start_over of callback {name}")
                raise
