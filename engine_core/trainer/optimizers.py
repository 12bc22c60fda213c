"""Check the given optimizers and schedulers before INIT, and make those that depend on parameters after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..errors import ArgumentError, ArgumentTypeError, UntrainedParametersWarning
from ..messages import enumerated, warn
from ..time import Interval, Time


def check_optimizers(given: Any) -> list[Any]:
    """Return a list of optimizers and of callables that make one from the parameters."""
    items = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if not callable(item):
            _check_optimizer(item)
    return items


def make_optimizers(items: Iterable[Any], model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers; callables get the model's current parameters."""
    return [
        _check_optimizer(item if isinstance(item, torch.optim.Optimizer) else item(model.parameters()))
        for item in items
    ]


def pass_for_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Keep schedulers from warning that they step before an optimizer that skipped a step or was loaded."""
    optimizer.__dict__["_opt_called"] = True


def _check_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentTypeError(
            f"optimizers: {optimizer!r} is not a torch.optim.Optimizer; give one, "
            "or a callable that makes one from parameters, as functools.partial(torch.optim.SGD, lr=0.1)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ArgumentTypeError("optimizers: LBFGS runs the model itself, several times a step; the loop runs it once")
    return optimizer


def check_trained(optimizers: Iterable[torch.optim.Optimizer], parameters: Iterable[torch.nn.Parameter]) -> None:
    """Raise if an optimizer trains none of the model's parameters."""
    parameters = set(parameters)
    for optimizer in optimizers:
        if parameters.isdisjoint(p for group in optimizer.param_groups for p in group["params"]):
            raise ArgumentError(
                f"optimizers: {type(optimizer).__name__} has no parameter of this model; was it made for another one? "
                "Parameters of the loss function go into an optimizer together with some of the model's"
            )


def warn_of_untrained(
    model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], known: frozenset[str]
) -> frozenset[str]:
    """Warn of trainable parameters that are in no optimizer, unless these are the `known` ones; return their names.

    Lazy ones, and those that FSDP deals out anew, are left out.
    """
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    if all(id(p) in trained or not p.requires_grad for p in model.parameters()):
        return frozenset()
    dealt = [module for module in model.modules() if _SHARDED & {cls.__name__ for cls in type(module).__mro__}]
    trained |= {id(p) for module in dealt for p in module.parameters()}
    names = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and id(p) not in trained and not isinstance(p, torch.nn.parameter.UninitializedParameter)
    ]
    if names and set(names) != known:
        shown = enumerated([*names[:5], f"{len(names) - 5} more"] if len(names) > 5 else names, most=6)
        warn(
            f"no optimizer trains {shown} of the model: give them to an optimizer, or set their requires_grad to False",
            UntrainedParametersWarning,
        )
    return frozenset(names)


_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}  # by name, since importing them takes a second


def check_schedulers(given: Any) -> list[tuple[Any, Interval]]:
    """Return each scheduler, or callable that makes one, with its interval, an epoch unless given in a pair."""
    alone = given is not None and (not isinstance(given, (list, tuple)) or _is_timed(given))
    items = [given] if alone else (given or [])
    pairs = [item if _is_timed(item) else (item, "1ep") for item in items]
    for scheduler, _ in pairs:
        if not _makes_scheduler(scheduler):
            _check_scheduler(scheduler)
    return [(scheduler, Interval(length, "schedulers: the interval")) for scheduler, length in pairs]


def make_schedulers(
    items: Iterable[tuple[Any, Interval]], optimizers: list[torch.optim.Optimizer]
) -> list[tuple[Any, Interval]]:
    """Return the schedulers; a callable gets the optimizer, so there has to be exactly one."""
    made = []
    for item, interval in items:
        scheduler = item
        if _makes_scheduler(item):
            if len(optimizers) != 1:
                raise ArgumentError(
                    f"schedulers: a callable gets the optimizer, and there are {len(optimizers)}; "
                    "make optimizers and schedulers yourself"
                )
            scheduler = item(optimizers[0])
        made.append((_check_scheduler(scheduler), interval))
        own = getattr(scheduler, "optimizer", None)
        if isinstance(own, torch.optim.Optimizer) and all(own is not optimizer for optimizer in optimizers):
            raise ArgumentError(
                f"schedulers: {type(scheduler).__name__} schedules an optimizer that is not among the Trainer's; "
                "make it for an optimizer that you give to the Trainer"
            )
    return made


def _is_timed(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], (str, Time))


def _makes_scheduler(item: Any) -> bool:
    return callable(item) and not hasattr(item, "step")


def _check_scheduler(scheduler: Any) -> Any:
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ArgumentError("schedulers: ReduceLROnPlateau steps on a metric; step it in a callback's eval_end instead")
    if isinstance(scheduler, type):
        name = scheduler.__name__
        raise ArgumentTypeError(f"schedulers: {name} is a class; write {name}(optimizer, ...)")
    if not callable(getattr(scheduler, "step", None)):
        raise ArgumentTypeError(
            f"schedulers: {scheduler!r} has no step(); give torch schedulers, or (scheduler, '1ba')"
        )
    return scheduler
