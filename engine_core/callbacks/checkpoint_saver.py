"""Save the run at intervals: when, which checkpoints are kept, and what can't be saved."""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..algorithm import unique_names
from ..arguments import check_flag, check_interval, check_whole, interval_in_run, path_of
from ..callback import Callback
from ..errors import ArgumentError, CheckpointError, CheckpointWarning, EngineError, did_you_mean
from ..logger import Logger
from ..messages import warn
from ..observed import ObservedList
from ..ranks import Ranks
from ..state import State
from ..time import Time, Timestamp
from .monitor import Monitor

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

__all__ = ["CheckpointSaver"]


def check_states(state: State, logger: Logger) -> None:
    """Raise if a state as it is now can't be saved: each save would fail, and there would never be a checkpoint.

    Lazy parameters are left out, since the first batch creates them.
    """
    from torch.nn import Module  # noqa: PLC0415  as above
    from torch.nn.parameter import is_lazy  # noqa: PLC0415

    from ..checkpoint import check_weight, flatten  # noqa: PLC0415
    from ..parallel import in_slices  # noqa: PLC0415

    modules = (("model", state.model), ("loss_fn", state.loss_fn))
    named: list[tuple[str, Any]] = [(name, owner) for name, owner in modules if isinstance(owner, Module)]
    listeners = [*state.callbacks, *logger.destinations]
    for owners in (state.algorithms, listeners, state.optimizers, state.schedulers):
        named += zip(unique_names(ObservedList.of(owners)), ObservedList.of(owners), strict=True)
    for name, owner in named:
        try:
            own: Any = in_slices(getattr(owner, "state_dict", dict)())
        except Exception:  # noqa: BLE001, S112  the first save reports it, and isolates a destination
            continue
        for key, value in own.items() if isinstance(own, dict) else ():
            if not is_lazy(value):
                flatten(value, f"{name}.state_dict()[{key!r}]", {})
                if name == "model":
                    check_weight(key, value)
        if not isinstance(owner, Module):
            flatten(own, f"{name}.state_dict()", {})


def check_folder(folder: Path, ranks: Ranks, *, writes: bool) -> None:
    """Raise on all ranks if one of them does not see what rank 0 writes in the folder, from which all resume.

    Args:
        writes: do all ranks write there? Then they try it.
    """
    if ranks.size == 1:
        return
    # Of this name, the saver removes it if the process is killed here.
    token = folder / ranks.first(f".ep-{secrets.token_hex(8)}.new")
    ranks.decide(token.mkdir)
    why = None if token.is_dir() else "does not see what rank 0 writes there"
    if writes and not why:
        try:
            (token / str(ranks.rank)).touch()
        except OSError as error:
            why = f"can't write there ({error.strerror})"
    reasons = ranks.each(why)
    if ranks.rank == 0:
        shutil.rmtree(token, ignore_errors=True)
    if found := [f"rank {rank} {why}" for rank, why in enumerate(reasons) if why]:
        raise CheckpointError(
            f"{str(folder)!r} has to be one folder for all ranks, since each of them resumes from it: "
            f"{'; '.join(found)}; save to a file system that all machines share"
        )


Best = list[tuple[float, str]]
"""Values with the names of their checkpoints, best first."""
_PAIRS = [int, str], [float, str]


class _Counted(NamedTuple):
    """The last result counted: the metrics it was part of, its value, and the checkpoint that it counts for."""

    among: Mapping[str, float]
    value: float | None
    checkpoint: str

    def is_in(self, state: State, key: str) -> bool:
        """Is it still the latest? A later evaluation has its own results; a loop may write into the old ones."""
        value = state.metrics.get(key)
        return self.among is state.metrics and (self.value is value or self.value == value)  # NaN equals nothing


