"""Check loss and gradients before the optimizers step, and keep non-finite ones out of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_whole
from ..callback import Callback
from ..errors import ArgumentError, CheckpointError, EngineError, NonFiniteLossError, NonFiniteLossWarning, did_you_mean
from ..logger import Logger
from ..messages import plural, warn
from ..state import State

if TYPE_CHECKING:
    import torch

    from .checkpoint_saver import CheckpointSaver

__all__ = ["LossGuard"]

POLICIES = ("warn", "skip", "stop", "rollback")
_NEEDS = {"skip": ("skip_step",), "rollback": ("skip_step", "go_back")}


class LossGuard(Callback):
    """Keeps a batch whose loss or gradients are NaN or infinite out of the weights.

    Under `amp_fp16` only the loss is checked: the scaler skips steps whose gradients overflow.

    Args:
        policy: `warn` about gradients, as the Trainer does about losses, and train on; `skip` the step, so weights,
            buffers and optimizers stay as they were; `stop` with a NonFiniteLossError before the step; or `rollback`:
            skip, and restore weights and states of optimizers and algorithms from the latest regular checkpoint of the
            run's savers, while clock, schedules and data continue, so that the batches that led there are not repeated
            (as in PaLM, arXiv:2204.02311, section 5.1). Each further such batch in a row goes back one more.
        limit: how many batches in a row may be skipped before training stops.

    Example:
        >>> LossGuard("rollback").limit
        10
    """

    def __init__(self, policy: str = "skip", limit: int = 10) -> None:
        if policy not in POLICIES:
            raise ArgumentError(f"policy={policy!r} is unknown{did_you_mean(str(policy), POLICIES)}")
        self.policy, self.needs = policy, _NEEDS.get(policy, ())
        self.limit = check_whole("limit", limit, "[1, inf)", "how many batches in a row may be skipped")
        self._begin()

    def _begin(self) -> None:
        self._in_a_row = self._skipped = 0
        self._gone_back_to: int | None = None
        self._has_asked = False
        self._kept: list[Callable[[], None]] = []

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run."""
        self._begin()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the run has savers to roll back to."""
        if self.policy != "rollback":
            return
        if state.loop.go_back is None:
            raise ArgumentError(
                "loss_guard with policy='rollback' needs state.loop.go_back, which this loop does not offer"
            )
        _savers(state)

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Keep what the forward pass changes besides gradients: buffers of the model and the loss function."""
        from ..loop import keep_modules  # noqa: PLC0415  it can be listed without torch

        if self.policy != "warn":
            self._kept = [keep_modules(part, part.buffers(), attributes=False) for part in _parts(state)]

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Act if the loss or a gradient is not finite."""
        if self._has_asked and state.loop.skip_requested and state.loop.go_back is None:  # the Trainer's loop checks
            raise EngineError(
                "loss_guard asked this loop to skip a step, and it was ignored: step only if "
                "state.loop.skip_requested is False after AFTER_TRAIN_BATCH, then reset it"
            )
        self._has_asked = False
        kept, self._kept = self._kept, []
        what = _agreed(_not_finite(state), state)
        if what is None:
            self._in_a_row, self._gone_back_to = 0, None
            return
        self._in_a_row += 1
        if self.policy == "warn":
            if self._in_a_row == 1 and what.startswith("the gradient"):
                warn(f"{what}; training continues", NonFiniteLossWarning)
            return
        for put_back in kept:
            put_back()
        if self.policy == "stop":
            raise NonFiniteLossError(f"{what}; the step was not taken, and the weights are those of the batch before")
        if self._in_a_row > self.limit:
            raise NonFiniteLossError(
                f"{what}, and loss_guard has skipped {plural(self.limit, 'batch', 'batches')} in a row, its limit"
            )
        state.skip_step()
        self._has_asked = True
        self._skipped += 1
        done = "its step is skipped"
        if self.policy == "rollback":
            done += f", and the weights are restored from {self._roll_back(state, what)}"
        logger.log_metrics({"loss_guard/skipped": self._skipped})
        warn(f"{what}; {done}", NonFiniteLossWarning)

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were skipped, in all and in a row."""
        counts = {"skipped": self._skipped, "in_a_row": self._in_a_row, "gone_back_to": self._gone_back_to}
        return counts if self._skipped else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts."""
        where, batch = "in the state of loss_guard", state.get("gone_back_to")
        self._skipped = check_whole("skipped", state.get("skipped", 0), "[0, inf)", where)
        self._in_a_row = check_whole("in_a_row", state.get("in_a_row", 0), "[0, inf)", where)
        self._gone_back_to = None if batch is None else check_whole("gone_back_to", batch, "[0, inf)", where)

    def _roll_back(self, state: State, what: str) -> Path:
        """Roll back to the latest checkpoint, or for each further batch in a row to the one before; return it."""
        from ..checkpoint import read_content, read_manifest  # noqa: PLC0415  it can be listed without torch

        go_back: Any = state.loop.go_back
        savers: list[CheckpointSaver] = _savers(state)
        before = state.timestamp.batch + 1 if self._gone_back_to is None else self._gone_back_to
        older: list[tuple[int, Path]] = []
        for path in (path for saver in savers for path in saver.written()):
            with suppress(CheckpointError):  # a damaged one can't be restored
                manifest = read_manifest(path)
                if manifest["clock"]["batch"] < before and manifest["is_regular"]:
                    older.append((manifest["clock"]["batch"], path))
        chosen: Any = state.ranks.first([max(older)[0], str(max(older)[1])] if older else [None, ""])  # rank 0's
        batch, latest = chosen
        if batch is None:
            older_than = " yet" if self._gone_back_to is None else f" before that of batch {before}, already tried"
            raise NonFiniteLossError(f"{what}, and there is no regular checkpoint to go back to{older_than}")
        self._gone_back_to = batch
        go_back(read_content(Path(latest)))
        return Path(latest)


def _parts(state: State) -> list[Any]:
    """Return the modules that a step goes through."""
    return [part for part in (state.model, state.loss_fn) if callable(getattr(part, "named_parameters", None))]


def _savers(state: State) -> list[Any]:
    savers = [callback for callback in state.callbacks if callable(getattr(callback, "written", None))]
    if not savers:
        raise ArgumentError(
            "loss_guard with policy='rollback' goes back to checkpoints, and no callback saves any: "
            "add ('checkpoint_saver', {'folder': 'checkpoints', 'interval': '100ba'}) to callbacks"
        )
    return savers


def _not_finite(state: State) -> str | None:
    """Return which of loss and gradients is not finite, and where, or None; if all are, the device syncs only once."""
    watched = list(_watched(state))
    # A sum is finite only if all of its terms are, and costs a fraction of checking each.
    total = sum((tensor.sum() for _, tensor in watched[1:]), watched[0][1].sum())
    if total.isfinite():
        return None
    for name, tensor in watched:
        if not tensor.isfinite().all():
            loss, now = state.loss.item(), state.timestamp
            is_loss = tensor.ndim == 0 and name == "the loss"
            if is_loss and (count := state.count_of_loss()) is not None and not count:
                continue  # no target counts in this batch, and its gradients are 0
            found = f"is {loss}" if is_loss else f"is not finite (with a loss of {loss:.4g})"
            return f"{name} {found} at batch {now.batch} (epoch {now.epoch})"
    return None  # only the sum is too large


def _agreed(what: str | None, state: State) -> str | None:
    """Return what some rank has found: each has a part of a sharded gradient, and all of any other."""
    if not state.ranks.is_sharded or not state.ranks.any(what):
        return what
    found: list[str | None] = state.ranks.each(what)
    return next(each for each in found if each is not None)


def _watched(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    yield "the loss", state.loss.detach()
    if state.precision == "amp_fp16":
        return
    names = {id(p): name for part in _parts(state) for name, p in part.named_parameters()}
    stepped = [p for optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]]
    for parameter in stepped or [p for part in _parts(state) for p in part.parameters()]:
        if parameter.grad is not None:
            grad = parameter.grad.detach()
            if hasattr(grad, "to_local"):
                grad = grad.to_local()
            name = names.get(id(parameter), "a parameter beside the model's")
            yield f"the gradient of {name}", grad.coalesce().values() if grad.is_sparse else grad
