"""How an event is run: the hook, the algorithms around or inside it, the profiler's span. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import pluggy

from ..event import Event
from ..logger import Logger, Traces
from ..state import SpanRecorder, State
from .host import Adapter, Noted
from .pipeline import Pipeline


class Dispatch(dict[str, Callable[[], Traces]]):
    """How each event is run, and which have no listeners, until a listener is added or removed.

    The lists of an engine's members hold this as their observer, not the engine: a State that outlives its engines must
    not keep them alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unheard: set[str] = set()

    def remember(self, handler: Callable[[], Traces], given: str, event: Event) -> None:
        """From now on run `event` like this, under the name that was given and its own."""
        # The given one first: where both are equal it stays the key, and a look-up under it need not compare strings.
        for spelling in (given, event):
            self[spelling] = handler
            if handler is Traces:
                self.unheard.add(spelling)

    def clear(self) -> None:
        """Forget them all."""
        super().clear()
        self.unheard.clear()


def call_hook(hook: pluggy.HookCaller, event: Event, state: State, logger: Logger) -> Callable[[Traces], object]:
    """Return what notifies everything on the host of an event."""

    def notify(traces: Traces) -> object:
        return hook(event=event, state=state, logger=logger, traces=traces)

    return notify


def call_directly(hook: pluggy.HookCaller, state: State, logger: Logger) -> Callable[[Traces], object]:
    """Return the same for a hook that only the engine's own adapters implement.

    It skips pluggy's handling of arguments and results, which is half of what a callback costs, and the frame of the
    adapter's function around a callback's method.
    """
    # Reversed, as pluggy runs what was registered last first; an adapter has neither wrappers nor arguments to choose.
    listeners = tuple(_listener_of(implementation.function) for implementation in reversed(hook.get_hookimpls()))

    def notify(_: Traces) -> None:
        for listener, noted in listeners:
            try:
                listener(state, logger)
            except BaseException as error:
                if noted is not None:
                    noted.note(error)
                raise

    return notify


def _listener_of(function: Any) -> tuple[Callable[[State, Logger], object], Noted | None]:
    """Return what to call for an adapter's function, and what takes note if that raises."""
    noted = getattr(function, "__self__", None)
    if isinstance(noted, Noted):
        return noted.method, noted
    return lambda *_: function(), None


def with_algorithms(
    event: Event, pipeline: Pipeline | None, notify: Callable[[Traces], object]
) -> Callable[[], Traces]:
    """Return how to run an event: the algorithms first (at INIT last), unless they run inside the hook."""

    def others_alone() -> Traces:
        traces = Traces()
        notify(traces)
        return traces

    if pipeline is None:
        return others_alone
    run = pipeline.run

    def algorithms_first() -> Traces:
        traces = Traces()
        run(traces)
        notify(traces)
        return traces

    def algorithms_last() -> Traces:
        traces = others_alone()
        run(traces)
        return traces

    return algorithms_last if event is Event.INIT else algorithms_first


def surrounding(pipelines: Mapping[Event, Pipeline]) -> Adapter:
    """Return the engine's plugin: per event an innermost wrapper that runs the algorithms."""
    own = Adapter()
    for event, pipeline in pipelines.items():
        own.add(event, _around(pipeline), wrapper=True, trylast=True)
    return own


def _around(pipeline: Pipeline) -> Callable[..., Any]:
    """Return the innermost hook wrapper of an event, which runs the algorithms; at INIT after everything else."""
    if pipeline.event is Event.INIT:

        def last(traces: Traces) -> Generator[None, Any, Any]:
            result = yield
            pipeline.run(traces)
            return result

        return last

    def first(traces: Traces) -> Generator[None, Any, Any]:
        pipeline.run(traces)
        return (yield)

    return first


def spanning(handler: Callable[[], Traces], profiler: SpanRecorder, event: Event) -> Callable[[], Traces]:
    """Open a pair's span as the last thing at its first half, and close it as the first at its second."""
    span = f"event/{event.canonical_name}"
    if event.is_before_event:

        def opening() -> Traces:
            traces = handler()
            profiler.begin(span)
            return traces

        return opening
    if event.is_after_event:

        def closing() -> Traces:
            profiler.end(span)
            return handler()

        return closing
    return handler
