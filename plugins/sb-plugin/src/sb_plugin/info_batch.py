"""InfoBatch as an algorithm of the engine: it skips easy examples, and rescales the losses of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch.utils.data import RandomSampler, SequentialSampler

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, Loss, State
from engine_core.arguments import check_key, check_number, check_whole
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError
from engine_core.objective import autocast_of

from .indexed import ids_in_order
from .scorers.tables import REMEDY, Carried
from .skipping import fill_last_batch, skip_easy
from .subject import Subject

__all__ = ["InfoBatch"]

NAME = "info_batch"
SKIPPED, PLAIN, RESCALED = range(3)


class _Plan(NamedTuple):
    """What one epoch does with each example, by its id (n,): SKIPPED, PLAIN or RESCALED."""

    epoch: int
    by_id: torch.Tensor


class InfoBatch(Algorithm):
    """Skip easy examples in most epochs, and let those that stay count for the skipped ones.

    Source: Qin et al. 2024, InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning, arXiv 2303.04947.
    When an epoch begins, each example whose loss at its last visit is below the mean is skipped with probability `r`.
    The loss of those below the mean that stay counts `1 / (1 - r)` times, so the gradients of an epoch have the same
    expected sum as without. Epochs that begin at `delta` of the training or later use all examples.

    Args:
        r: the probability, in [0, 1); with 0 it never acts.
        delta: the part of the training in which examples are skipped, in [0, 1].
        index_key: where the ids of the examples are in a batch, their places in the dataset, as `WithIndex` gives them.

    Example:
        >>> InfoBatch(r=0.25).delta
        0.875
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=NAME,
        description="skip easy examples in most epochs",
        events=(
            Event.INIT,
            Event.AFTER_LOAD,
            Event.FIT_START,
            Event.EPOCH_START,
            Event.BEFORE_TRAIN_BATCH,
            Event.AFTER_LOSS,
            Event.BATCH_END,
        ),
        tags=("epoch_pruning",),
        conflicts=("@epoch_pruning", "@batch_pruning", "@target_mixing"),
        writes=("loss",),
        needs=("duration", "whole_batch", "row_loss", "epoch_order"),
    )

    def __init__(self, r: float = 0.5, delta: float = 0.875, index_key: BatchKey = 2) -> None:
        self.r = check_number("r", r, "[0, 1)", "the probability to skip an easy example")
        self.delta = check_number("delta", delta, "[0, 1]", "the part of the training in which examples are skipped")
        check_key("index_key", index_key)
        self.index_key = index_key
        self._run: tuple[Subject, Carried] | None = None
        self._plan: _Plan | None = None
        self._former: _Plan | None = None
        """What the running epoch does, if a state was loaded meanwhile: a run that goes back keeps its data."""
        self._loaded: Mapping[str, Any] = {}

    def match(self, event: Event, state: State) -> bool:
        """EPOCH_START where examples are skipped, and the events of a step that record losses or rescale them."""
        if not self.r:
            return False
        if event in (Event.INIT, Event.FIT_START, Event.AFTER_LOAD):
            return True
        if event is Event.EPOCH_START:
            return self._skips(state)
        if self._run is None:
            return False
        if event is Event.AFTER_LOSS and self._plan_of(state) is not None:
            return not state.is_placeholder
        return self._run[1].wants(event) and (event is not Event.BEFORE_TRAIN_BATCH or self._skips(state))

    def validate(self, state: State) -> None:
        """Raise if there are no ids, no losses of rows, or no end of training."""
        if not self.r:
            return
        if state.get_elapsed_duration() is None:
            raise ArgumentError(f"max_duration is not known, so delta={self.delta} can't be located in it: set it")
        subject, losses = self._run_of(state)
        losses.check(subject, state.batch)

    def may_rest(self, state: State) -> bool:
        """Where no example is skipped."""
        return not self.r or not self.delta

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Give the order of the epoch; record the losses of a step, and rescale some."""
        if event is Event.INIT:
            self._begin(state)
            return
        subject, losses = self._run_of(state)
        if event is Event.FIT_START:
            losses.begin_fit()
        elif event is Event.AFTER_LOAD:
            self._former = None
        elif event is Event.EPOCH_START:
            self._begin_epoch(losses, state, logger)
        else:
            if losses.wants(event):
                losses.react(event, subject, state)
            if event is Event.AFTER_LOSS and (plan := self._plan_of(state)) is not None:
                self._rescale(plan, subject, losses, state)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses of the examples, and what the latest epoch does with them."""
        if self._run is None:
            return dict(self._loaded)
        plan = {} if self._plan is None else {"epoch": self._plan.epoch, "by_id": self._plan.by_id.cpu().clone()}
        return {**self._run[1].state_dict(), **plan}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the losses of the saved run, and within its epoch."""
        plan = None
        if "by_id" in state:
            by_id, epoch = state["by_id"], check_whole("epoch", state.get("epoch"), "[0, inf)", "which epoch is saved")
            if not isinstance(by_id, torch.Tensor) or by_id.dtype is not torch.uint8 or by_id.dim() != 1:
                raise ArgumentError("'by_id' in the state has to be a tensor of uint8 (n,), one for each example")
            plan = _Plan(epoch, by_id.clone())
        if self._run is None:
            self._loaded = dict(state)
            return
        self._run[1].load_state_dict(state if "table" in state else {"table": torch.empty(0)})
        self._plan, self._former = plan, self._plan

    def _begin_epoch(self, losses: Carried, state: State, logger: Logger | None) -> None:
        size, loader = state.dataset_size, state.train_dataloader
        if size is None:
            state.order_of_epoch([0])  # it says why, if the loader takes no order
            raise ArgumentError("info_batch has to know how many examples there are: give the dataset a __len__")
        _check_sampler(getattr(loader, "sampler", None), size)
        ids = ids_in_order(loader.dataset, size)  # type: ignore[union-attr]  # which has a size
        plan = self._plan_of(state)
        if plan is None:  # else EPOCH_START fires again, after an exception
            generator = _generator(state, "skipped")
            skipped, rescaled = skip_easy(losses.table.look_up(ids), self.r, generator)
            if not getattr(loader, "drop_last", False):
                skipped = fill_last_batch(skipped, getattr(loader, "batch_size", None) or 1, generator)
            by_id = torch.zeros(int(ids.max()) + 1, dtype=torch.uint8)
            by_id[ids[~skipped]] = PLAIN
            by_id[ids[rescaled]] = RESCALED
            self._plan = plan = _Plan(state.timestamp.epoch, by_id)
        kept = (plan.by_id[ids] != SKIPPED).nonzero().flatten()
        state.order_of_epoch(kept[torch.randperm(len(kept), generator=_generator(state, "order"))])
        if logger is not None and logger.destinations:
            logger.log_metrics({f"{NAME}/kept_fraction": len(kept) / size})

    def _rescale(self, plan: _Plan, subject: Subject, losses: Carried, state: State) -> None:
        """Let the losses of rescaled rows count for those of skipped examples."""
        ids = losses.ids_in(state.batch, state.batches.rows(state.batch)).cpu()
        known = ids[ids < len(plan.by_id)]
        kinds = plan.by_id[known]
        if len(known) < len(ids) or (kinds == SKIPPED).any():
            raise ArgumentError(
                f"index_key={self.index_key!r} finds ids that are not the places of the examples in the dataset of the "
                f"train_dataloader: wrap that dataset last; {REMEDY}"
            )
        rows = (kinds == RESCALED).nonzero().flatten()
        if len(rows):
            state.loss = _with_more(subject, state, rows, 1 / (1 - self.r) - 1)

    def _skips(self, state: State) -> bool:
        elapsed = state.get_elapsed_duration()
        return elapsed is not None and elapsed.value < self.delta

    def _plan_of(self, state: State) -> _Plan | None:
        """Return what the running epoch does with each example, None if that is nothing."""
        epoch = state.timestamp.epoch
        return next((plan for plan in (self._plan, self._former) if plan is not None and plan.epoch == epoch), None)

    def _run_of(self, state: State) -> tuple[Subject, Carried]:
        """Return what belongs to the run of `state`, even if INIT was not fired."""
        return self._run if self._run is not None and self._run[0].is_of(state) else self._begin(state)

    def _begin(self, state: State) -> tuple[Subject, Carried]:
        subject = Subject(state)
        self._run = run = subject, Carried(state.ranks, self.index_key, 0.0, subject.device)
        self._plan = self._former = None
        if self._loaded:
            self.load_state_dict(self._loaded)
            self._loaded = {}
        return run


def _check_sampler(sampler: Any, size: int) -> None:
    """Raise for a sampler that does not load each example once: it may keep some for validation."""
    repeats = getattr(sampler, "replacement", False)
    if type(sampler) not in (RandomSampler, SequentialSampler) or len(sampler) != size or repeats:
        raise ArgumentError(
            f"info_batch chooses among all examples, and the train_dataloader's {type(sampler).__name__} "
            "does not load each of them once: give DataLoader(Subset(dataset, indices), batch_size=..., shuffle=True)"
        )


def _generator(state: State, what: str) -> torch.Generator:
    """Return a generator of one epoch, the same on all ranks, and again in an epoch that begins a second time."""
    seed = state.derive_seed(f"{NAME}/{state.timestamp.epoch}/{what}", shared=True)
    return torch.Generator().manual_seed(seed)


def _with_more(subject: Subject, state: State, rows: torch.Tensor, more: float) -> Any:
    """Return the loss with `more` of the losses of some rows (k,), divided by what it is divided by.

    A loss of parts of a batch adds up to that of the batch, so these rows' loss is computed as a batch's is.
    """
    objective, batches, given = state.objective, state.batches, state.loss
    outputs, batch = (batches.part(each, rows) for each in (state.outputs, state.batch))
    count = objective.counted(given, state.outputs, state.batch).count
    if count is not None and not count:  # nothing counts: the loss is NaN, and no step is taken
        return given
    with autocast_of(state.precision, subject.device):
        part = objective.counted(objective.given(state.model, outputs, batch), outputs, batch)
    if isinstance(given, Loss):
        return Loss(given.sum + more * part.sum, given.count, given.parts)
    scalar, parts = objective.scalar(given)
    total = scalar + more * (part.sum if count is None else part.sum / count)
    return total if isinstance(given, torch.Tensor) else {**parts, "total": total}
