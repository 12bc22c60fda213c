"""The core: an event goes in, the algorithms that match run in order, then callbacks and logger destinations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from typing import Any

from ..callback import Callback
from ..errors import ArgumentTypeError, ClosedEngineError
from ..event import Event
from ..logger import Logger, Traces
from ..observed import ObservedList
from ..passes import AlgorithmPass, Explained, Member, PassArgument, PassList, check_index, check_pass, parse_passes
from ..registry import Registry
from ..state import SpanRecorder, State
from .dispatch import Dispatch, call_directly, call_hook, spanning, surrounding, with_algorithms
from .host import Adapter, Host, Life, check_listeners, listen, listeners_of, refuse_to_copy, watchers_of
from .in_place import InPlace
from .members import admit, check_combination, follow, overrides, still_asked
from .pipeline import OpenPairs, Pipeline


class Engine:
    """Runs events: matches, orders, verifies and applies algorithms, then notifies callbacks and destinations.

    Args:
        state: what algorithms and callbacks work on; `state.algorithms` and `state.callbacks` may change at any time.
        logger: what they log to.
        algorithm_passes: the user's own passes: a pass, a `(pass, index)` pair, or a sequence of these.

    Attributes:
        unheard: events fired so far that have no listeners at present; a loop may skip these. It is emptied in place
            when a listener is added or removed.
        may_create_graph: algorithms with a `backwards_create_graph` of their own; a loop asks only if there are any.

    Example:
        >>> engine = Engine(State(), Logger())
        >>> engine.run_event("batch_end")
        Traces()
        >>> engine.close()
    """

    def __init__(self, state: State, logger: Logger, algorithm_passes: PassArgument | None = None) -> None:
        if not isinstance(state, State) or not isinstance(logger, Logger):  # type: ignore[redundant-expr]
            raise ArgumentTypeError(f"Engine(state, logger) takes a State and a Logger, not {state!r} and {logger!r}")
        self.state, self.logger = state, logger
        if state.seed is None:
            state.seed = secrets.randbits(32)
        logger.follow(state, self.explain)
        self._dispatch = Dispatch()
        self.unheard: AbstractSet[str] = self._dispatch.unheard
        self.host = Host(on_change=self._dispatch.clear)
        self._passes = PassList(registry := Registry.scan())
        for function, index in parse_passes(algorithm_passes):
            self._passes.insert(function, index)
        self._members: list[Member] = []
        self._asked: list[Member] = []
        self._adapters: list[Adapter] = []
        self._pipelines: dict[Event, Pipeline] = {}
        self._profiler: SpanRecorder | None = None
        self._pairs, self._in_place = OpenPairs(), InPlace()
        self._started = self._closed = False
        self._life = Life(state, logger)
        self._algorithms, self._callbacks, self._destinations = (ObservedList[Any]() for _ in range(3))
        self._listeners: list[Callback] = []
        self._admit(registry)

    def run_event(self, event: Event | str) -> Traces:
        """Run one event and return what its algorithms did.

        Algorithms first, then callbacks, then logger destinations; at INIT the other way round.

        Raises:
            ValueError: if `event` is not an event.
            RuntimeError: if the engine is closed.
        """
        try:
            handler = self._dispatch[event]
        except (KeyError, TypeError):  # not prepared yet, or unhashable, and not an event
            handler = None
        return self._prepare(event)() if handler is None else handler()

    def run_marker_only_event(self, event: Event | str) -> None:
        """Open or close the profiler's span of an event that does not fire; nothing runs."""
        event = self._checked(event)
        self._pairs.forget(event)
        profiler = self.state.profiler
        if profiler is not None and event.is_before_event:
            profiler.begin(f"event/{event.canonical_name}")
        elif profiler is not None and event.is_after_event:
            profiler.end(f"event/{event.canonical_name}")

    def undo(self, error: BaseException, events: Collection[Event] = tuple(Event)) -> list[Event]:
        """After an exception, let algorithms undo what they did at the first half of a pair that won't be completed.

        For each that ran there, `match` and `apply` are called at the second half, the innermost pair and its last
        algorithm first. What they raise becomes a note. `events` selects first halves; those undone are returned.
        """
        return self._pairs.undo_after(error, events)

    def restoring(self) -> AbstractContextManager[None]:
        """If the block raises, let algorithms undo what they began, see `undo`, and name them, as `fit` and `eval` do.

        Example:
            >>> with Engine(State(), Logger()) as engine, engine.restoring():
            ...     traces = engine.run_event("before_forward")
        """
        return self._pairs.restoring(self.state)

    def name_who_ran(self, error: BaseException) -> None:
        """Note on `error`, which a model or its loss raised, which algorithms had run in that batch."""
        self._pairs.name_who_ran(error, self.state)

    def warn_of_in_place_changes(self) -> None:
        """In the next two batches, warn of algorithms that change the loader's tensors in place."""
        self.refresh()
        self._in_place.begin(self.state, self._pipelines.values())

    def register_pass(self, algorithm_pass: AlgorithmPass, index: int = -1) -> None:
        """Add a pass of your own; -1 appends, any other index is an insertion point."""
        self._passes.insert(check_pass(algorithm_pass, "register_pass"), check_index(index))
        if not self._closed:
            self._connect()

    @property
    def algorithm_passes(self) -> list[AlgorithmPass]:
        """The passes in running order, the installed ones sorted and the user's own where they were inserted."""
        self.refresh()
        return [active.function for active in self._passes.active]

    def explain(self, event: Event | str) -> list[Explained]:
        """Return the order at `event` as if every algorithm that lists it matched, with the reasons."""
        event = Event(event)
        places = self.passes.explain([member for member in self.members if event in member.events], event).places()
        return [explained for explained, _ in places]

    @property
    def members(self) -> list[Member]:
        """The algorithms under their unique names, and what the engine knows about them."""
        self.refresh()
        self._add_counts()
        return self._members

    @property
    def passes(self) -> PassList:
        """The passes, and the orders that they give."""
        self.refresh()
        return self._passes

    __reduce_ex__ = refuse_to_copy

    @property
    def backwards_create_graph(self) -> bool:
        """Does any algorithm need a graph of the backward pass?"""
        return any(algorithm.backwards_create_graph for algorithm in self.may_create_graph)

    @property
    def find_unused_parameters(self) -> bool:
        """Does any algorithm say that parameters may go without a gradient?"""
        return any(getattr(m.algorithm, "find_unused_parameters", False) for m in self._members)

    def close(self) -> None:
        """Undo what was begun and close each callback once; nothing is raised; events are refused from then on."""
        self._pairs.close()
        listed = [] if self._closed else listeners_of(self.state.callbacks, self.logger.destinations)
        self._closed = True
        self._dispatch.clear()
        self._life.close(listed)
        for watched in (self._algorithms, self._callbacks, self._destinations):
            watched.stop_observing(self._dispatch.clear)
        for adapter in self._adapters:
            self.host.drop(adapter)
        self._adapters, self._pipelines = [], {}

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.undo(error)
        self.close()

    def _checked(self, event: Event | str) -> Event:
        event = Event(event)
        if self._closed:
            raise ClosedEngineError(f"the engine is closed and can't run {event.name}; make a new one")
        return event

    def refresh(self) -> None:
        """Admit what is listed now by what the loop offers now, if either has changed; events do so by themselves."""
        if not self._closed and not self._is_admitted():
            self._admit(Registry.scan())

    def _is_admitted(self) -> bool:
        """Are the admitted algorithms, callbacks and destinations those listed now?"""
        lists = (self.state.algorithms, self.state.callbacks, self.logger.destinations)
        known = (self._algorithms, self._callbacks, self._destinations, self._offers)
        if any(a is not b for a, b in zip((*lists, self.state.loop.offers), known, strict=True)):
            return False
        listed = [item for items in lists for item in items]
        return len(listed) == len(self._listed) and all(a is b for a, b in zip(listed, self._listed, strict=True))

    def _admit(self, registry: Registry) -> None:
        """Admit the algorithms, callbacks and destinations listed now, all by one registry, or refuse them all."""
        state, logger = self.state, self.logger
        algorithms, callbacks = ObservedList.of(state.algorithms), ObservedList.of(state.callbacks)
        destinations = ObservedList.of(logger.destinations)
        # First whatever may refuse: until it is done the engine is unchanged, so the former ones stay in use.
        members = admit(algorithms, {id(member.algorithm): member for member in self._members}, registry)
        listeners = check_listeners(callbacks, destinations, {id(listener) for listener in self._listeners})
        check_combination(members, listeners, state.loop.offers, registry)
        self.host.warn_of_deprecated(algorithms, listeners, registry)
        origins = [*(m.origin for m in members), *map(registry.origin_of, listeners)]
        self._passes.use({origin.distribution for origin in origins if origin is not None}, registry)
        self._passes.warn_of_unknown_names(members)
        # Before the former are forgotten: those that leave undo what they began with their own pipelines.
        self._pairs.release(self._members, members)
        if self._started:
            self._life.open(listeners)
        self._members, self._listeners, self._offers = members, listeners, state.loop.offers
        # The former lists first, since a list that is kept is in both.
        for former in (self._algorithms, self._callbacks, self._destinations):
            former.stop_observing(self._dispatch.clear)
        for present in (algorithms, callbacks, destinations):
            present.observe(self._dispatch.clear)
        state.algorithms = self._algorithms = algorithms
        state.callbacks = self._callbacks = callbacks
        logger.destinations = self._destinations = destinations
        for member in members:
            follow(member, self._dispatch.clear)
        self._listed = [*algorithms, *callbacks, *destinations]
        self.may_create_graph = [a for a in algorithms if overrides(a, "backwards_create_graph")]
        self._connect()  # last: it reads all of the above

    def _connect(self) -> None:
        """Register a plugin for each callback and destination in place of the former ones, and the engine's own.

        Registered last, they are the innermost wrappers, and first among the plain implementations. The engine's own,
        which runs the algorithms inside others' wrappers, is needed only if there are any.
        """
        for adapter in self._adapters:
            self.host.drop(adapter)
        self._dispatch.clear()
        self._profiler = self.state.profiler
        self._add_counts()
        self._asked = still_asked(self._members)
        found = {event: self._pipeline(event) for event in Event}
        self._pipelines = {event: found[event] for event in Event if found[event].members or found[event].newcomers}
        self._adapters = listen(self._listeners, self._destinations, self.state, self.logger, self._passes.registry)
        self._surrounded = self.host.monitors > 0 or self.host.has_guests()
        if self._surrounded:
            self._adapters.insert(0, surrounding(self._pipelines))
        for adapter in self._adapters:
            self.host.register(adapter)
        self._connected_at = self.host.changes  # last: the lines above changed it

    def _add_counts(self) -> None:
        """Let each member know how often it was asked."""
        for pipeline in self._pipelines.values():
            pipeline.add_counts()

    def _pipeline(self, event: Event) -> Pipeline:
        """Return the pipeline of the algorithms that list `event`."""
        watchers = watchers_of(self._listeners, self.state.profiler)
        pipeline = Pipeline(event, self.state, self.logger, self._passes, self._asked, watchers)
        pipeline.link_pairs(self._pairs)
        return pipeline

    def _prepare(self, given: Event | str) -> Callable[[], Traces]:
        """Return how to run the event `given`, cached under that spelling until a listener is added or removed."""
        event = self._checked(given)
        self.refresh()
        asked = still_asked(self._members)
        if self.host.changes != self._connected_at or asked != self._asked:
            self._pairs.release(self._asked, asked)
            self._connect()
        if not self._started:
            self._life.open(self._listeners)
            self._started = True
        if event is Event.INIT:
            return self._run_init
        handler = self._handler(event)
        if self._profiler is not None:
            handler = spanning(handler, self._profiler, event)
        if event not in self._pipelines or not self._pipelines[event].newcomers:
            self._dispatch.remember(handler, given, event)
        return handler

    def _handler(self, event: Event) -> Callable[[], Traces]:
        """Choose the cheapest handler: no listeners, only algorithms, callbacks too, or guests on the host too."""
        pipeline = self._pipelines.get(event)
        if pipeline is not None and not (pipeline.members or pipeline.newcomers or self._surrounded):
            pipeline = None  # its only task was to show newcomers the first batch
        runs_inside = self._surrounded and pipeline is not None
        if self.host.monitors or self.host.listeners(event) > runs_inside:
            hook = getattr(self.host.hook, event.value)
            if not self._surrounded:
                return with_algorithms(event, pipeline, call_directly(hook, self.state, self.logger))
            notify = call_hook(hook, event, self.state, self.logger)
            return with_algorithms(event, None if runs_inside else pipeline, notify)
        return Traces if pipeline is None else pipeline.run_alone

    def _run_init(self) -> Traces:
        """Run INIT, where a callback may set `state.profiler`."""
        traces = self._handler(Event.INIT)()
        if self.state.profiler is not self._profiler and not self._closed:
            self._connect()
        return traces
