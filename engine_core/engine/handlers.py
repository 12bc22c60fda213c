"""How an event is run: the hook called, the algorithms around or inside of it, the profiler's span. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import pluggy

from ..event import Event
from ..logger import Logger
from ..state import State
from ..trace import SpanRecorder, Traces
from .host import Adapter
from .pipeline import Pipeline

__all__ = ["call_hook", "spanning", "surrounding"]


def call_hook(
    hook: pluggy.HookCaller, event: Event, state: State, logger: Logger, pipeline: Pipeline | None
) -> Callable[[], Traces]:
    """Call the hook, after the algorithms unless they run inside of it; at INIT before them."""

    def hook_alone() -> Traces:
        traces = Traces()
        hook(event=event, state=state, logger=logger, traces=traces)
        return traces

    if pipeline is None:
        return hook_alone
    run = pipeline.run

    def algorithms_first() -> Traces:
        traces = Traces()
        run(traces)
        hook(event=event, state=state, logger=logger, traces=traces)
        return traces

    def algorithms_last() -> Traces:
        traces = hook_alone()
        run(traces)
        return traces

    return algorithms_last if event is Event.INIT else algorithms_first


def surrounding(pipelines: Mapping[Event, Pipeline | None]) -> Adapter:
    """Return the engine's plugin: per event an innermost wrapper that runs the algorithms."""
    own = Adapter()
    for event, pipeline in pipelines.items():
        if pipeline is not None:
            own.add(event, _around(pipeline), wrapper=True, trylast=True)
    return own


def _around(pipeline: Pipeline) -> Callable[..., Any]:
    """Return the innermost hook wrapper of an event, which runs the algorithms; at INIT after everybody else."""
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
    """Open the span of a pair last at its first half, and close it first at its second."""
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
