"""What a Trainer's loops work with and keep from one `fit` to the next: number formats, microbatches, what fails."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast

import torch

from ..algorithm import is_averaging
from ..batch import Batches, map_batch
from ..callback import method_of
from ..engine import Engine
from ..errors import (
    ArgumentError,
    CheckpointError,
    ObjectiveError,
    OutOfMemoryError,
    UnreadItemWarning,
    add_note,
    did_you_mean,
)
from ..event import Event
from ..loop import Loop, RunStatus, keep_modules, without_trace
from ..messages import join_words, warn
from ..objective import AT, REDUCED, Law, Loss, Objective, as_nothing, couples_rows, tolerance_of
from ..parallel import Parallel, Wrapping
from ..state import State
from ..time import FIELD_OF, Interval, Time
from .feed import BeforeBatch, Feed, deal
from .loaders import keeps_position
from .metrics import LossReader
from .optimizers import Schedule
from .requests import StepSync, interruption

P = ParamSpec("P")
R = TypeVar("R")

PRECISIONS = ("fp32", "amp_bf16", "amp_fp16")


class Precision:
    """`fp32`, `amp_bf16` (CPU and CUDA) or `amp_fp16` (CUDA, with a gradient scaler)."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in PRECISIONS:
            raise ArgumentError(f"precision {name!r} is unknown{did_you_mean(str(name), PRECISIONS)}")
        if name == "amp_fp16" and device.type != "cuda":
            raise ArgumentError(f"precision 'amp_fp16' needs a CUDA device, this is {device}; use 'amp_bf16' or 'fp32'")
        self._device_type = device.type
        self._dtype = REDUCED.get(name)
        self.scaler = torch.amp.GradScaler("cuda") if name == "amp_fp16" else None

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `function` under autocast, or unchanged if there is none."""
        dtype = self._dtype
        if dtype is None:
            return function

        def autocast(*args: P.args, **kwargs: P.kwargs) -> R:
            with torch.autocast(self._device_type, dtype=dtype):
                return function(*args, **kwargs)

        return autocast

    def full(self, outputs: Any) -> Any:
        """Return the outputs of what `wrap` returned, as users and metrics get them: in float32."""
        return outputs if self._dtype is None else in_float32(outputs)


def in_float32(outputs: Any) -> Any:
    """Return outputs with tensors of float32 in place of those of half precision, which NumPy and others refuse."""

    def cast(leaf: Any) -> Any:
        is_half = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)
        return leaf.float() if is_half else leaf

    return map_batch(outputs, cast)


@dataclass(eq=False)
class Session:
    """What the loop works with, and what it keeps from one `fit` to the next.

    Args:
        seam: fires the events of training, and keeps the clock and what the run is doing.
        parallel: how the run is spread; None: it trains in one process.
        wrapping: what is called in training, and waits for the other ranks.
        together: what the ranks agree on; None in one process.
        batches: the loader in mid-epoch, or None between epochs.
        given_modes, given_shapes: of parameters, modules and buffers as they were given, see `weights`.
        left_in_eval: was the model in eval mode before FIT_END, or when the run was saved, as a callback had put it?
        attempt: one more than that of the checkpoint that was resumed, 0 in a fresh run.
        told: what was said, or looked at, once and for all.
        own_pieces: how many microbatches of the current batch are this rank's.
        law_held: was the law of the loss measured last, and held?
        measured: how many batches could have broken the law of the loss; `measured_at`: the clock at the latest.
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
    together: StepSync | None = None
    schedulers: Sequence[Schedule] = ()
    batches: Iterator[Any] | None = None
    given_modes: dict[str, Any] = field(default_factory=dict)
    given_shapes: dict[str, Any] = field(default_factory=dict)
    left_in_eval: bool = False
    attempt: int = 0
    told: set[str] = field(default_factory=set)
    own_pieces: int = 1
    law_held: bool = False
    measured: int = 0
    measured_at: int = -1

    def __post_init__(self) -> None:
        self.engine, self.state, self.status = self.seam.engine, self.seam.state, self.seam.status
        if self.state.world_size > 1:
            self.together = StepSync(self.state, self.engine.unheard, self.feed)

    def is_new(self, what: str) -> bool:
        """Is this the first time that it is asked? Then it was `told`."""
        is_new = what not in self.told
        self.told.add(what)
        return is_new

    def split(self, batch: Any) -> tuple[Sequence[Any], float | None]:
        """Return the batch's microbatches, and by what their losses are divided; None: it is alone, and not divided."""
        state, together = self.state, self.together
        if together is not None:
            self.wrapping.follow()
        size = self.microbatch_size
        pieces = [batch] if size is None or state.is_placeholder else state.batches.split(batch, size)
        self.own_pieces = len(pieces)
        if len(pieces) > 1 and self.is_new("coupled rows"):
            self._warn_of_coupled_rows()
        if together is None and len(pieces) == 1:
            return pieces, None
        self.check_law(batch)
        if together is None:
            return pieces, state.batches.rows(batch)
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
        """Raise an ObjectiveError before the step if losses of parts don't add up, measured in the batches of `AT`."""
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

    def end_test(self, end: Time) -> Callable[[], bool]:
        """Return a function that says whether the clock has reached `end`, or the run was asked to stop."""
        length, state, together = Interval(end, "duration").length, self.state, self.together
        field_, value = FIELD_OF[length.unit], length.value
        if together is None:
            return lambda: state.timestamp[field_] >= value or state.loop.stop_requested
        return lambda: state.timestamp[field_] >= value or together.stop

    def deal(self, loader: Iterable[Any], *, in_step: bool = True) -> Iterator[tuple[Any, int]]:
        """Yield this rank's part of each batch of an evaluation, see `feed.deal`."""
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

    def _warn_of_coupled_rows(self) -> None:
        """Warn of layers whose statistics in training depend on how a batch is cut."""
        if names := couples_rows(cast("Any", self.state.model)):
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warn(
                f"BatchNorm ({names[0]!r}{others}) takes its statistics in training from each microbatch, so with "
                f"microbatch_size={self.microbatch_size} steps differ from those of whole batches; GroupNorm and "
                "LayerNorm look at each row alone",
                UserWarning,
            )


