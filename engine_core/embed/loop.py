"""The moments of a training loop, from INIT to FIT_END, one method for each. Fires the events and keeps the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..engine import Engine
from ..event import Event
from ..logger import Logger
from ..needs import Offers
from ..passes import PassArgument
from ..state import State
from ..time import Timestamp
from .evaluation import EvaluationMoments
from .saving import check_saved, put_back, saved_state
from .status import Phase, RunStatus
from .step import StepMoments


class EmbeddedLoop(StepMoments, EvaluationMoments):
    """An engine in a training loop, which calls a method at each of its moments.

    Methods return what the loop has to use in place of what it gave; a loop that can't says so in its offers. Losses
    are weighted by the loop, in microbatches and over processes: whatever is given here counts as it is.

    Args:
        state: what algorithms and callbacks work on.
        offers: what the loop offers; who needs more is refused, with the reason.
        logger: what they log to.
        algorithm_passes: the user's own passes.

    Attributes:
        engine: its algorithms, callbacks and passes.
        status: what the run is doing.
        samples, tokens: how many were loaded since the latest step.
        needs_rows: does the loop cut batches? Then those whose rows can't be counted are refused, with what to write.
        lengths: of training, in the loop's own arguments, by name: those in `sp` or `tok` need that to be counted.
        counted_s: the time up to which the training clock has counted; it stands still while an evaluation runs.

    Raises:
        UnsupportedError: (an EngineError) if an algorithm or a callback needs what the loop does not offer.

    Example:
        >>> import torch
        >>> from engine_core.needs import EVERYTHING
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loop = EmbeddedLoop(State(model=model, optimizers=[optimizer]), EVERYTHING)
        >>> loop.init()
        >>> loop.fit_start()
        >>> loop.epoch_start()
        >>> for batch in [torch.ones(4, 2)] * 3:
        ...     batch = loop.take(batch)
        ...     loop.begin_step(optimizer.zero_grad)
        ...     outputs = loop.end_forward(model(loop.begin_forward(batch)))
        ...     loop.begin_loss()
        ...     loss = loop.begin_backward(loop.end_loss(outputs.square().mean()))
        ...     loss.backward()
        ...     loop.end_backward()
        ...     if loop.end_gradients():
        ...         optimizer.step()
        ...     if loop.end_step():
        ...         break
        ...     loop.batch_checkpoint()
        ... else:  # the epoch is complete
        ...     loop.epoch_end()
        ...     loop.epoch_checkpoint()
        >>> loop.fit_end()
        >>> loop.state.timestamp[:3]
        (1, 3, 12)
        >>> loop.close()
    """

    def __init__(
        self,
        state: State,
        offers: Offers,
        *,
        logger: Logger | None = None,
        algorithm_passes: PassArgument | None = None,
    ) -> None:
        state.loop.offers = offers
        self.state = state
        self.engine = Engine(state, Logger() if logger is None else logger, algorithm_passes)
        self.fire = self.engine.run_event
        self.status = RunStatus(state)
        self.counted_s = time.perf_counter()
        self._unheard = self.engine.unheard
        self._closure: Callable[[], Any] | None = None
        self._loaded: Mapping[str, Any] | None = None  # until a fit starts
        self._ended: Timestamp | None = None  # the clock after the latest EPOCH_END, until another epoch starts

    def offer(self, offers: Offers) -> None:
        """Say anew what the loop offers, as soon as it is known.

        Raises:
            UnsupportedError: (an EngineError) if an algorithm or a callback needs more.
        """
        self.state.loop.offers = offers
        self.engine.refresh()

    def init(self) -> None:
        """INIT: the model is there as the user made it, and no optimizer was made for it by the loop."""
        self.fire(Event.INIT)

    # ---- a fit

    def begin_fit(self, closure: Callable[[], Any] | None = None) -> None:
        """Training is about to begin, or to continue, and can be asked to stop; `fit_start` calls it if nothing has.

        Args:
            closure: resets the gradients and computes those of the step again; see `LoopControl.closure`.
        """
        self.status.begin_fit()
        self._look_at_lengths()
        self.counted_s = time.perf_counter()
        self._closure = closure
        self.state.loop.closure = None if closure is None else self._compute_again

    def fit_start(self, closure: Callable[[], Any] | None = None) -> None:
        """FIT_START: weights are loaded and optimizers made. For `closure` see `begin_fit`."""
        if self.status.phase is not Phase.TRAINING:
            self.begin_fit(closure)
        if self._loaded is not None:
            self._put_back(self._loaded)
        self.engine.look_in_place()
        self.fire("fit_start")

    def fit_end(self) -> None:
        """FIT_END: all batches of this fit are done."""
        self.status.has_ended = self.state.is_complete
        self.fire("fit_end")
        self.end_fit()

    def end_fit(self) -> None:
        """No fit is running, whatever ended it."""
        self.status.end_fit()
        self.state.loop.closure = self._closure = None
        self.samples = self.tokens = 0
        self._rates, self.state.between_batches = (), False

    @contextmanager
    def fitting(self, closure: Callable[[], Any] | None = None) -> Iterator[None]:
        """Be in a fit within the block, from `fit_start` to `fit_end`, or to `undo` after an exception."""
        try:
            self.fit_start(closure)
            yield
            self.fit_end()
        except BaseException as error:
            self.undo(error)
            raise

    def epoch_start(self) -> None:
        """EPOCH_START, before the first batch of an epoch is asked for."""
        self.fire("epoch_start")
        self.status.reopens_epoch, self._ended = False, None

    def epoch_end(self, then: Callable[[Timestamp, Timestamp], object] | None = None) -> None:
        """Count the epoch, then EPOCH_END; called again before another epoch starts, it does nothing.

        Args:
            then: called in between with the clock before and after, to step schedulers.
        """
        before = self.state.timestamp
        if before == self._ended:
            return
        self.state.timestamp = self._ended = after = before.to_next_epoch()
        if then is not None:
            then(before, after)
        self.fire("epoch_end")

    def epoch_checkpoint(self) -> None:
        """EPOCH_CHECKPOINT, after the evaluation that an epoch's end may bring."""
        self.fire("epoch_checkpoint")

    # ---- exceptions and the end

    def undo(self, error: BaseException) -> None:
        """`error` ends the fit: let algorithms put back what they changed for a while."""
        if Event.EPOCH_START in self.engine.undo(error):
            self.status.reopens_epoch = True
        self._end_evaluation()
        self.end_fit()
        self._loaded = None  # the next fit begins anew, unless something is loaded again

    def state_dict(self) -> dict[str, Any]:
        """Return what the loop's checkpoint has to hold of ours, as a tree of tensors and of values that JSON has."""
        return saved_state(self.engine) if self._loaded is None else dict(self._loaded)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned, then AFTER_LOAD; before a fit runs, both wait for `fit_start`.

        Raises:
            CheckpointError: if algorithms that the saved run had are missing, or the format is newer.
        """
        check_saved(self.engine, saved)
        if self.status.phase is Phase.IDLE:
            self._loaded = saved
        else:
            self._put_back(saved)

    def _put_back(self, saved: Mapping[str, Any]) -> None:
        put_back(self.engine, saved)
        now, self._loaded = self.state.timestamp, None
        self._ended = None if now.batch_in_epoch else now
        self.fire("after_load")

    def close(self) -> None:
        """Close callbacks and loggers; safe to call twice."""
        self.engine.close()
