"""Callbacks that a loop adds: they warn of what a run does not mean, then fall silent. No other file knows of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn.parameter import UninitializedParameter

from ..algorithm import is_averaging
from ..batch import is_record, items_of
from ..callback import Callback, method_of
from ..engine import Engine
from ..errors import AuditWarning, DurationWarning, IdleAlgorithmWarning, UnreadItemWarning, UntrainedParametersWarning
from ..event import Event, events_between
from ..logger import Logger
from ..messages import join_words, plural, warn
from ..objective import Objective, couples_rows
from ..registry import Registry, display_name
from ..state import State

BATCHES = 2
"""How many batches of a fit are looked at."""
_DURING = events_between(Event.AFTER_DATALOADER, Event.AFTER_TRAIN_BATCH)
_WITH_BATCH = {*Event} - {Event.INIT, Event.AFTER_LOAD, Event.FIT_START}
_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}  # by name, since importing them takes a second


class InPlace(Callback):
    """Compares the versions that the loader's tensors carry around each `apply`, in the first batches of a fit.

    Where another callback watches each `apply`, it looks at none.
    """

    def __init__(self) -> None:
        self._held: dict[str, weakref.ref[Any]] = {}
        self._batch, self._end = -1, 0
        self._said: set[str] = set()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Look at the next batches."""
        self._batch, self._end = -1, state.timestamp.batch + BATCHES

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Leave the run after the last of them."""
        if state.timestamp.batch >= self._end:
            self._leave(state)

    def _leave(self, state: State, *successors: Callback) -> None:
        several = [successors if each is self else (each,) for each in state.callbacks]
        state.callbacks[:] = [each for some in several for each in some]

    @contextmanager
    def around_apply(self, algorithm: Any, name: str, event: Event, state: State) -> Iterator[None]:
        """Compare the loader's tensors before and after an `apply`."""
        batch, watchers = state.timestamp.batch, [c for c in state.callbacks if hasattr(type(c), "around_apply")]
        if event not in _DURING or batch >= self._end or len(watchers) > 1 or state.profiler is not None:
            yield
            return
        if batch != self._batch:  # the first apply of the batch: nothing else has put tensors into it
            self._batch, self._held = batch, {path: weakref.ref(t) for path, t in _tensors_in(state.batch, "")}
        before = self._versions()
        yield
        pairs = zip(self._held, before, self._versions(), strict=True)
        changed = [path for path, was, now in pairs if was != now is not None]
        if changed and name not in self._said:
            self._said.add(name)
            warn(
                f"{display_name(name, Registry.scan().origin_of(algorithm))} changed the loader's tensors in place "
                f"(batch{join_words(changed)}) at {event.name} of batch {batch}, and the loader may give them again: "
                "put a new tensor into the batch, as state.batch_set_item(key, tensor) does",
                AuditWarning,
            )

    def _versions(self) -> list[int | None]:
        """Return the versions of the loader's tensors, None for one that is gone."""
        return [getattr(ref(), "_version", None) for ref in self._held.values()]


def _tensors_in(item: Any, path: str, around: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch that have a version, each with its path.

    A view, such as a microbatch, shares the version of its base. What was moved to another device is not the loader's,
    and a tensor made in inference mode has no version. A batch may contain itself, as linked nodes do: `around` are the
    containers on the way.
    """
    if isinstance(item, (list, tuple)) or is_record(item):
        for key, value in items_of(item) if id(item) not in around else ():
            by_key = isinstance(item, Mapping) or type(key) is int
            yield from _tensors_in(value, f"{path}[{key!r}]" if by_key else f"{path}.{key}", around | {id(item)})
    elif hasattr(type(item), "_version") and item.is_cpu and not item.is_inference():
        yield path, item if item._base is None else item._base  # noqa: SLF001  no other name for it


class Advice(InPlace):
    """Looks at more in the first batches, and then only where fits begin and end.

    Args:
        schedules: those of the schedulers, whose `doubt(state)` says what is doubtful about a length.
    """

    def __init__(self, engine: Engine, schedules: Iterable[Any], microbatch_size: int | None) -> None:
        super().__init__()
        self._engine: Engine = weakref.proxy(engine)  # a State that outlives its engine must not keep it alive
        self._schedules, self._size = schedules, microbatch_size
        self._has_left = self._has_read = False

    def fit_start(self, state: State, logger: Logger) -> None:
        """Look at the lengths of schedulers, and after the first batches of the run at what is trained."""
        super().fit_start(state, logger)
        self._say([schedule.doubt(state) for schedule in self._schedules], DurationWarning)
        if self._has_left:
            self._say(_untrained(state), UntrainedParametersWarning)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Look at what is trained, which algorithms may have changed so far; or leave the events of batches."""
        if state.timestamp.batch == self._end - BATCHES:
            self._say(_untrained(state), UntrainedParametersWarning)
        elif state.timestamp.batch >= self._end:
            self._has_left = True
            self._leave(state, FitAdvice(self))

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Look at how the batch was cut, and once at what was read."""
        self._say(_coupled_rows(state, self._size), UserWarning)
        if not self._has_read:
            self._has_read = True
            self._say(_unread(state, self._engine), UnreadItemWarning)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Look for idle algorithms, if the training is over and no part of it was elsewhere."""
        elapsed = state.get_elapsed_duration()
        if elapsed is not None and elapsed.value >= 1 and state.loaded_from is None and not state.loop.pause_requested:
            self._say(_idle(state, self._engine), IdleAlgorithmWarning)

    def _say(self, messages: Iterable[str], category: type[Warning]) -> None:
        for message in messages:
            if message and message not in self._said:
                warn(message, category)
                self._said.add(message)  # unless the warning was an error


class FitAdvice(Callback):
    """What is left of some advice."""

    def __init__(self, advice: Advice) -> None:
        self.fit_start, self.fit_end = advice.fit_start, advice.fit_end


def _untrained(state: State) -> Iterator[str]:
    """Yield which trainable parameters no optimizer has, but for lazy ones and those that FSDP deals out anew."""
    model: Any = state.model
    trained = {id(p) for optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]}
    left = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in trained}
    dealt = [m for m in model.modules() if left and _SHARDED & {kind.__name__ for kind in type(m).__mro__}]
    others = {id(p) for module in dealt for p in module.parameters()}
    if names := [n for n, p in left.items() if id(p) not in others and not isinstance(p, UninitializedParameter)]:
        few = join_words([*names[:5], f"{len(names) - 5} more"] if len(names) > 5 else names, most=6)
        yield f"no optimizer trains {few} of the model: give them to an optimizer, or set their requires_grad to False"