def place_of(number: int, pieces: Sequence[Any], batches: Batches) -> str:
    """Return which microbatch something happened in, and which rows it had."""
    sizes = [batches.rows(piece) for piece in pieces]
    start = sum(sizes[:number])
    rows = f"row {start}" if sizes[number] == 1 else f"rows {start} to {start + sizes[number] - 1}"
    return f"in microbatch {number + 1} of {len(pieces)} ({rows} of {sum(sizes)})"


def take_part(state: State, forward: Callable[..., Any], given_of: Callable[..., Any], called: Any) -> None:
    """Run forward and backward again, because other ranks have more microbatches and wait; its loss counts nothing.

    No event is fired, and the model's buffers stay as they are: the rows count once.
    """
    model: Any = state.model
    put_back = keep_modules(model, model.buffers(), attributes=False)
    outputs = forward(called, state.batch)
    loss = state.objective.counted(given_of(model, outputs, state.batch), outputs, state.batch)
    as_nothing(loss.sum).backward()  # type: ignore[no-untyped-call]
    put_back()


_SAID_BY_TORCH = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")
"""Parts of the RuntimeErrors of CUDA, its libraries, MPS, and the CPU's allocators."""


def explain_out_of_memory(error: Exception, state: State, place: str, remedy: str) -> None:
    """Raise an OutOfMemoryError from `error` if that reports a lack of memory, else return."""
    says_so = isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID_BY_TORCH)
    is_lack = says_so or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    if isinstance(error, OutOfMemoryError) or not is_lack:
        return
    said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
    explained = OutOfMemoryError(f"out of memory on {state.device} {place}: {remedy}. {said}")
    for note in getattr(error, "__notes__", ()):
        add_note(explained, note)
    raise explained from error


def place_in_training(session: Session, rows: int) -> tuple[str, str]:
    """Return where a step was, with its number of rows, and what would need less memory."""
    state, size, now = session.state, session.microbatch_size, session.state.timestamp
    at_once = rows if size is None else min(rows, size)
    how = "all of them at once" if size is None else f"in microbatches of {size}"
    place = f"at batch {now.batch} (epoch {now.epoch}) with {rows} rows, {how}"
    if at_once > 1:
        fewer, model = f"set microbatch_size={max(1, at_once // 2)} or less", cast("Any", state.model)
        is_same = (state.objective.is_certain() or session.law_held) and not couples_rows(model)  # as far as is known
        return place, f"{fewer}, which trains with the same gradients and batches of {rows}" if is_same else fewer
    mixed = "precision='amp_bf16', " if state.precision == "fp32" else ""
    return place, f"a single row is too much: try {mixed}an optimizer with less state, or a smaller model"


def lose_no_batch(
    session: Session, error: BaseException, checkpoint: Callable[[str], None], before: BeforeBatch | None = None
) -> None:
    """Let savers save what was trained before the loader raised `error`; a resumed run retries the same batch."""
    state, is_failure = session.state, isinstance(error, Exception)  # else a second signal, say, which acts at once
    try:
        if is_failure:
            at = state.timestamp
            where = "; a resumed run continues where its state_dict says" * keeps_position(state.train_dataloader)
            add_note(error, f"the train_dataloader failed at batch {at.batch_in_epoch} of epoch {at.epoch}{where}")
            if at.batch and state.world_size == 1:  # other ranks are elsewhere
                with nullcontext() if before is None else before.back():
                    _save_before(session, error, checkpoint)
    finally:
        # Only now: what was saved retries this batch, while in this process a DataLoader continues after it.
        session.feed.taken += is_failure
        # A dead generator looks exhausted to the next fit, and so may an iterator that Ctrl-C cut.
        if isinstance(session.batches, Generator) or not session.feed.taken:
            session.batches = None