class Ranking:
    """The best checkpoints in a folder, as a monitor ranks them, and whether the latest result is yet to be counted."""

    def __init__(self, folder: Path, metric: str | None, keep: int) -> None:
        self._folder = folder
        self._monitor = None if metric is None else Monitor(metric)
        self._keep = keep
        self.best: Best = []
        self.awaits = False
        """When the run was saved, was there a result that counted for no checkpoint yet?"""
        self.is_evaluating = False
        self._counted = _Counted({}, None, "")

    def follow(self, state: State) -> None:
        """Let the run's results say which value is better; one without a direction is refused."""
        if self._monitor is not None:
            self._monitor.follow(state)

    def start(self, state: State) -> None:
        """Drop checkpoints no longer in the folder, and a result from before this fit unless it awaits a checkpoint."""
        self.follow(state)
        self.best = self._ranked(self.still_there())  # an older version may have ranked them the other way round
        self.is_evaluating = False
        if self._monitor is not None and not self.awaits:
            self._counted = _Counted(state.metrics, state.metrics.get(self._monitor.key), "")

    def awaits_checkpoint(self, state: State) -> bool:
        """Is there a result that counts for no checkpoint yet?"""
        monitor = self._monitor
        return monitor is not None and monitor.key in state.metrics and not self._counted.is_in(state, monitor.key)

    def staying(self, written: Path, saved: Sequence[Path], keep_last: int, best: Best) -> list[Path]:
        """Return which checkpoints stay: the one just written, the last of the intervals, and the best."""
        place = saved.index(written) + 1
        # Those beyond come first: this run was resumed from before them, so they won't be continued.
        regular = [path for path in (*saved[place:], *saved[:place]) if is_of_interval(path)]
        return [written, *regular[-keep_last:], *(self._folder / name for _, name in best)]

    def with_checkpoint(self, name: str, state: State) -> Best:
        """Return the best checkpoints after saving one of this name, for which the latest result then counts."""
        best, monitor = self.still_there(), self._monitor
        if monitor is None:
            return best
        if monitor.key not in state.metrics:
            if state.metrics or not state.evaluators:  # else no evaluation has ended yet
                why = did_you_mean(monitor.key, state.metrics)
                warn(f"no evaluation has a result {monitor.key!r} to keep the best by{why}", CheckpointWarning)
            return best
        is_partial = self.is_evaluating and state.is_interrupted
        if is_partial or (self._counted.is_in(state, monitor.key) and self._counted.checkpoint != name):
            return best
        value = state.metrics[monitor.key]
        self._counted = _Counted(state.metrics, value, name)
        if not math.isfinite(value):
            return best
        ranked = [*(pair for pair in best if pair[1] != name), (float(value), name)]
        return self._ranked(ranked)[: self._keep]

    def _ranked(self, best: Best) -> Best:
        descends = self._monitor is None or not self._monitor.smaller_is_better
        return sorted(best, key=lambda pair: pair[0], reverse=descends)

    def load(self, best: Any) -> None:
        """Load the best checkpoints of a saved run."""
        pairs = best if isinstance(best, list) else [None]
        if not all(isinstance(pair, (list, tuple)) and [*map(type, pair)] in _PAIRS for pair in pairs):
            raise ArgumentError(f"best={best!r} in the state of CheckpointSaver has to be a list of [value, name]")
        self.best = [(float(value), name) for value, name in best]

    def still_there(self) -> Best:
        """Return the best checkpoints that are still in the folder."""
        return [(value, name) for value, name in self.best if (self._folder / name).is_dir()]


def is_of_interval(checkpoint: Path) -> bool:
    """Was it saved because an interval had passed? Unreadable ones count as if they were."""
    from ..checkpoint import read_manifest  # noqa: PLC0415  the saver can be listed without torch

    try:
        return bool(read_manifest(checkpoint).get("is_regular", True))
    except CheckpointError:
        return True


