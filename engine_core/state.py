"""Everything a run knows about itself, as plain data: the run, the position, the batch. Knows no engine."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .batch import Batches, BatchKey, get_item, set_item
from .errors import ArgumentError, EngineError, suggestion
from .needs import EVERYTHING, Offers
from .observed import ObservedList
from .ranks import Ranks
from .results import Results
from .time import FIELD_OF, Time, Timestamp, TimeUnit

if TYPE_CHECKING:
    import torch

    from .checkpoint import Checkpoint
    from .objective import Objective

__all__ = [
    "LoopControl",
    "SpanRecorder",
    "State",
    "epochs_done",
    "length_of",
    "nearest_field",
    "train_length",
]


class SpanRecorder(Protocol):
    """Measures how long the parts of an event take, as the profiler does."""

    def begin(self, span: str) -> None:
        """Open a span that `end` closes."""

    def end(self, span: str) -> None:
        """Close a span if it is open."""

    def span(self, name: str) -> AbstractContextManager[object]:
        """Return a context whose duration is recorded under `name`."""


class _Referable:
    """A base with weak references; dataclass can add them itself only from Python 3.11 on."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True)
class LoopControl:
    """What a loop offers, and what it was asked for: `State.stop_training`, `pause_training` and `skip_step` ask.

    Args:
        offers: what the loop can do; an engine refuses algorithms and callbacks that need more.
        closure: computes the gradients of the batch again, firing the events in between, and returns its loss; for
            AFTER_TRAIN_BATCH. None if the loop has none.
        snapshot: returns a copy of all that the rest of the run depends on, for savers at BATCH_CHECKPOINT and
            EPOCH_CHECKPOINT. None if the loop has none.
        go_back: restores weights and the states of optimizers and algorithms from a saved run, and leaves position,
            schedules, data and random numbers as they are; for AFTER_TRAIN_BATCH. None if the loop has none.
        peek: returns a copy of the first batch that `fit` will train on, which is trained on all the same; for
            `State.peek_batch`. None at other events than INIT and FIT_START, or if the loop has none.
        awaits_weights: do loaded weights follow INIT, or no training? Then INIT need not compute any from data.
        put_in_order: see `State.order_of_epoch`; None but at EPOCH_START, and if the loop has none.
        stop_requested, pause_requested: is `fit` asked to end, and will a resumed run continue from there?
        pause_agreed: do all of several processes know of the pause? Only then it counts.
        stop_reason: why, if whatever asked said so.
        skip_requested: is the loop asked to skip the optimizers' next step?
        schedulers_paused: does an algorithm set the learning rates from here on? The loop then steps no scheduler.
        interrupted_by: the signal that ends `fit` after the next BATCH_CHECKPOINT or EPOCH_CHECKPOINT.
    """

    offers: Offers = EVERYTHING
    closure: Callable[[], torch.Tensor] | None = None
    snapshot: Callable[[], Checkpoint] | None = None
    go_back: Callable[[Checkpoint], None] | None = None
    peek: Callable[[], Any] | None = None
    awaits_weights: bool = False
    put_in_order: Callable[[Any], None] | None = None
    stop_requested: bool = False
    pause_requested: bool = False
    pause_agreed: bool = False
    stop_reason: str | None = None
    skip_requested: bool = False
    schedulers_paused: bool = False
    interrupted_by: int | None = None


