"""The state of a Trainer's loop, kept from one `fit` to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from ..engine import Engine
from ..errors import ObjectiveError
from ..loop import Loop, RunStatus, without_trace
from ..messages import warn
from ..objective import AT, Law, Loss, as_nothing, couples_rows, tolerance_of
from ..parallel import Parallel, Wrapping
from ..state import State
from ..time import FIELD_OF, Interval, Time
from .data import Feed, deal
from .interruption import interruption
from .loss_log import LossReader
from .optimizers import Schedule
from .precision import Precision
from .step_sync import StepSync
from .unread import warn_of_unread


@dataclass(eq=False)
class Session:
    """What the loop works with, and what it keeps from one `fit` to the next.

    Args:
        seam: fires the events of training, and keeps the clock and what the run is doing.
        wrapping: what is called in training, and waits for the other ranks.
        parallel: how the run is spread; None: it trains in one process.
        schedulers: torch schedulers, each with the interval at which it steps, and lengths of this run in its steps.
        batches: the loader in mid-epoch, or None between epochs.
        given_modes: what parameters and modules were given as, see `resume.modes`.
        given_shapes: the shapes that parameters and buffers were given in, see `resume.weights`.
        left_in_eval: was the model in eval mode before FIT_END, or when the run was saved, as a callback had put it?
        attempt: one more than that of the checkpoint that was resumed, 0 in a fresh run.
        misfits: what was said about schedulers whose length is not the run's when the latest fit began.
        untrained: names of the trainable parameters that were in no optimizer when the latest fit began.
        has_measured: have the metrics seen a batch?
        has_told_of_coupled: was it said that layers look at several rows together?
        has_looked_at_items: was it asked whether the items of a batch are read?
        told_of: labels of the loaders of which it was said that their loss is approximate.
        own_pieces: how many microbatches of the current batch are this rank's.
        law_held: was the law of the loss measured last, and held?
        measured: how many batches could have broken the law of the loss; `measured_at`: the clock at the latest.
        together: what the ranks agree on; None in one process.
    """

    seam: Loop
    precision: Precision
    device: torch.device
    readings: LossReader
    eval_interval: Interval
    feed: Feed
    parallel: Parallel | None = None
    microbatch_size: int | None = None
    grad_clip_norm: float | None = None
    engine: Engine = field(init=False)
    state: State = field(init=False)
    status: RunStatus = field(init=False)
    wrapping: Wrapping = field(init=False)
    schedulers: Sequence[Schedule] = field(default=(), init=False)
    together: StepSync | None = field(default=None, init=False)
    given_modes: dict[str, Any] = field(default_factory=dict, init=False)
    given_shapes: dict[str, Any] = field(default_factory=dict, init=False)
    left_in_eval: bool = field(default=False, init=False)
    attempt: int = field(default=0, init=False)
    batches: Iterator[Any] | None = field(default=None, init=False)
    misfits: frozenset[str] = field(default=frozenset(), init=False)
    untrained: frozenset[str] = field(default=frozenset(), init=False)
    has_measured: bool = field(default=False, init=False)
    has_looked_at_items: bool = field(default=False, init=False)
    told_of: set[str] = field(default_factory=set, init=False)
    has_told_of_coupled: bool = field(default=False, init=False)
    own_pieces: int = field(default=1, init=False)
    law_held: bool = field(default=False, init=False)
    measured: int = field(default=0, init=False)
    measured_at: int = field(default=-1, init=False)

    def __post_init__(self) -> None:
        self.engine, self.state, self.status = self.seam.engine, self.seam.state, self.seam.status
        if self.state.world_size > 1:
            self.together = StepSync(self.state, self.engine.unheard, self.feed)

    def split(self, batch: Any) -> tuple[Sequence[Any], float | None]:
        """Return the batch's microbatches, and by what their losses are divided; None: it is alone, and not divided."""
        state, together = self.state, self.together
        if together is not None:
            self.wrapping.follow()
        size = self.microbatch_size
        pieces = [batch] if size is None or state.is_placeholder else state.batches.split(batch, size)
        self.own_pieces = len(pieces)
        if len(pieces) > 1:
            self.warn_of_coupled_rows()
        if together is None:
            if len(pieces) == 1:
                return pieces, None
            self.check_law(batch)
            return pieces, state.batches.rows(batch)
        self.check_law(batch)
        if size is not None:
            pieces = pieces + pieces[-1:] * (together.most(len(pieces)) - len(pieces))
        return pieces, together.nominal

    def counted(self, loss: Loss) -> Loss:
        """Return the loss of a microbatch: that of a rank without rows counts nothing."""
        if not self.state.is_placeholder:
            return loss
        parts = {name: as_nothing(part) for name, part in loss.parts.items()}
        return Loss(as_nothing(loss.sum), None if loss.count is None else 0, parts)

    def unscale(self) -> None:
        """Take the scaler's factor out of the gradients."""
        for optimizer in self.state.optimizers:
            self.precision.scaler.unscale_(optimizer)  # type: ignore[union-attr]

    def check_law(self, batch: Any) -> None:
        """Measure whether losses of parts add up to that of the batch, in the batches of `AT`.

        Raises:
            ObjectiveError: (an ArgumentError) if they don't, before the step.
        """
        state, objective = self.state, self.state.objective
        if not objective.check or objective.is_certain() or state.timestamp.batch == self.measured_at:
            return
        is_due, model = self.measured + 1 in AT, cast("Any", state.model)
        if is_due and any(map(torch.nn.parameter.is_lazy, model.parameters())):  # the first forward gives it its shapes
            return
        self.measured_at, self.measured = state.timestamp.batch, self.measured + 1
        if not is_due:
            return
        said = self.law().broken_by(batch)
        self.law_held = said == ""
        if state.ranks.any(said):
            parts = "on several ranks" if self.microbatch_size is None else "in microbatches"
            raise ObjectiveError(
                f"{said or 'another rank found that its loss does not add up'}; until then it can't be trained "
                f"{parts}. Objective(check=False) switches this off"
            )

    def law(self, *, in_eval: bool = False) -> Law:
        """Return the law of the run's loss, in training or in evaluations."""
        state, model = self.state, cast("Any", self.state.model)
        run = self.precision.wrap(lambda block: without_trace(model, self.device, block))
        return Law(state.objective, model, run, state.ranks.any, tolerance_of(state.precision, self.device), in_eval)

    def adds_up(self) -> bool:
        """Is it known that microbatches give the gradients of the batch?"""
        objective = self.state.objective
        return (objective.is_certain() or self.law_held) and not couples_rows(cast("Any", self.state.model))

    def end_test(self, end: Time) -> Callable[[], bool]:
        """Return a function that says whether the clock has reached `end`, or the run was asked to stop."""
        length, state, together = Interval(end, "duration").length, self.state, self.together
        field_, value = FIELD_OF[length.unit], length.value
        if together is None:
            return lambda: state.timestamp[field_] >= value or state.loop.stop_requested
        return lambda: state.timestamp[field_] >= value or together.stop

    def deal(self, loader: Iterable[Any], *, in_step: bool = True) -> Iterator[tuple[Any, int]]:
        """Return this rank's part of each batch of an evaluation, see `data.deal`."""
        try:
            yield from deal(loader, self.state, self.device, is_local=self.feed.is_local, in_step=in_step)
        finally:
            self.wrapping.rest()

    def agree_on_end(self) -> None:
        """Let what any rank has asked for count on all of them."""
        if self.together is not None:
            self.together.agree_on_end()

    def is_asked_to_pause(self) -> bool:
        """Does a signal or a pause, on any rank, end `fit` before the run is complete?"""
        self.agree_on_end()
        return self.state.is_interrupted

    def is_signalled(self) -> bool:
        """Does a signal, on any rank, end an evaluation that is not part of a fit?"""
        self.agree_on_end()
        return self.state.loop.interrupted_by is not None

    def end_if_interrupted(self) -> None:
        """Raise what a signal asks for, with the model as the run leaves it."""
        number = self.state.loop.interrupted_by
        if number is not None:
            raise interruption(number, self.state.timestamp.batch)

    def is_training(self) -> bool:
        """Is the model in train mode?"""
        return cast("torch.nn.Module", self.state.model).training

    def warn_of_coupled_rows(self) -> None:
        """A batch is cut: warn once of layers whose statistics in training depend on that."""
        if self.has_told_of_coupled:
            return
        self.has_told_of_coupled = True
        if names := couples_rows(cast("Any", self.state.model)):
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warn(
                f"BatchNorm ({names[0]!r}{others}) takes its statistics in training from each microbatch, so with "
                f"microbatch_size={self.microbatch_size} steps differ from those of whole batches; GroupNorm and "
                "LayerNorm look at each row alone",
                UserWarning,
            )

    def warn_of_unread(self) -> None:
        """Warn once of items of the batch that nothing reads."""
        if not self.has_looked_at_items:
            self.has_looked_at_items = True
            warn_of_unread(self.state, self.engine)