def _idle(state: State, engine: Engine) -> Iterator[str]:
    """Yield which algorithms were asked in a training that is over and never matched, each once."""
    for member in engine.members:
        asked = {event.name: times for event, times in member.asked.items() if times}
        if not member.never_matched or not asked:
            continue
        try:
            if hasattr(member.algorithm, "may_rest") and member.algorithm.may_rest(state):
                continue
        except BaseException as error:
            member.blame(error, "may_rest", Event.FIT_END)
            raise
        member.never_matched = False
        yield (
            f"{member.title} was asked {plural(sum(asked.values()), 'time', 'times')} at {join_words([*asked])} "
            "and never matched; if that is as it should be, let its may_rest return True"
        )


def _coupled_rows(state: State, size: int | None) -> Iterator[str]:
    """Yield which layers have statistics in training that depend on how the batch was cut, if it was."""
    model: Any = state.model
    is_cut = size is not None and not state.is_placeholder and state.batches.rows(state.batch) > size
    if names := couples_rows(model) if is_cut else []:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield (
            f"BatchNorm ({names[0]!r}{others}) takes its statistics in training from each microbatch, so with "
            f"microbatch_size={size} steps differ from those of whole batches; GroupNorm and LayerNorm look at each "
            "row alone"
        )


def _unread(state: State, engine: Engine) -> Iterator[str]:
    """Yield which items of a batch of several no one reads, with the line to write."""
    batch, objective = state.batch, state.objective
    if not (unread := _places_unread(state, engine)):
        return
    item, targets = batch[unread[0]], _places(objective.targets)
    what = f", a {type(item).__name__} of shape {tuple(item.shape)}" if len(unread) == 1 else ""
    yield (
        f"nothing reads {_in_words(unread)} of the batch{what}: the model gets {_in_words(_places(objective.inputs))}, "
        f"and the loss {_in_words(targets)}. If the loss needs it, give Trainer(objective=engine_core.Objective("
        f"loss_fn, targets={(*targets, unread[0])!r})); if the last item is the target, Objective(loss_fn, "
        f"inputs={tuple(range(len(batch) - 1))!r}, targets={len(batch) - 1})"
    )


def _places_unread(state: State, engine: Engine) -> list[int]:
    """Return the places of a tuple or list that certainly nothing reads."""
    objective, batch, batches = state.objective, state.batch, state.batches
    if type(batch) not in (tuple, list) or type(objective) is not Objective or objective.loss_fn is None:
        return []
    if batches.samples or batches.count or batches.take or batches.tokens:  # functions, which get the whole batch
        return []
    read = [*_places(objective.inputs), *_places(objective.targets)]
    read += [str(path).partition(".")[0] for paths in (batches.shared, batches.per_row, batches.dim) for path in paths]
    for reader in _readers(state, engine):
        settings = getattr(reader, "__dict__", {})
        given = [value for name, value in settings.items() if name.rpartition("_")[1:] == ("_", "key")]
        keys = [value for value in given if type(value) in (int, tuple)]
        # It may read anything, or a function that it was given may.
        if not keys or not all(type(key) is int for key in keys) or any(map(callable, settings.values())):
            return []
        read += keys
    known = {place % len(batch) if type(place) is int else place for place in read}
    # Strings, and lists of them, are there to be shown.
    arrays = [place for place, item in enumerate(batch) if hasattr(item, "shape") and "*" not in known]
    return [place for place in arrays if not {place, str(place)} & known]


def _readers(state: State, engine: Engine) -> Iterator[Any]:
    """Yield what may read an item: what is called while there is a batch and neither averages weights nor is ours."""
    for member in engine.members:
        if member.events & _WITH_BATCH and not is_averaging(member.algorithm):
            yield member.algorithm
    for listener in (*state.callbacks, *engine.logger.destinations):
        is_own = type(listener).__module__.partition(".")[0] == "engine_core"
        if not is_own and any(method_of(listener, event.value) is not None for event in _WITH_BATCH):
            yield listener


def _places(items: Any) -> tuple[Any, ...]:
    return items if isinstance(items, tuple) else (items,)


def _in_words(places: Iterable[Any]) -> str:
    shown = [*map(repr, places)]
    return f"item {shown[0]}" if len(shown) == 1 else f"items {join_words(shown)}"