class CheckpointSaver(Callback):
    """Saves the run at intervals, at its end, and when a signal or a pause ends it, in a folder of its own.

    Training waits only for a copy of the run in memory; a thread writes one checkpoint at a time.

    Args:
        folder: created at the first fit; no other run may save there at the same time.
        interval: how often, in any unit of time, or as a fraction of the training, such as `"0.1dur"`.
        keep_last: how many of these to keep; None keeps all ever saved. One saved between intervals, at the end or for
            a pause or a signal, stays until the next one is written.
        keep_best: how many more to keep, by their value of `metric`.
        metric: an evaluation result such as `eval/accuracy`; the metric or its name says which value is better, and
            `min:` or `max:` before the name overrides that. It counts for the first checkpoint after the evaluation.
        on_error: if a checkpoint can't be written, `warn` and train on, or `stop`; without the folder none is.
        sharded: does each of several processes write its own part? None: if the model is sharded. False gathers a
            sharded model on rank 0, which is for small ones.

    Example:
        >>> CheckpointSaver("checkpoints", interval="500ba", keep_best=1, metric="eval/accuracy").keep_last
        3
    """

    needs = ("snapshot",)

    def __init__(  # noqa: PLR0913  what users set, by name
        self,
        folder: Path | str,
        interval: Time | str = "1ep",
        keep_last: int | None = 3,
        keep_best: int | None = None,
        metric: str | None = None,
        on_error: str = "warn",
        *,
        sharded: bool | None = None,
    ) -> None:
        self.checkpoint_folder = path_of(folder).absolute()
        self.interval = str(check_interval("interval", interval))
        self.keep_last = None if keep_last is None else check_whole("keep_last", keep_last, "[1, inf)", "how many stay")
        self.keep_best = None if keep_best is None else check_whole("keep_best", keep_best, "[1, inf)", "how many stay")
        if (keep_best is None) != (metric is None):
            raise ArgumentError(f"keep_best={keep_best!r} and metric={metric!r} belong together: give both or none")
        if on_error not in ("warn", "stop"):
            raise ArgumentError(f"on_error={on_error!r} has to be 'warn' or 'stop'")
        self.metric, self.on_error = metric, on_error
        self.sharded = None if sharded is None else check_flag("sharded", sharded)
        from ..checkpoint import BackgroundWriter, Store  # noqa: PLC0415  it can be listed and examined without torch

        self._store, self._writer = Store(self.checkpoint_folder), BackgroundWriter()
        self._forget()

    def _forget(self) -> None:
        self._ranking = Ranking(self.checkpoint_folder, self.metric, self.keep_best or 0)
        self._looked_at = self._saved_at = Timestamp()
        self._due_at: Timestamp | None = None
        self._measured_at: Timestamp | None = None
        self._loaded_identity: str | None = None
        self._is_off = False
        self._rank = self._failures = 0

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run; refuse an interval that can't be counted in this one, and a metric without a best."""
        self._forget()
        interval_in_run(state, "interval", self.interval)
        self._ranking.follow(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Take the folder, refuse what can't be saved, and warn about a loader with which no resumed run is exact."""
        if state.loop.snapshot is None:
            raise EngineError("checkpoint_saver needs state.loop.snapshot, which this loop does not offer")
        check_states(state, logger)
        self._interval = interval_in_run(state, "interval", self.interval)
        self._looked_at, self._rank = state.timestamp, state.rank
        self._is_off, is_due = state.ranks.decide(lambda: self._take_folder(state))
        self._due_at = state.timestamp if is_due else None
        if self._is_off:
            return
        check_folder(self.checkpoint_folder, state.ranks, writes=self._is_in_parts(state))
        from ..trainer import why_inexact  # noqa: PLC0415

        if state.train_dataloader is not None and (why := why_inexact(state.train_dataloader)):
            warn(f"this run can't be resumed exactly in the middle of an epoch: {why}", CheckpointWarning)

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if an interval has passed or a signal or a pause ends the run."""
        self._finish(self._writer.raise_error, state)
        before, self._looked_at = self._looked_at, state.timestamp
        if self._is_off:
            return
        if self._interval.passed(before, state.timestamp):
            self._due_at = state.timestamp
        is_due = self._due_at == state.timestamp != before
        if not is_due and not state.is_interrupted and self._measured_at == state.timestamp:
            # Rank 0's checkpoint may lack the result of the evaluation that has just ended.
            ranking, is_saved = self._ranking, state.timestamp == self._saved_at
            is_due = state.ranks.decide(lambda: is_saved and ranking.awaits_checkpoint(state))
        if is_due or state.is_interrupted:
            self._save(state)

    epoch_checkpoint = batch_checkpoint

    def eval_start(self, state: State, logger: Logger) -> None:
        """Note that the results are incomplete."""
        self._ranking.is_evaluating = True

    def eval_end(self, state: State, logger: Logger) -> None:
        """Note that they are complete, unless another loader follows."""
        self._ranking.is_evaluating = False
        self._measured_at = state.timestamp

    def fit_end(self, state: State, logger: Logger) -> None:
        """Save unless this position is saved already, and wait until it is written.

        A training that is complete is saved once more, so that its checkpoint has what FIT_END left, and says so.
        """
        self._finish_together(state)
        if not self._is_off and state.ranks.decide(
            lambda: state.is_complete or state.timestamp != self._saved_at or self._ranking.awaits_checkpoint(state)
        ):
            self._save(state)
            self._writer.wait_for_all(state.ranks)
            state.ranks.decide(lambda: self._finish(self._writer.wait, state))
        self._count_failures()

    def close(self, state: State, logger: Logger) -> None:
        """Wait for pending writes, and release the folder."""
        try:
            self._finish(self._writer.wait, state)  # with the lock, or another run may tidy away what is being written
        finally:
            self._store.unlock()
            self._count_failures()

    def state_dict(self) -> dict[str, Any]:
        """Return the folder's identity, the best checkpoints, and whether a result has yet to be counted; rank 0's."""
        if self._rank:
            return {}
        best = [list(pair) for pair in self._ranking.best]
        return {"folder": self._store.identity, "best": best, "awaits": self._ranking.awaits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the same folder, with the best checkpoints that are still there when the fit starts."""
        self._ranking.load(state.get("best", []))
        self._loaded_identity, self._ranking.awaits = state.get("folder", ""), state.get("awaits", False)

    def written(self) -> list[Path]:
        """Wait for pending writes, and return the checkpoints in the folder, by batch and then by attempt.

        The list is empty if the folder could not be taken: its checkpoints may be another run's.
        """
        self._finish(self._writer.wait)
        return [] if self._is_off else self._store.saved()

    def _take_folder(self, state: State) -> tuple[bool, bool]:
        """Return whether the folder can't be taken, and whether a checkpoint of this position is one of an interval."""
        store, folder, origin = self._store, self.checkpoint_folder, state.loaded_from
        try:
            is_ours = store.lock() or store.identity == self._loaded_identity
            if origin is not None:
                is_ours |= origin.parent.resolve() == folder.resolve()
            self._ranking.start(state)
            here = folder / store.name_of(state.timestamp)
            if here.exists():
                self._saved_at = state.timestamp
            if not is_ours and (there := store.holds()) is not None:
                store.unlock()
                raise CheckpointError(
                    f"{str(folder)!r} holds checkpoints of another run, such as {there}: "
                    "resume from them with Trainer(autoresume=True), or save elsewhere"
                )
            return False, here.exists() and is_of_interval(here)
        except OSError as error:
            self._fail(error, state)
            return True, False

    def _save(self, state: State) -> None:
        self._finish_together(state)
        if state.world_size == 1:
            self._finish(lambda: self._begin(state), state)
        else:  # the ranks wait for each other in it, so none may pass over an error
            self._begin(state)
        if state.loop.interrupted_by is not None:  # torchrun ends the process that writes once another has ended
            self._writer.wait_for_all(state.ranks)

    def _begin(self, state: State) -> None:
        """Copy the run and start writing it; only a written checkpoint counts as saved and can be among the best."""
        ranking, snapshot = self._ranking, cast("Callable[..., Checkpoint]", state.loop.snapshot)
        is_regular = self._due_at == state.timestamp
        if is_regular or not state.is_interrupted:
            best = ranking.with_checkpoint(self._store.name_of(state.timestamp), state)
        else:  # in the uninterrupted run the result counts for the next one
            best = ranking.still_there()
        ranking.awaits = ranking.awaits_checkpoint(state)
        former, ranking.best = ranking.best, best  # the snapshot holds what a run resumed from it will have
        try:
            whole = state.ranks.is_sharded and not self._is_in_parts(state)
            taken = snapshot(whole=True) if whole else snapshot()
        finally:
            ranking.best = former
        save, at = self._in_parts(state, taken.described(is_regular=is_regular)), state.timestamp
        if save is None:
            return

        def write() -> None:
            path = save(at)  # before others are removed: there is always one to resume from
            if state.rank:
                return
            self._saved_at, ranking.best = at, best
            if self.metric is not None:
                self._store.mark_best(best[0][1] if best else None)
            if self.keep_last is not None:
                self._store.keep(ranking.staying(path, self._store.saved(), self.keep_last, best))

        self._writer.start(write)

    def _in_parts(self, state: State, content: Checkpoint) -> Callable[[Timestamp], Path] | None:
        """Return what writes this rank's part of a checkpoint, or on rank 0 all of it; None: this writes nothing."""
        from ..checkpoint import cut_content  # noqa: PLC0415  as above

        ranks, store = state.ranks, self._store
        if not self._is_in_parts(state):
            return None if ranks.rank else partial(store.save, content=content)
        own = content if ranks.is_sharded else cut_content(content, ranks.rank, ranks.size)

        def begin() -> str | None:
            try:
                return store.begin(state.timestamp)
            except OSError as error:
                self._fail(error, state)
                return None

        if (name := ranks.decide(begin)) is None:
            return None
        return partial(store.save, content=own, ranks=ranks, begun=name)

    def _is_in_parts(self, state: State) -> bool:
        """Does each of several ranks write a part?"""
        return state.world_size > 1 and (state.ranks.is_sharded if self.sharded is None else self.sharded)

    def _finish_together(self, state: State) -> None:
        self._writer.wait_for_all(state.ranks)
        self._finish(self._writer.wait, state)

    def _finish(self, write: Any, state: State | None = None) -> None:
        """Call `write`, and apply `on_error` if a checkpoint can't be written."""
        try:
            write()
        except (OSError, CheckpointError) as error:
            if not self._rank:  # which another rank lets know of it
                self._fail(error, state)

    def _fail(self, error: OSError | CheckpointError, state: State | None) -> None:
        message = f"no checkpoint was written in {str(self.checkpoint_folder)!r}: {error}"
        if self.on_error == "stop":
            raise CheckpointError(message) from error
        self._failures += 1
        if self._failures == 1:  # the rest are counted: a full disk would warn at each interval
            is_ending = state is not None and state.is_interrupted
            warn(f"{message}; training {'ends without it' if is_ending else 'continues'}", CheckpointWarning)

    def _count_failures(self) -> None:
        """Warn once of all that failed after the first."""
        failures, self._failures = self._failures, 0
        if failures > 1:
            warn(f"{failures} checkpoints could not be written in {str(self.checkpoint_folder)!r}", CheckpointWarning)