@dataclass(eq=False, slots=True)
class State(_Referable):
    """What algorithms and callbacks see and algorithms may change. `State(model=m)` is enough for a loop of your own.

    Run: what stays the same in training. Position: where training is. Batch: what it works on. Only fields can be
    assigned; what a plugin wants to keep here goes into `extra`.

    Args:
        optimizers, schedulers: sequences; a single one may be given as it is.
        algorithms: objects with `match` and `apply`, such as an `Algorithm`.
        callbacks: objects with a method named after an event, such as a `Callback`.
        evaluators: evaluation loaders by label.
        batches: what a row of a batch is, where its tensors do not tell; `ranks` gets it when this is made.
        objective: what the model gets of a batch, its loss, and what that counts; made from `loss_fn` if not given.
        loss_fn: the objective's.
        max_duration: the length of the whole training, the horizon of schedules.
        precision: `fp32`, `amp_bf16` or `amp_fp16`.
        seed: what every random draw of the run derives from; an Engine draws one if it is None.
        false_length: what `len(train_dataloader)` says, and how many batches an epoch gives, if that is another number.
        loaded_from: the checkpoint that the run continues from, if there is one.
        loop: what the loop offers, and what it was asked for.
        config: the content of the file that describes the run, if one does; savers keep it.
        import_from: the folders where what the config names was looked for, as well as where Python looks.
        folder: where the run's files are, if it has a folder.
        rank, world_size: the number of this process, from 0, and how many train together.
        ranks: what these processes tell each other, see `Ranks`; with one process it is there and does nothing.
        metric_objects: what computes the metrics, by name: objects with `update`, `compute` and `reset`.
        metrics: the results of the latest evaluation, `{"<label>/<metric>": float}`.
        results: the last and the best value of each result of the evaluations on `evaluators`.
        between_batches: is the batch used up, and the next one not there yet, as at BEFORE_DATALOADER?
        is_placeholder: has this rank no row of the batch? It then takes part with a row that counts for nothing.
        loss: as the loss function returned it at AFTER_LOSS; one scalar from BEFORE_BACKWARD on, see `loss_weight`.
        loss_weight: what `loss` was divided by: until the last backward of a step in parts, that of each part; then
            that of the batch. None if the batch was computed at once: `count_of_loss` asks the objective.
        gradient_norm: the norm of all gradients of the batch together, unscaled and before they were clipped. None if
            nothing measured it, or the step was skipped.
        extra: what plugins share with each other, each under its registered name; never saved.

    Example:
        >>> state = State(max_duration="10ba", timestamp=Timestamp(batch=4))
        >>> state.get_elapsed_duration()
        Time('0.4dur')
    """

    model: torch.nn.Module | None = None
    optimizers: Sequence[torch.optim.Optimizer] = ()
    schedulers: Sequence[Any] = ()
    train_dataloader: Iterable[Any] | None = None
    evaluators: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    algorithms: list[Any] = field(default_factory=list)
    callbacks: list[Any] = field(default_factory=list)
    batches: Batches = field(default_factory=Batches)
    objective: Objective = field(default=None, repr=False)  # type: ignore[assignment]  # made when it is asked for
    loss_fn: Callable[[Any, Any], Any] | None = None
    metric_objects: Mapping[str, Any] = field(default_factory=dict)
    max_duration: Time | str | None = None
    device: torch.device | str | None = None
    precision: str = "fp32"
    seed: int | None = None
    run_name: str | None = None
    loaded_from: Path | None = None
    config: Mapping[str, Any] | None = None
    import_from: Sequence[str] = ()
    folder: Path | None = None
    profiler: SpanRecorder | None = None
    loop: LoopControl = field(default_factory=LoopControl)
    rank: int = 0
    world_size: int = 1
    ranks: Ranks = field(default_factory=Ranks)

    timestamp: Timestamp = Timestamp()
    eval_timestamp: Timestamp = Timestamp()
    dataloader: Iterable[Any] | None = None
    dataloader_label: str | None = None
    dataloader_len: int | None = None
    false_length: tuple[int, int] | None = None

    between_batches: bool = False
    batch: Any = None
    is_placeholder: bool = False
    outputs: Any = None
    loss: Any = None
    loss_weight: float | torch.Tensor | None = None
    gradient_norm: torch.Tensor | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    results: Results = field(default_factory=Results)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("optimizers", "schedulers", "algorithms", "callbacks"):
            setattr(self, name, ObservedList(ObservedList.of(getattr(self, name))))
        if self.max_duration is not None:
            self.max_duration = _horizon(self.max_duration)
        self.results.ask(self.metric_objects)
        self.ranks.batches = self.batches

    def count_of_loss(self) -> Any:
        """Return the weight of the batch's loss in a mean over batches; None for a sum.

        It is 1 where no batch is kept, or its rows can't be counted.
        """
        if self.loss_weight is not None:
            return self.loss_weight
        if self.batch is None:
            return 1
        try:
            return self.objective.count_of(self.outputs, self.batch)
        except ArgumentError:  # the clock has warned of it
            return 1

    def get_elapsed_duration(self) -> Time | None:
        """Return the fraction of `max_duration` that is done, in unit `dur`, or None if there is no end.

        With `max_duration` in epochs the current epoch counts by its batches, if `dataloader_len` is known.
        """
        if self.max_duration is None:
            return None
        return Time(self.get_progress(_horizon(self.max_duration)), TimeUnit.DURATION)

    def get_progress(self, length: Time | str) -> float:
        """Return how much of a length of training is done: from 0 at the start to 1 at its end, and more after it.

        A length in epochs counts the current epoch as `get_elapsed_duration` does. Nothing is left of a length of 0.

        Raises:
            ArgumentError: (a ValueError) for a fraction, such as `0.1dur`, of a training whose length is not known.

        Example:
            >>> State(timestamp=Timestamp(batch=3)).get_progress("12ba")
            0.25
        """
        whole = length if isinstance(length, Time) else Time(length)
        total: float = whole.value
        if whole.unit is TimeUnit.DURATION:
            elapsed = self.get_elapsed_duration()
            if elapsed is None:
                raise ArgumentError(
                    f"max_duration is not known, so {str(whole)!r} can't be located in the training: set max_duration"
                )
            done: float = elapsed.value
        else:
            done = self.timestamp[FIELD_OF[whole.unit]]
            trains = self.dataloader is self.train_dataloader  # else `dataloader_len` is the evaluation loader's
            if whole.unit is TimeUnit.EPOCH and (batches := self.dataloader_len if trains else train_length(self)):
                # in whole batches: a fraction of an epoch would be rounded once, and the quotient again
                # An epoch that is longer than its loader says stands still before the next one.
                done, total = done * batches + min(self.timestamp.batch_in_epoch, batches), total * batches
        return done / total if total else 1.0

    def peek_batch(self) -> Any:
        """Return a copy of the first batch that `fit` will train on, as the loader gives it; for INIT and FIT_START.

        Its loader and all generators stay where they are: a run that peeks is the run that does not, bit for bit. On
        several processes it has the rows of this one, and all of them have to call it.

        Raises:
            ArgumentError: (a ValueError) if there is no loader, or it gives each batch only once.
            EngineError: at another event, or in a loop that does not offer `first_batch`.
        """
        if self.loop.peek is None:
            raise EngineError(
                "peek_batch can be called at INIT and FIT_START, in a loop that sets state.loop.peek, as the Trainer: "
                "let a loop of your own set it to a function that returns a copy of its first batch"
            )
        return self.loop.peek()

    def forward(self, inputs: Any) -> Any:
        """Return the model's outputs in the precision of the run, for algorithms that run it once more.

        What else a forward does, it does too: modes, BatchNorm's statistics, dropout and gradients are as they are. The
        model is not what DDP has wrapped, so that no other process waits; where weights are sharded, all call it.

        Args:
            inputs: what the model gets of a batch, as `objective.inputs_of(batch)` returns it.
        """
        from .objective import autocast_of, call_model  # noqa: PLC0415  it imports torch

        model: Any = self.model
        device = self.device or next((parameter.device for parameter in model.parameters()), "cpu")
        with autocast_of(self.precision, device):
            return call_model(model, self.objective.inputs, inputs)

    def row_losses(self) -> torch.Tensor:
        """Return the loss of each row (n,) of the batch, or microbatch, from `outputs`: float32, without a graph.

        All who ask get one tensor, which they must not write to: it is computed once, with the objective's
        `row_losses`, and anew as soon as outputs, batch or loss are others.

        Raises:
            ArgumentError: (a ValueError) if the loss of a row is not known, see `Objective.row_losses`.
        """
        from .objective import SharedRowLosses  # noqa: PLC0415  it imports torch

        if (shared := self.objective.shared_rows) is None:
            shared = self.objective.shared_rows = SharedRowLosses()
        return shared.of(self)  # type: ignore[no-any-return]

    def batch_get_item(self, key: BatchKey) -> Any:
        """Return the item of the current batch under `key`, see `engine_core.batch.get_item`."""
        return get_item(self.batch, key)

    def batch_set_item(self, key: BatchKey, value: Any) -> None:
        """Replace the item under `key`, see `engine_core.batch.set_item`; raise EngineError if the batch is used up."""
        if self.between_batches:
            raise EngineError(
                f"item {key!r} of the batch can't be set at BEFORE_DATALOADER, since the next batch replaces this one: "
                "set it at AFTER_DATALOADER"
            )
        self.batch = set_item(self.batch, key, value)

    @property
    def dataset_size(self) -> int | None:
        """How many examples the train loader's dataset has; None if that is not known."""
        return length_of(getattr(self.train_dataloader, "dataset", None))

    def order_of_epoch(self, indices: Any) -> None:
        """Load these examples of the train loader's dataset in this epoch, in this order; for EPOCH_START.

        Args:
            indices: whole numbers from 0, a sequence or a tensor (n,); fewer than the dataset has, or repeated.
        """
        if self.loop.put_in_order is None:
            raise EngineError("an epoch's order is given at EPOCH_START, in a loop that takes it: the Trainer's does")
        self.loop.put_in_order(indices)

    def stop_training(self, why: str | None = None) -> None:
        """Ask the loop to end `fit` after the current batch; the run is then complete."""
        self.loop.stop_requested, self.loop.pause_requested, self.loop.stop_reason = True, False, why

    def pause_training(self, why: str | None = None) -> None:
        """Ask the loop to end `fit` after the current batch, as a signal does: the run is saved and can be resumed.

        A running evaluation is interrupted, and the final one is skipped: both are left to the resumed run.
        """
        loop = self.loop
        if not loop.stop_requested:
            loop.stop_requested, loop.pause_requested, loop.stop_reason = True, True, why

    def skip_step(self) -> None:
        """Ask the loop to skip the optimizers' step for this batch; for AFTER_TRAIN_BATCH."""
        self.loop.skip_requested = True

    @property
    def is_complete(self) -> bool:
        """Has training reached its `max_duration`, or was it stopped, and nothing interrupts it?"""
        elapsed = self.get_elapsed_duration()
        return not self.is_interrupted and (self.loop.stop_requested or (elapsed is not None and elapsed.value >= 1))

    @property
    def is_interrupted(self) -> bool:
        """Does a signal or a requested pause end `fit` before the run is complete?"""
        loop = self.loop
        pauses = loop.pause_requested if self.world_size == 1 else loop.pause_agreed
        return pauses or loop.interrupted_by is not None

    def derive_seed(self, name: str, *, seed: int | None = None, shared: bool = False) -> int:
        """Return the seed of the generator for `name`, from the run's seed, the name and the rank.

        Args:
            seed: used instead of the run's.
            shared: the same in each process, that of rank 0, as for new weights, which must not differ.

        Example:
            >>> State(seed=1).derive_seed("noise") == State(seed=1).derive_seed("noise")
            True
        """
        base = self.seed if seed is None else seed
        digest = hashlib.sha256(f"{base}/{name}/{0 if shared else self.rank}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


# Each field with a rule of its own is a property around the slot that dataclass made for it.
_slot_of_objective: Any = vars(State)["objective"]


def _observed(slot: Any) -> property:
    """Return a field whose list lets its observers know when another list takes its place."""

    def put(state: State, value: Any) -> None:
        former, successor = getattr(state, slot.__name__, None), ObservedList.of(value)
        slot.__set__(state, successor)
        if former is not None:
            former.hand_over(successor)

    return property(slot.__get__, put)


def _get_objective(state: State) -> Any:
    """Make it when it is asked for; where nothing has imported torch, there is none yet."""
    if (found := _slot_of_objective.__get__(state)) is None and "torch" in sys.modules:
        from .objective import Objective  # noqa: PLC0415  it imports torch

        found = state.objective = Objective()
    return found


def _set_objective(state: State, value: Any) -> None:
    if value is not None:
        value.batches = getattr(state, "batches", value.batches)  # a copy may not have it yet
    _slot_of_objective.__set__(state, value)


def _get_loss_fn(state: State) -> Any:
    return None if (objective := _slot_of_objective.__get__(state)) is None else objective.loss_fn


def _set_loss_fn(state: State, value: Any) -> None:
    # While State is made, None is what was not given: an objective keeps its own. `extra` comes last.
    if value is not None or (_slot_of_objective.__get__(state) is not None and hasattr(state, "extra")):
        state.objective.loss_fn = value


for _name, _field in (
    ("objective", property(_get_objective, _set_objective)),
    ("loss_fn", property(_get_loss_fn, _set_loss_fn)),
    ("algorithms", _observed(vars(State)["algorithms"])),
    ("callbacks", _observed(vars(State)["callbacks"])),
):
    setattr(State, _name, _field)

_IN_LOOP = (
    *("offers", "closure", "snapshot", "go_back", "skip_requested", "interrupted_by"),
    *("stop_requested", "stop_reason", "pause_requested", "pause_agreed"),
)
_MOVED = {
    **{name: f"loop.{name}" for name in _IN_LOOP},
    "schedulers_rest": "loop.schedulers_paused",
    "awaits_batch": "between_batches",
}
"""Fields of State in hook API 1, and where they are now. Until hook API 2, State has them under both names."""


def _moved(path: str) -> property:
    """Return what reads and sets a field of State or of its `loop`."""
    *in_loop, name = path.split(".")

    def put(state: State, value: Any) -> None:
        setattr(state.loop if in_loop else state, name, value)

    return property(attrgetter(path), put, doc="")


_init = State.__init__


@functools.wraps(_init)
def _init_with_moved(state: State, *args: Any, **given: Any) -> None:
    moved = {name: given.pop(name) for name in _MOVED.keys() & given}
    _init(state, *args, **given)
    for name, value in moved.items():
        setattr(state, name, value)


for _name, _value in (("__init__", _init_with_moved), *((name, _moved(path)) for name, path in _MOVED.items())):
    setattr(State, _name, _value)


def _horizon(max_duration: Time | str) -> Time:
    whole = max_duration if isinstance(max_duration, Time) else Time(max_duration)
    if whole.unit is TimeUnit.DURATION:
        raise ArgumentError("max_duration can't be a fraction of itself: give it in ep, ba, sp, tok or sec")
    return whole


def nearest_field(error: BaseException) -> str:
    """Return what to write instead if `error` is about a name that State does not have, else nothing.

    The text of `state.los = 3` is Python's own: a `__setattr__` that knew better would cost each step 3 %.
    """
    pattern = r"'(?:State|LoopControl)' object has no attribute '(\w+)'"
    unknown = isinstance(error, AttributeError) and re.match(pattern, str(error))
    if not unknown:
        return ""
    near = suggestion(unknown[1], [_MOVED.get(name, name) for name in dir(State) if name[0] != "_"])
    return near or "; what a plugin keeps on State goes into state.extra"


def epochs_done(state: State) -> int:
    """Return how many epochs are complete: the current one too if all its batches are, its end not yet counted."""
    now, length = state.timestamp, train_length(state)
    return now.epoch + (now.batch_in_epoch > 0 and now.batch_in_epoch == length)


def train_length(state: State) -> int | None:
    """Return the number of batches of an epoch: what the latest one gave, if the train loader says something else."""
    said = length_of(state.train_dataloader)
    known = state.false_length
    return known[1] if known is not None and known[0] == said else said  # a loader may get another length


def length_of(loader: Iterable[Any] | None) -> int | None:
    """Return the number of batches of a loader, or None if it has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):  # torch advises the latter for samplers without a length
        return None
