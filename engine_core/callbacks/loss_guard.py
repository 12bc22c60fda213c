"""Look at loss and gradients before the optimizers step, and keep what is not finite out of the weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import check_whole
from ..callback import Callback
from ..errors import ArgumentError, EngineError, NonFiniteLossError, NonFiniteLossWarning, did_you_mean

if TYPE_CHECKING:
    import torch

    from ..logger import Logger
    from ..state import State

__all__ = ["LossGuard"]

POLICIES = ("warn", "skip", "stop", "rollback")


class LossGuard(Callback):
    """Keeps a batch whose loss or gradients are NaN or infinite out of the weights.

    Under `amp_fp16` only the loss is looked at: there the scaler skips steps whose gradients have overflowed.

    Args:
        policy: `warn` of gradients too, as the Trainer does of losses, and train on; `skip` the step, as if the batch
            had not been; `stop` with a NonFiniteLossError, before the step; or `rollback`: skip, and take back weights
            and states of optimizers and algorithms from the latest checkpoint of the run's saver, while clock,
            schedules and data go on, so that what led there is not repeated (as in PaLM, arXiv:2204.02311, section
            5.1). Each further such batch in a row goes one checkpoint further back.
        limit: how many batches in a row may be skipped before it stops.

    Raises:
        ArgumentError: (a ValueError) for what an argument can't be.

    Example:
        >>> LossGuard("rollback").limit
        10
    """

    def __init__(self, policy: str = "skip", limit: int = 10) -> None:
        if policy not in POLICIES:
            raise ArgumentError(f"policy={policy!r} is none{did_you_mean(str(policy), POLICIES)}")
        self.policy = policy
        self.limit = check_whole("limit", limit, "[1, inf)", "how many batches in a row may be skipped")
        self._in_a_row = self._skipped = 0
        self._has_asked = False
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def fit_start(self, state: State, logger: Logger) -> None:
        """Look whether there will be something to go back to."""
        if self.policy != "rollback":
            return
        if state.go_back is None:
            raise ArgumentError("loss_guard with policy='rollback' needs state.go_back, which this loop does not offer")
        self._saver(state)

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Keep what the forward pass changes beside the gradients: the model's buffers."""
        if self.policy != "warn" and state.model is not None:
            self._buffers = [(buffer, buffer.detach().clone()) for buffer in state.model.buffers()]

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Act if the loss or a gradient is not finite."""
        if self._has_asked and state.skip_requested:
            raise EngineError(
                "loss_guard has asked this loop to leave a step out, and nobody has looked: step only if "
                "state.skip_requested is False after AFTER_TRAIN_BATCH, and set it back"
            )
        self._has_asked = False
        kept, self._buffers = self._buffers, []
        if _is_finite(state):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        what = _describe(state)
        if self.policy == "warn":
            if self._in_a_row == 1 and what.startswith("the gradient"):
                _warn(f"{what}; training goes on")
            return
        for buffer, former in kept:
            buffer.detach().copy_(former)
        if self.policy == "stop":
            raise NonFiniteLossError(f"{what}; the step was not made, the weights are those of the batch before")
        if self._in_a_row > self.limit:
            raise NonFiniteLossError(f"{what}, and loss_guard has skipped the {self.limit} batches before: its limit")
        state.skip_step()
        self._has_asked = True
        self._skipped += 1
        done = "its step is skipped"
        if self.policy == "rollback":
            done += f", and the weights are taken back from {self._roll_back(state, what)}"
        logger.log_metrics({"loss_guard/skipped": self._skipped})
        _warn(f"{what}; {done}")

    def state_dict(self) -> dict[str, Any]:
        """Return how many batches were skipped, in all and in a row."""
        return {"skipped": self._skipped, "in_a_row": self._in_a_row} if self._skipped else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting.

        Raises:
            ArgumentError: (a ValueError) for what `state_dict` never returns.
        """
        skipped, in_a_row = state.get("skipped", 0), state.get("in_a_row", 0)
        self._skipped = check_whole("skipped", skipped, "[0, inf)", "in the state of loss_guard")
        self._in_a_row = check_whole("in_a_row", in_a_row, "[0, inf)", "in the state of loss_guard")

    def _saver(self, state: State) -> Any:
        for callback in state.callbacks:
            if callable(getattr(callback, "written", None)):
                return callback
        raise ArgumentError(
            "loss_guard with policy='rollback' goes back to a checkpoint, and no callback saves any: "
            "add ('checkpoint_saver', {'folder': 'checkpoints', 'interval': '100ba'}) to callbacks"
        )

    def _roll_back(self, state: State, what: str) -> Path:
        """Go back to the latest checkpoint, or for each batch in a row one further; return which it is."""
        from ..checkpoint import read_content, read_manifest  # noqa: PLC0415  it can be listed without torch

        go_back: Any = state.go_back
        written: list[Path] = self._saver(state).written()
        of_before = [path for path in written if read_manifest(path)["clock"]["batch"] <= state.timestamp.batch]
        if len(of_before) < self._in_a_row:
            raise NonFiniteLossError(
                f"{what}, and there is no checkpoint to go back to"
                + (f" that loss_guard has not tried, of {len(of_before)}" if of_before else " yet")
            )
        path = of_before[-self._in_a_row]
        go_back(read_content(path))
        return path


def _is_finite(state: State) -> bool:
    """Are the loss and all gradients finite? It waits for the device, once where they are."""
    watched = list(_watched(state))
    # A sum is finite only if all of its terms are, and costs a fraction of looking at each.
    total = sum((tensor.sum() for _, tensor in watched[1:]), watched[0][1].sum())
    return bool(total.isfinite()) or all(bool(tensor.isfinite().all()) for _, tensor in watched)


def _watched(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the loss and the gradients, each with what it is called."""
    yield "the loss", state.loss.detach()
    if state.precision == "amp_fp16" or state.model is None:
        return
    for name, parameter in state.model.named_parameters():
        if parameter.grad is not None:
            grad = parameter.grad.detach()
            yield f"the gradient of {name}", grad.coalesce().values() if grad.is_sparse else grad


def _describe(state: State) -> str:
    """Say what is not finite, where, and at which loss."""
    name, tensor = next((name, tensor) for name, tensor in _watched(state) if not tensor.isfinite().all())
    loss, now = state.loss.item(), state.timestamp
    found = f"is {loss}" if tensor.ndim == 0 and name == "the loss" else f"is not finite (with a loss of {loss:.4g})"
    return f"{name} {found} at batch {now.batch} (epoch {now.epoch})"


def _warn(message: str) -> None:
    warnings.warn(message, NonFiniteLossWarning, stacklevel=3)
