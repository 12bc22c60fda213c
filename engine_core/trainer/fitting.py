"""One `fit` from its beginning to its end: whatever ends it, what it holds is put back. Fires no event itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..engine import warn_of_idle
from ..errors import ArgumentError
from ..loop import keep_modules
from ..messages import plural, warn
from ..objective import check_objective
from ..state import State
from ..time import Time
from .initialising import check_loaders
from .interruption import signals_noted
from .loop import loop_of
from .resume import go_back, take_snapshot
from .session import Session


def check_trainable(state: State) -> None:
    """Raise if there is nothing to train, or nothing to train it with."""
    if state.train_dataloader is None:
        raise ArgumentError("there is nothing to train on: give Trainer(train_dataloader=...)")
    if not state.optimizers:
        raise ArgumentError(
            "there is no optimizer: give Trainer(optimizers=torch.optim.SGD(model.parameters(), lr=0.1))"
        )
    if not any(p.requires_grad for o in state.optimizers for g in o.param_groups for p in g["params"]):
        raise ArgumentError("there is nothing to train: no parameter of the optimizers requires a gradient")
    check_objective(state.objective, state.model)


def enter_train_mode(model: Any) -> None:
    """Put a model that is in eval mode into train mode, but for frozen parts, and warn of it."""
    if model.training:
        return
    put_back, modes = keep_modules(model), [(module, module.training) for module in model.modules()]
    try:
        model.train()
        trains = [(module, [parameter.requires_grad for parameter in module.parameters()]) for module, _ in modes]
        frozen = {id(part) for module, own in trains if own and not any(own) for part in module.modules()}
        for module, is_training in modes:
            if id(module) in frozen:
                module.training = is_training
        if changed := sum(module.training and not is_training for module, is_training in modes):
            warn(
                f"the model came in eval mode, and fit() has put {plural(changed, 'module', 'modules')} of it into "
                "train mode; those with parameters that are all frozen stay as they are. Call model.train() before",
                UserWarning,
            )
    except Exception:
        put_back()
        raise


def run_fit(session: Session, end: Time) -> None:
    """Train until the clock of `session.state` reaches `end`, or a stop is asked for.

    A warning names algorithms that never matched, if training is complete and this engine has seen all of it.
    """
    state, seam = session.state, session.seam
    with signals_noted(state, session.together):
        try:
            fit, closure = loop_of(session, end)
            seam.needs_rows = session.microbatch_size is not None or session.together is not None
            seam.lengths = _lengths_of(session, end)
            seam.begin_fit(closure)
            if session.together is not None:
                session.together.begin_fit()
            state.loop.snapshot, state.loop.go_back = partial(take_snapshot, session), partial(go_back, session)
            check_loaders(session)
            fit()
        except BaseException as error:
            seam.undo(error)
            session.readings.salvage(error)  # after the model is as the algorithms found it: this may log, and fail
            raise
        finally:
            seam.end_fit()
            state.loop.snapshot, state.loop.go_back = None, None
    elapsed = state.get_elapsed_duration()
    if elapsed is not None and elapsed.value >= 1 and state.loaded_from is None and not state.loop.pause_requested:
        warn_of_idle(session.engine.members, state)


def _lengths_of(session: Session, end: Time) -> dict[str, Any]:
    """Return the lengths of training among the Trainer's own arguments, by name."""
    lengths: dict[str, Any] = {"eval_interval": session.eval_interval}
    if end != session.state.max_duration:
        lengths["fit's duration"] = end
    for scheduler, interval, *_ in session.schedulers:
        lengths[f"{type(scheduler).__name__}'s interval"] = interval
    return lengths
