"""What a Trainer goes on with: the checkpoint that is meant, and whether this run can be the one that was saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_flag
from ..checkpoint import Content, read_content, resolve
from ..checkpoint.store import has_checkpoint
from ..errors import ArgumentError, CheckpointError, CheckpointWarning, did_you_mean
from ..event import Event
from ..warn import warn
from .arguments import check_seed
from .comparing import differences, missing_algorithms, what_is_missing
from .describing import describe_run
from .interruption import saver_folders
from .snapshot import put_back, resume_feed
from .weights import load_weights

if TYPE_CHECKING:
    from .run import Run

__all__ = ["Resumed", "find_resumed", "start_over"]

_POLICIES = ("error", "warn", "adopt")


@dataclass(frozen=True)
class Resumed:
    """What a run begins with, instead of at the beginning."""

    content: Content
    weights_only: bool
    strict: bool
    changed: str
    is_own: bool = False
    """Is it the latest of the run's own saver?"""

    def seed(self, given: int | None) -> int:
        """Return the seed of the saved run, which decides what algorithms draw."""
        saved = self.content.manifest.get("seed")
        if self.weights_only:
            return check_seed(given)
        if type(saved) is not int or not 0 <= saved < 2**63:
            raise CheckpointError(f"the checkpoint's manifest has the seed {saved!r}, which is none")
        return saved

    def go_on(self, run: Run, seed: int | None) -> None:
        """Load what was saved into a run that has begun, fire AFTER_LOAD, and let generators and loader go on.

        Args:
            seed: the one that was asked for.

        Raises:
            CheckpointError: if the run can't be the one that was saved.
        """
        if self.weights_only:
            load_weights(run.state.model, self.content.model, strict=self.strict)
            run.engine.run_event(Event.AFTER_LOAD)
            return
        with _blamed_on_the_checkpoint():
            self._check_same_run(run, seed)
            put_back(run, self.content, strict=self.strict)
        run.engine.run_event(Event.AFTER_LOAD)
        with _blamed_on_the_checkpoint():
            resume_feed(run, self.content)
        run.is_loaded = True

    def _check_same_run(self, run: Run, seed: int | None) -> None:
        """Say in what the run differs from the one that was saved, as the policy has it.

        Raises:
            CheckpointError: for an algorithm without which it can't go on, and for all differences if none may be.
        """
        saved, now = self.content.manifest, describe_run(run)
        missing = missing_algorithms(saved, now)
        fatal = [what_is_missing(entry) for entry in missing if entry["required_on_load"] or self.strict]
        kept = f"it goes on with the seed {saved['seed']} of the saved run, not with seed={seed}"
        seeds = [] if seed in (None, saved["seed"]) else [kept]
        changes = [*map(what_is_missing, missing), *differences(saved, now)]
        if self.changed == "error" and (seeds or changes):
            raise CheckpointError(_refusal([*seeds, *changes]))
        if fatal:
            raise CheckpointError("; ".join(fatal))
        for change in seeds if self.changed == "adopt" else [*seeds, *changes]:
            warn(f"this run differs from the one that was saved: {change}", CheckpointWarning)


@contextmanager
def _blamed_on_the_checkpoint() -> Iterator[None]:
    """Let what its content makes others raise be an error of the checkpoint."""
    try:
        yield
    except (CheckpointError, Warning):
        raise
    except Exception as error:
        raise CheckpointError(f"the checkpoint holds what no run has saved: {error!r}") from error


def find_resumed(
    load_path: Path | str | None,
    callbacks: Iterable[Any],
    autoresume: bool,  # noqa: FBT001  the Trainer's arguments, as they are given
    weights_only: bool,  # noqa: FBT001
    strict: bool,  # noqa: FBT001
    changed: str,
) -> Resumed | None:
    """Return what the run begins with; None: at the beginning.

    Raises:
        ArgumentError: (a ValueError) for autoresume without a saver in whose folder to look.
        CheckpointError: if `load_path` is no checkpoint, or the latest one is damaged.
    """
    weights_only = check_flag("load_weights_only", weights_only)
    strict = check_flag("load_strict", strict)
    if changed not in _POLICIES:
        raise ArgumentError(
            f"load_changed is 'error', 'warn' or 'adopt', not {changed!r}{did_you_mean(str(changed), _POLICIES)}"
        )
    if check_flag("autoresume", autoresume):
        folders = saver_folders(callbacks)
        if not folders:
            raise ArgumentError(
                "autoresume goes on from the folder of a CheckpointSaver, and none is among the callbacks: "
                "add callbacks=[('checkpoint_saver', {'folder': 'checkpoints'})]"
            )
        for folder in folders:
            if has_checkpoint(folder):
                content = read_content(resolve(folder))
                return Resumed(content, weights_only=False, strict=strict, changed=changed, is_own=True)
    if load_path is None:
        return None
    return Resumed(read_content(resolve(Path(load_path))), weights_only, strict, changed)


def start_over(listeners: Iterable[Any]) -> None:
    """Tell callbacks and destinations that autoresume has found nothing of this run that was saved."""
    for listener in listeners:
        if callable(getattr(listener, "start_over", None)):
            listener.start_over()


def _refusal(changes: list[str]) -> str:
    lines = "".join(f"\n  {change}" for change in changes)
    return (
        f"this run differs from the one that was saved, and load_changed='error' lets nothing differ:{lines}\n"
        "put it back as it was, or accept all of it with load_changed='warn' or 'adopt'; nothing has been loaded"
    )