def _save_before(session: Session, error: BaseException, checkpoint: Callable[[str], None]) -> None:
    """Save as for a pause, before `error` propagates; if saving fails, add a note to it."""
    for is_last in (False, True):
        session.state.loop.pause_requested = True
        try:
            checkpoint("batch_checkpoint")
        except Exception as second:  # noqa: BLE001  nothing may replace the first error
            if not is_last and "DataLoader worker" in str(second):
                continue  # torch raises this once per dead worker, wherever the main thread is
            add_note(error, f"the run could not be saved: {second}")
        finally:
            session.state.loop.pause_requested = False
        return


def blame_what_was_loaded(session: Session, error: Exception, batch: int) -> None:
    """Raise a CheckpointError if the step at this batch count was the first one with a loaded state."""
    if session.status.is_first_step_after_resuming(batch):
        raise CheckpointError(
            f"optimizers or schedulers can't use the state loaded from {str(session.state.loaded_from)!r}: {error!r}; "
            "load another checkpoint, or only its weights (load_weights_only)"
        ) from error


_BEFORE_BATCHES = {Event.INIT, Event.AFTER_LOAD, Event.FIT_START}


def warn_of_unread(state: State, engine: Engine) -> None:
    """Warn of each item of a batch of several that no one reads, with the line to write."""
    batch, unread = state.batch, _unread(state, engine)
    if not unread:
        return
    objective = state.objective
    model, loss = (_in_words(items) for items in (objective.inputs, objective.targets))
    item = batch[unread[0]]
    what = f", a {type(item).__name__} of shape {tuple(item.shape)}" if len(unread) == 1 else ""
    more, last = (*_places(objective.targets), unread[0]), len(batch) - 1
    warn(
        f"nothing reads {_in_words(tuple(unread))} of the batch{what}: the model gets {model}, and the loss {loss}. If "
        "the loss needs it, give Trainer(objective=engine_core.Objective(loss_fn, "
        f"targets={more!r})); if the last item is the target, Objective(loss_fn, inputs={tuple(range(last))!r}, "
        f"targets={last})",
        UnreadItemWarning,
    )


def _unread(state: State, engine: Engine) -> list[int]:
    """Return the places of a tuple or list that certainly nothing reads."""
    objective, batch, batches = state.objective, state.batch, state.batches
    if type(batch) not in (tuple, list) or type(objective) is not Objective or objective.loss_fn is None:
        return []
    if batches.samples or batches.count or batches.take or batches.tokens:  # functions, which get the whole batch
        return []
    read = [*_places(objective.inputs), *_places(objective.targets)]
    read += [str(path).partition(".")[0] for paths in (batches.shared, batches.per_row, batches.dim) for path in paths]
    for reader in _readers(engine):
        settings = getattr(reader, "__dict__", {})
        keys = [
            value
            for name, value in settings.items()
            if name.rpartition("_")[1:] == ("_", "key") and type(value) in (int, tuple)
        ]
        # It may read anything, or a function that it was given may.
        if not keys or not all(type(key) is int for key in keys) or any(map(callable, settings.values())):
            return []
        read += keys
    known = {place % len(batch) if type(place) is int else place for place in read}
    if "*" in known:
        return []
    # Strings, and lists of them, are there to be shown.
    arrays = [place for place, item in enumerate(batch) if hasattr(item, "shape")]
    return [place for place in arrays if not {place, str(place)} & known]


def _readers(engine: Engine) -> Iterator[Any]:
    """Yield what may read an item: what is called while there is a batch and neither averages weights nor is ours."""
    for member in engine.members:
        if set(member.events) - _BEFORE_BATCHES and not is_averaging(member.algorithm):
            yield member.algorithm
    for listener in (*engine.state.callbacks, *engine.logger.destinations):
        is_own = type(listener).__module__.partition(".")[0] == "engine_core"
        if not is_own and any(method_of(listener, event.value) is not None for event in {*Event} - _BEFORE_BATCHES):
            yield listener


def _places(items: Any) -> tuple[int | str, ...]:
    return items if isinstance(items, tuple) else (items,)


def _in_words(items: Any) -> str:
    places = [*map(repr, _places(items))]
    return f"item {places[0]}" if len(places) == 1 else f"items {join_words(places)}"
