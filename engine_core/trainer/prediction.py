"""A model's outputs for a loader, batch by batch, as an evaluation computes them. Fires the evaluation's events."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from typing import Any

import torch

from ..embed import Phase
from ..errors import ArgumentTypeError
from ..event import Event
from ..parallel import ends_with
from ..state import State
from .arguments import check_loader
from .evaluation import Before, Globals, enter_eval_mode, enter_loader, run_batch
from .interruption import signals_noted
from .optimizers import at_evaluation
from .session import Session


def predictions(session: Session, loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Check the loader and return an iterator over the model's outputs; nothing runs before the first is asked for."""
    session.status.check_can_predict()
    if isinstance(loader, Mapping):
        raise ArgumentTypeError(f"predict() takes one loader, not a {type(loader).__name__}; call it for each of them")
    if isinstance(loader, torch.Tensor):
        raise ArgumentTypeError(
            "predict() takes a loader, and a tensor would give its rows one by one: write predict([tensor]) if it is "
            "one batch, or predict(DataLoader(tensor, batch_size=...))"
        )
    return _predict(session, check_loader(loader, "the loader of predict()"))


def _predict(session: Session, loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the outputs of each batch. A first signal during a batch ends this after it, one in between at once."""
    session.status.check_can_predict()
    try:
        with at_evaluation(session.state.optimizers), closing(_outputs(session, loader)) as outputs:
            while True:
                with signals_noted(session.state):
                    given = next(outputs, outputs)
                if given is outputs:
                    return
                yield given
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001  raised below, mostly as it is
        raise ends_with(error)  # noqa: B904  to the others this rank's signal is a failure: each predicts on its own


def _outputs(session: Session, loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the outputs of each batch; when this is exhausted, closed or fails, everything is as before.

    Whoever takes them has torch's modes and the global generators as they would be without this, in between too.
    """
    state, status = session.state, session.status
    before, eval_timestamp, phase = Before(state, session.device), state.eval_timestamp, status.phase
    forward = session.precision.wrap(_forward)
    try:
        status.phase, state.loss = Phase.PREDICTING, None
        enter_eval_mode(state)
        enter_loader(state, "predict", loader)
        with session.engine.restoring():
            session.engine.run_event(Event.EVAL_START)
            for batch, rows in session.deal(loader, in_step=state.ranks.is_sharded):
                run_batch(session, batch, rows, forward)
                if state.is_placeholder:
                    continue
                own = Globals(session.device)
                before.globals.put_back()
                try:
                    yield session.precision.full(state.outputs)
                finally:
                    before.globals = Globals(session.device)
                    own.put_back()
            session.engine.run_event(Event.EVAL_END)
    finally:
        before.put_back()
        state.eval_timestamp, status.phase = eval_timestamp, phase


def _forward(state: State) -> None:
    state.outputs = state.objective.predict(state.model, state.batch)
