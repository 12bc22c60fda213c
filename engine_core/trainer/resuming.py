"""What a Trainer goes on with: the checkpoint that is meant, and whether this run can be the one that was saved."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_flag
from ..checkpoint import Content, read_content, resolve
from ..checkpoint.store import has_checkpoint
from ..errors import ArgumentError, CheckpointError, CheckpointWarning
from ..event import Event
from .arguments import check_seed
from .describing import describe_run
from .interruption import saver_folders
from .snapshot import put_back, resume_feed
from .weights import load_weights

if TYPE_CHECKING:
    from .run import Run

__all__ = ["Resumed", "find_resumed"]


@dataclass(frozen=True)
class Resumed:
    """What a run begins with, instead of at the beginning."""

    content: Content
    weights_only: bool
    strict: bool

    def seed(self, given: int | None) -> int:
        """Return the seed of the saved run, which decides what algorithms draw."""
        saved = self.content.manifest.get("seed")
        if self.weights_only:
            return check_seed(given)
        if type(saved) is not int or not 0 <= saved < 2**63:
            raise CheckpointError(f"the checkpoint's manifest has the seed {saved!r}, which is none")
        if given not in (None, saved):
            _warn(f"it goes on with the seed {saved} of the saved run, not with seed={given}")
        return saved

    def go_on(self, run: Run) -> None:
        """Load what was saved into a run that has begun, fire AFTER_LOAD, and let generators and loader go on.

        Raises:
            CheckpointError: if the run can't be the one that was saved.
        """
        if self.weights_only:
            load_weights(run.state.model, self.content.model, strict=self.strict)
            run.engine.run_event(Event.AFTER_LOAD)
            return
        with _blamed_on_the_checkpoint():
            _check_same_run(self.content.manifest, run, strict=self.strict)
            put_back(run, self.content, strict=self.strict)
        run.engine.run_event(Event.AFTER_LOAD)
        with _blamed_on_the_checkpoint():
            resume_feed(run, self.content)
        run.is_loaded = True


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
) -> Resumed | None:
    """Return what the run begins with; None: at the beginning.

    Raises:
        ArgumentError: (a ValueError) for autoresume without a saver in whose folder to look.
        CheckpointError: if `load_path` is no checkpoint, or the latest one is damaged.
    """
    weights_only = check_flag("load_weights_only", weights_only)
    strict = check_flag("load_strict", strict)
    if check_flag("autoresume", autoresume):
        folders = saver_folders(callbacks)
        if not folders:
            raise ArgumentError(
                "autoresume goes on from the folder of a CheckpointSaver, and none is among the callbacks: "
                "add callbacks=[('checkpoint_saver', {'folder': 'checkpoints'})]"
            )
        for folder in folders:
            if has_checkpoint(folder):
                return Resumed(read_content(resolve(folder)), weights_only=False, strict=strict)
    if load_path is None:
        return None
    return Resumed(read_content(resolve(Path(load_path))), weights_only, strict)


def _warn(message: str) -> None:
    warnings.warn(message, CheckpointWarning, stacklevel=4)


def _check_same_run(manifest: Mapping[str, Any], run: Run, *, strict: bool) -> None:
    """Raise if an algorithm is missing that the saved run needs; warn of all else that differs.

    Raises:
        CheckpointError: with name, distribution, version, and what to do.
    """
    saved = {entry["name"]: entry for entry in manifest["algorithms"]}
    described = describe_run(run)
    now = {entry["name"]: entry for entry in described["algorithms"]}
    missing = [entry for name, entry in saved.items() if name not in now]
    for entry in missing:
        if entry["required_on_load"] or strict:
            raise CheckpointError(_missing(entry))
    changes = [_missing(entry) for entry in missing]
    for name, value in described["settings"].items():
        if (was := manifest["settings"].get(name)) != value:
            changes.append(f"it has {name}={value!r}, and had {was!r}")
    changes += [f"{name} was not in the saved run, and begins anew" for name in now if name not in saved]
    for name in saved.keys() & now.keys():
        changes += _differences(saved[name], now[name])
    for change in changes:
        _warn(f"this run differs from the one that was saved: {change}")


def _missing(entry: Mapping[str, Any]) -> str:
    shipped, version = entry["distribution"], entry["version"]
    origin = f" ({shipped} {version})" if shipped else ""
    remedy = f"pip install {shipped}=={version}, and " if shipped else ""
    return f"the saved run had {entry['name']}{origin}: {remedy}add {entry['registered']!r} to algorithms"


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    name, differing = saved["name"], []
    before, after = ((entry["distribution"], entry["version"]) for entry in (saved, now))
    if before != after:
        differing.append(f"{name} is of {after[0]} {after[1]}, and was of {before[0]} {before[1]}")
    for setting in {**saved["settings"], **now["settings"]}:
        was, has = (entry["settings"].get(setting) for entry in (saved, now))
        if was != has:
            differing.append(f"{name} has {setting}={has!r}, and had {was!r}")
    return differing
