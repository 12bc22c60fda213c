"""Selective Backprop as an algorithm of the engine: glue between State and the functions of this package."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError
from engine_core.randomness import OwnGenerator
from engine_core.ranks import Ranks

from . import arguments
from .arguments import ScorerArgument, Selector, check_choice
from .breakdown import check_classes, kept_by_class, kept_by_loss
from .run import NAME, Run, counts_of
from .schedule import should_selective_backprop
from .scorers import make_scorer
from .scoring import summary_of
from .select import draw_rows, draw_uniform, number_kept
from .subject import Subject

__all__ = ["SelectiveBackprop"]


class SelectiveBackprop(Algorithm):
    """Train on the hard rows of each batch.

    Source: Jiang et al. 2019, Accelerating Deep Learning by Focusing on the Biggest Losers, arXiv 1910.00762. In
    steps within `[start, end)` of training, the rows of the batch are scored, and the step trains on
    `max(1, floor(keep * n))` of them, drawn by the rank of their score. See `select_using_loss`.

    Args:
        start, end: the interval, as fractions of the whole training.
        keep: the fraction of rows that is kept, in (0, 1].
        scale_factor: the factor for the spatial size of the input in the scoring forward, in (0, 1].
        interrupt: make every `interrupt`-th batch of an epoch an ordinary step; 0: none.
        input_key, target_key: where inputs and targets are in a batch, for `scale_factor` and `log_by`; with a
            `loss_fn` these are what the objective gives the model and the loss.
        selector: how rows are drawn: `"composer"`, `"cdf"` (the paper's), `"topk"`, `"uniform"` (without scores), or a
            function `(scores, k, generator) -> rows`.
        scorer: `"forward"`: a forward without gradients; `"stale"`: one for each example every `refresh` visits;
            `"carried"`: the losses of earlier training steps, no forward at all; `"proxy"`: the losses of a small net
            that trains beside the model; `"rho"`: RHO-LOSS, the loss of a forward minus the irreducible one; or a
            function `(batch, state) -> scores`.
        proxy: that small net, or a function that makes it, alone or as a pair with its optimizer, or the import path
            of one, `"mynets:small"`. Without an optimizer of its own it trains as the model does.
        irreducible: for `"rho"`: the losses of the examples by id (examples,), or a model trained on other data; or a
            function that makes either, or the import path of one.
        index_key: where the ids of the examples are in a batch, whole numbers from 0, as `WithIndex` gives them.
        refresh: for how many visits of an example its score is used, for `"stale"`.
        momentum: the share of the old value in a new carried loss.
        bn: BatchNorm in the scoring forward: `"frozen"` uses the batch's statistics and records none, `"train"`
            records them, `"eval"` scores the model in eval mode.
        precision: of the scoring forward: `"engine"`, that of the run, `"fp32"` or `"bf16"`.
        reuse: use the outputs of linear layers in the scoring forward again: `"off"`, `"auto"` where that changes no
            bit, `"on"` to raise where it would.
        floor: the share of the uniform distribution in the draw, in [0, 1).
        multiple_of: the number of kept rows is rounded down to a multiple, but never below 1.
        generator_seed: seeds the draws instead of the run's seed.
        scope: on several ranks, whose rows compete: `"global"`, those of all ranks, so that they keep the rows that one
            process keeps; or `"rank"`, those of each rank, which then tell each other nothing.
        log_by: log the kept fraction of each step by `"class"` of the targets, or by tenth of the `"loss"`.

    Example:
        >>> SelectiveBackprop(start=0.0, end=1.0, keep=0.25, scale_factor=1, interrupt=0).keep
        0.25
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=NAME,
        description="train on the hard rows of each batch",
        events=(
            Event.INIT,
            Event.FIT_START,
            Event.AFTER_DATALOADER,
            Event.BEFORE_TRAIN_BATCH,
            Event.BEFORE_FORWARD,
            Event.AFTER_FORWARD,
            Event.AFTER_LOSS,
            Event.BATCH_END,
            Event.FIT_END,
        ),
        tags=("batch_pruning",),
        writes=("batch",),
    )

    def __init__(  # noqa: PLR0913, PLR0917  the reference has the first seven, in this order
        self,
        start: float = 0.5,
        end: float = 0.9,
        keep: float = 0.5,
        scale_factor: float = 0.5,
        interrupt: int = 2,
        input_key: BatchKey = 0,
        target_key: BatchKey = 1,
        *,
        selector: Selector = "composer",
        scorer: ScorerArgument = "forward",
        proxy: Any = None,
        irreducible: Any = None,
        index_key: BatchKey | None = None,
        refresh: int = 3,
        momentum: float = 0.5,
        bn: str = "frozen",
        precision: str = "engine",
        reuse: str = "off",
        floor: float = 0.0,
        multiple_of: int = 1,
        generator_seed: int | None = None,
        scope: str = "global",
        log_by: str | None = None,
    ) -> None:
        self.start, self.end = arguments.check_interval(start, end)
        self.keep = arguments.check_keep(keep)
        self.scale_factor = arguments.check_scale_factor(scale_factor)
        self.interrupt = arguments.check_interrupt(interrupt)
        self.input_key, self.target_key, self.index_key = arguments.check_keys(input_key, target_key, index_key)
        self.selector = arguments.check_selector(selector)
        self.scorer = arguments.check_scorer(scorer)
        self.proxy = arguments.check_maker("proxy", proxy)
        self.irreducible = arguments.check_maker("irreducible", irreducible)
        self.refresh = arguments.check_refresh(refresh)
        self.momentum = arguments.check_momentum(momentum)
        self.bn = check_choice("bn", bn, arguments.BN_MODES)
        self.precision = check_choice("precision", precision, arguments.PRECISIONS)
        self.reuse = check_choice("reuse", reuse, arguments.REUSES)
        self.floor = arguments.check_floor(floor)
        self.multiple_of = arguments.check_multiple_of(multiple_of)
        self.generator_seed = arguments.check_generator_seed(generator_seed)
        self.scope = check_choice("scope", scope, arguments.SCOPES)
        self.log_by = arguments.check_log_by(log_by, self.selector, self.scorer)
        arguments.check_selection(self.selector, self.floor)
        arguments.check_nets(self.scorer, self.proxy, self.irreducible)
        arguments.check_scoring(vars(self))
        arguments.check_reuse(vars(self))
        self._generator = OwnGenerator(NAME, self.generator_seed, shared=self.scope == "global")
        events, needs = arguments.declared(vars(self))
        self.metadata = self.metadata.replace(events=events, needs=needs)  # type: ignore[misc]  # this instance's own
        self._run: Run | None = None
        self._loaded: Mapping[str, Any] = {}

    def match(self, event: Event, state: State) -> bool:
        """AFTER_DATALOADER in selective steps; otherwise what its scorer and the log of the run need."""
        if event is Event.AFTER_DATALOADER:
            return self.keep != 1 and (self._is_selective(state) or self._learns(state))
        if event is Event.INIT or event is Event.FIT_START:
            return True
        run = self._run
        if run is None or self.keep == 1:
            return False
        if event is Event.FIT_END:
            # The resumed run logs it once, for both; ranks that count by themselves may have dropped none.
            return (run.dropped > 0 or self._counts_apart(state)) and not state.is_interrupted
        return run.scorer.wants(event) and (event is not Event.BEFORE_TRAIN_BATCH or _done(state) < self.end)

    def validate(self, state: State) -> None:
        """Raise if the loss, the length of training or the batch make selection impossible."""
        if self.keep == 1:
            return
        run = self._run_of(state)
        scales = self.scale_factor != 1 and self.selector != "uniform" and self.scorer in ("forward", "stale")
        run.subject.check_keys(scales=scales, logs=self.log_by == "class")
        run.scorer.check(run.subject, state.batch)
        if self.log_by == "class":
            check_classes(state.batch, self.target_key, run.subject.count(state.batch))
        if state.get_elapsed_duration() is None and (self.start, self.end) != (0, 1):
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} and end={self.end} can't be located in it: "
                "set max_duration, or start=0 and end=1 to select at any time"
            )

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace the batch with its hard rows; at INIT take the loss of the model."""
        if event is Event.INIT:
            self._begin(state)
            return
        run = self._run_of(state)
        if event is Event.AFTER_DATALOADER and self._is_selective(state):
            self._prune(run, state, logger)
        elif event is Event.FIT_START:
            run.scorer.begin_fit()
        elif event is Event.FIT_END:
            dropped = int(state.ranks.sum(run.dropped)) if self._counts_apart(state) else run.dropped
            if logger is not None and dropped:
                logger.log_metrics(run.shares(dropped, state.timestamp))
        else:
            run.scorer.react(event, run.subject, state)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator, and what the scorer knows about the examples."""
        run = self._run
        if run is None:
            return {**self._loaded, **self._generator.state_dict()}
        counts = {"dropped": run.dropped, "scoring_s": run.scoring_s}
        return {**run.scorer.state_dict(), **counts, **self._generator.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the draws and scores of the saved run."""
        run = self._run
        where = (torch.device("cpu"), Ranks()) if run is None else (run.subject.device, run.scorer.ranks)
        scorer = make_scorer(vars(self), *where)
        scorer.load_state_dict(state)
        counts = counts_of(state)
        self._generator.load_state_dict(state)
        if run is None:
            self._loaded = dict(state)
        else:
            run.restore(scorer, *counts)

    def _prune(self, run: Run, state: State, logger: Logger | None) -> None:
        ranks, own = run.scorer.ranks, run.scorer.number(run.subject, state, state.batch)
        counts, deal = ranks.parts(state.batch, own, moves=self.reuse == "off")
        n = sum(counts)
        k = number_kept(n, self.keep, self.multiple_of)
        if k == n:
            if self._learns(state):
                run.scorer.react(Event.AFTER_DATALOADER, run.subject, state)
            return
        generator = self._generator.of(state, self)
        logs = logger is not None and logger.destinations
        log: dict[str, float] | None = {"kept": k} if logs else None
        if self.selector == "uniform":
            scores, rows = None, draw_uniform(n, k, generator, run.subject.device)
        else:
            started_s = time.perf_counter()
            scores = run.scorer.scores(run.subject, state, state.batch, generator, log)
            run.scoring_s += time.perf_counter() - started_s
            rows = draw_rows(scores, k, self.keep, generator, self.selector, self.floor)
            if callable(self.selector):  # it may draw from elsewhere
                rows = ranks.first(rows)
        if self.reuse != "off" or self.scorer == "proxy":
            start = sum(counts[: ranks.rank])
            run.scorer.keep(rows[(rows >= start) & (rows < start + own)] - start, k, state)
        classes = ranks.gather(state.batch_get_item(self.target_key)[:own])[0] if self.log_by == "class" else None
        state.batch, state.is_placeholder = deal(rows)
        run.dropped += n - k
        if logger is not None and log is not None:
            if scores is not None:
                log.update(summary_of(scores, rows))
                log.update(kept_by_loss(scores, rows) if self.log_by == "loss" else {})
            log.update({} if classes is None else kept_by_class(classes, rows))
            logger.log_metrics({f"{NAME}/{name}": value for name, value in log.items()})

    def _counts_apart(self, state: State) -> bool:
        """Does each of several ranks count its own rows?"""
        return self.scope == "rank" and state.world_size > 1

    def _learns(self, state: State) -> bool:
        """Does the scorer have something to learn from a batch that is not pruned?"""
        run = self._run
        return run is not None and run.scorer.wants(Event.AFTER_DATALOADER) and _done(state) < self.end

    def _is_selective(self, state: State) -> bool:
        return should_selective_backprop(
            _done(state), state.timestamp.batch_in_epoch, self.start, self.end, self.interrupt
        )

    def _run_of(self, state: State) -> Run:
        """Return what belongs to the run of `state`, even if INIT was not fired."""
        run = self._run
        return run if run is not None and run.subject.is_of(state) else self._begin(state)

    def _begin(self, state: State) -> Run:
        factor = self.scale_factor if self.scorer in ("forward", "stale") else 1
        subject = Subject(state, self.input_key, self.target_key, factor, self.bn, self.precision)
        ranks = state.ranks if self.scope == "global" else Ranks()
        self._run = run = Run(subject, make_scorer(vars(self), subject.device, ranks))
        if self._loaded:
            run.scorer.load_state_dict(self._loaded)
            run.restore(run.scorer, *counts_of(self._loaded))
            self._loaded = {}
        self._generator.of(state, self)  # its state is saved from now on
        return run


def _done(state: State) -> float:
    """Return the fraction of training that is done."""
    elapsed = state.get_elapsed_duration()
    return 0.0 if elapsed is None else elapsed.value
