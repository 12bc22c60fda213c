"""Check the given optimizers and schedulers before INIT, and make those that depend on parameters after it."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch

from ..arguments import interval_in_run, length_in_run
from ..errors import ArgumentError, ArgumentTypeError, DurationWarning, UntrainedParametersWarning
from ..messages import join_words, plural, warn
from ..parallel import is_sharded
from ..state import State
from ..time import Interval, Time, is_length


def check_optimizers(given: Any) -> list[Any]:
    """Return a list of optimizers and of callables that make one from the parameters."""
    items = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    for item in items:
        if not callable(item):
            _check_optimizer(item)
    return items


def make_optimizers(items: Iterable[Any], model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizers; a callable gets the model's current parameters, see `_make`, and may return several."""
    kind = torch.optim.Optimizer
    made = [item if isinstance(item, kind) else _make(item, model.named_parameters()) for item in items]
    return [_check_optimizer(one) for each in made for one in (each if each and isinstance(each, list) else [each])]


def _make(function: Any, pairs: Iterable[tuple[str, torch.nn.Parameter]]) -> Any:
    """Call it with the pairs if its first parameter is called `named_parameters`, else with the parameters alone."""
    takes_names = next(iter(_signature_of(function)), None) == "named_parameters"
    return function(pairs if takes_names else (parameter for _, parameter in pairs))


def _signature_of(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some C functions have none
        return {}


_SIGNS = {"==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_KEY = re.compile(r"(.+?)( +ndim *(==|[<>]=?) *(\d))?")


class _Key:
    """Which parameters an entry of `by_name` takes: a later `turn` gets what those before left."""

    def __init__(self, text: str) -> None:
        self.text, found = text, _KEY.fullmatch(text)
        name, self.condition, sign, ndim = found.groups("") if found else ("", "", "", "")
        if not name or re.search(r"\bndim *[=<>!]", name):
            raise ArgumentError(f"by_name: {text!r} is not a key; write a regular expression, '*' or '* ndim>=2'")
        self.turn = 0 if name != "*" else 1 if sign else 2
        self.compare = (lambda found: _SIGNS[sign](found, int(ndim))) if sign else None
        try:
            self.expression = re.compile(name if self.turn == 0 else "")
        except re.error as error:
            raise ArgumentError(f"by_name: {text!r} is not '*', and no regular expression: {error}") from None

    def takes(self, name: str, parameter: torch.nn.Parameter) -> bool:
        return bool(self.expression.search(name)) and (self.compare is None or self.compare(parameter.ndim))


def by_name(optimizers: Mapping[str, Callable[..., Any]]) -> Callable[..., list[torch.optim.Optimizer]]:
    """Return a callable that makes an optimizer for each entry, of the parameters that its key takes.

    A key is a regular expression to find in a parameter's name, or `*`, which takes what no expression takes; either
    may be followed by `ndim` and a number. A lone `*` takes what all other keys leave. No two keys may take the same
    parameter. Frozen ones are left out, shared ones have their first name. An optimizer knows its key as `taken_by`.

    Args:
        optimizers: what makes each, of parameters, or of pairs if its first argument is called `named_parameters`.

    Raises:
        ArgumentError: (a ValueError) for a key that can't be read; when called, for a parameter that no key takes, or
            two, and for an expression that no name has.

    Example:
        >>> from functools import partial
        >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(8, 4), "hidden": torch.nn.Linear(4, 4)})
        >>> adamw, sgd = partial(torch.optim.AdamW, lr=1e-3), partial(torch.optim.SGD, lr=0.1)
        >>> made = by_name({"embed": adamw, "* ndim>=2": sgd, "*": adamw})(model.named_parameters())
        >>> [(one.taken_by, [tuple(p.shape) for p in one.param_groups[0]["params"]]) for one in made]
        [('embed', [(8, 4)]), ('* ndim>=2', [(4, 4)]), ('*', [(4,)])]
    """
    keys = [_Key(text) for text in optimizers]
    for text, each in optimizers.items():
        if not callable(each):
            raise ArgumentTypeError(f"by_name: {text!r} has {each!r:.80}; give what makes an optimizer of parameters")

    def make(named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> list[torch.optim.Optimizer]:
        taken: dict[str, list[Any]] = {key.text: [] for key in keys if key.turn}
        for name, parameter in named_parameters:
            found = [key for key in keys if key.takes(name, parameter)]
            found = [key for key in found if key.turn == min(each.turn for each in found)]
            if parameter.requires_grad and len(found) != 1:
                raise ArgumentError(f"optimizers: {_why_not_one(found, name, keys)}")
            for key in found:
                taken.setdefault(key.text, []).extend([(name, parameter)] * parameter.requires_grad)
        if idle := optimizers.keys() - taken.keys():
            raise ArgumentError(f"optimizers: {min(idle)!r} of by_name takes no parameter: change it, or leave it out")
        if not any(taken.values()):
            raise ArgumentError("optimizers: by_name has nothing to train, as all parameters are frozen")
        made = {text: _check_optimizer(_make(each, taken[text])) for text, each in optimizers.items() if taken[text]}
        for text, optimizer in made.items():
            optimizer.__dict__["taken_by"] = text
        return [*made.values()]

    return make


def _why_not_one(found: list[_Key], name: str, keys: list[_Key]) -> str:
    if not found:
        line = f"'{re.escape(name)}': partial(torch.optim.AdamW, lr=...)"
        texts = ", ".join(repr(key.text) for key in keys) or "none"
        return f"no key of by_name ({texts}) takes {name!r}: add {line}, or '*' for all that is left"
    one, two = found[:2]
    if one.turn:
        return f"{one.text!r} and {two.text!r} of by_name both take {name!r}: write '*' instead of one of them"
    line = f"'^(?!.*(?:{one.expression.pattern})).*(?:{two.expression.pattern}){two.condition}'"
    return f"{one.text!r} and {two.text!r} of by_name both take {name!r}: write {line} instead of the second"


def clip_gradients(optimizers: Iterable[torch.optim.Optimizer], norm: float) -> torch.Tensor:
    """Scale all gradients together so that their norm is at most `norm`; return what it was, over all ranks."""
    clipped = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    try:
        former: Any = torch.nn.utils.clip_grad_norm_(clipped, norm)
    except NotImplementedError:  # torch has no norm of sparse gradients
        former = torch.nn.utils.clip_grad_norm_([_dense(parameter) for parameter in clipped], norm)
    return former.full_tensor() if is_sharded(former) else former  # type: ignore[no-any-return]


def _dense(parameter: torch.Tensor) -> torch.Tensor:
    """Return a stand-in for a parameter with a sparse gradient: its own gradient is that of the rows that have one."""
    if parameter.grad is None or not parameter.grad.is_sparse:
        return parameter
    parameter.grad = parameter.grad.coalesce()  # a row that occurs twice counts once
    values = parameter.grad.values()  # the same memory
    stand_in = torch.empty_like(values)
    stand_in.grad = values
    return stand_in


def pass_for_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Keep schedulers from warning that they step before an optimizer that skipped a step or was loaded."""
    optimizer.__dict__["_opt_called"] = True


def begin_training(optimizers: Iterable[Any]) -> None:
    """Let optimizers that have two points, see `at_evaluation`, put the parameters at that of training."""
    for optimizer in filter(has_two_points, optimizers):
        optimizer.train()


def has_two_points(optimizer: Any) -> bool:
    """Does an optimizer have `train()` and `eval()`, as schedule-free ones do?"""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


@contextmanager
def at_evaluation(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[None]:
    """Have the parameters at the point for evaluation within the block, if an optimizer has one; then as they were.

    Such an optimizer trains at one point, and its result is another (Schedule-Free, arXiv:2405.15682): `eval()` puts
    that into the parameters, and `train()` goes back, up to rounding. Both may be called twice.
    """
    with ExitStack() as coming_back:
        for optimizer in filter(has_two_points, optimizers):
            coming_back.enter_context(_at_evaluation(optimizer))
        yield


@contextmanager
def _at_evaluation(optimizer: Any) -> Iterator[None]:
    parameters = [p for group in optimizer.param_groups for p in group["params"] if not torch.nn.parameter.is_lazy(p)]
    kept = [(parameter, parameter.detach().clone()) for parameter in parameters]
    optimizer.train()
    was_training = all(itertools.starmap(_are_equal, kept))  # else the user had called eval()
    try:
        optimizer.eval()
        yield
    finally:
        (optimizer.train if was_training else optimizer.eval)()
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)


def _are_equal(one: Any, other: Any) -> bool:
    """Are this rank's parts of two tensors equal? NaN is equal to NaN."""
    if is_sharded(one):
        one, other = one.to_local(), other.to_local()
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


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


def check_of_loss(optimizers: Iterable[torch.optim.Optimizer], state: State) -> None:
    """Raise if several ranks would each train a loss function of their own."""
    if state.world_size == 1 or not isinstance(state.loss_fn, torch.nn.Module):
        return
    trained = {p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in state.loss_fn.named_parameters():
        if parameter in trained:
            raise ArgumentError(
                f"optimizers: {name!r} of the loss function is trained, and several processes add up the gradients of "
                "the model only: make the loss function a part of the model, which then has a loss(outputs, batch)"
            )


def warn_of_untrained(state: State, told: set[str]) -> None:
    """Warn once of trainable parameters in no optimizer, but for lazy ones and those that FSDP deals out anew."""
    model: Any = state.model
    trained = {id(p) for optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]}
    if all(id(p) in trained or not p.requires_grad for p in model.parameters()):
        return
    dealt = [module for module in model.modules() if _SHARDED & {cls.__name__ for cls in type(module).__mro__}]
    trained |= {id(p) for module in dealt for p in module.parameters()}
    names = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and id(p) not in trained and not isinstance(p, torch.nn.parameter.UninitializedParameter)
    ]
    if names and (found := f"no optimizer trains {sorted(names)}") not in told:
        shown = join_words([*names[:5], f"{len(names) - 5} more"] if len(names) > 5 else names, most=6)
        warn(
            f"no optimizer trains {shown} of the model: give them to an optimizer, or set their requires_grad to False",
            UntrainedParametersWarning,
        )
        told.add(found)  # unless the warning was an error


_SHARDED = {"FullyShardedDataParallel", "FSDPModule"}  # by name, since importing them takes a second


class Schedule(NamedTuple):
    """A scheduler, the interval at which it steps, and how often it steps in the whole training as known when made.

    `own` is the length that it then had from lengths among a partial's arguments, if there were any.
    """

    scheduler: Any
    interval: Interval
    steps: int | None
    own: float | None


_WHOLE = Time("1dur")


def check_schedulers(given: Any, state: State) -> list[tuple[Any, Interval]]:
    """Return each scheduler, or callable that makes one, with its interval, an epoch unless given in a pair."""
    alone = given is not None and (not isinstance(given, (list, tuple)) or _is_timed(given))
    items = [given] if alone else (given or [])
    pairs = [item if _is_timed(item) else (item, "1ep") for item in items]
    for scheduler, _ in pairs:
        if not _makes_scheduler(scheduler):
            _check_scheduler(scheduler)
    return [(scheduler, interval_in_run(state, "schedulers: the interval", length)) for scheduler, length in pairs]


def make_schedulers(items: Iterable[tuple[Any, Interval]], state: State) -> list[Schedule]:
    """Return the schedulers; a callable is called for each optimizer."""
    made, optimizers = list[Schedule](), state.optimizers
    for item, interval in items:
        try:
            steps = _steps_in(state, _WHOLE, interval)
        except ArgumentError:
            steps = None
        pairs: list[tuple[Any, float | None]] = [(item, None)]
        if _makes_scheduler(item):
            pairs = [_make_scheduler(item, optimizer, interval, state) for optimizer in optimizers]
        if not pairs:
            raise ArgumentError("schedulers: a callable gets the optimizer, and there is none; give the Trainer one")
        made += [Schedule(_check_scheduler(scheduler), interval, steps, own) for scheduler, own in pairs]
    for scheduler in [each.scheduler for each in made]:
        scheduled = getattr(scheduler, "optimizer", None)
        if isinstance(scheduled, torch.optim.Optimizer) and all(scheduled is not each for each in optimizers):
            raise ArgumentError(
                f"schedulers: {type(scheduler).__name__} schedules an optimizer that is not among the Trainer's; "
                "make it for an optimizer that you give to the Trainer"
            )
    return made


def _make_scheduler(item: Any, optimizer: Any, interval: Interval, state: State) -> tuple[Any, float | None]:
    """Return what the callable makes, with lengths of a partial, and `steps`, as numbers of steps.

    If there are any, its length comes second.
    """
    given, lengths = functools.partial(item), []  # of a partial, this is a copy
    title = f"schedulers: {getattr(given.func, '__qualname__', type(given.func).__name__)}"

    def in_steps(value: Any, name: str) -> Any:
        if type(value) in (list, tuple):
            return type(value)(in_steps(each, name) for each in value)
        if not is_length(value):
            return value
        try:
            lengths.append(Time(value))
            return _steps_in(state, lengths[-1], interval)
        except ArgumentError as error:
            raise ArgumentError(f"{title}: {name}={str(value)!r}: {error}") from None

    keywords = {"steps": "1dur"} if _takes_steps(item) else {}
    keywords = {name: in_steps(value, name) for name, value in {**keywords, **given.keywords}.items()}
    arguments = [in_steps(value, f"argument {place}") for place, value in enumerate(given.args)]
    made = given.func(*arguments, optimizer, **keywords)
    return made, _length_of(made)[1] if lengths else None


def _takes_steps(function: Any) -> bool:
    parameter = _signature_of(function).get("steps")
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _steps_in(state: State, length: Time, interval: Interval) -> int:
    """Return how often a scheduler steps in a length of training, at least once."""
    if length.value < 0:
        raise ArgumentError("a length can't be negative")
    same_unit = length_in_run(state, length, interval.length.unit)
    return max(1, int(round(same_unit / interval.length, 9)))


def warn_of_lengths(schedules: Iterable[Schedule], told: set[str], state: State) -> None:
    """Warn once of schedulers whose own length is not that of the whole training; nested schedulers are not checked."""
    for scheduler, interval, made_for, made_with in schedules:
        name, own = _length_of(scheduler)
        if made_for is None or own is None:
            continue
        try:
            steps = _steps_in(state, _WHOLE, interval)
        except ArgumentError:  # a later fit has given max_duration another unit
            continue
        if own == (made_with if made_with is not None and steps == made_for else steps):
            continue
        if state.loaded_from is not None:
            why = "it was resumed, and keeps the length that was saved"
        elif own in (made_with, made_for):
            why = "it keeps the length that it was made with"
        else:
            why = f"write {name}='1dur', in a config or a functools.partial, and it follows the training's length"
        message = (
            f"schedulers: {type(scheduler).__name__} has {name}={own}, but the whole training steps it "
            f"{plural(steps, 'time', 'times')}, every {interval.length}: {why}"
        )
        if message not in told:
            warn(message, DurationWarning)
            told.add(message)  # as above


def _length_of(scheduler: Any) -> tuple[str, float | None]:
    """Return the name of a scheduler's length, and the length."""
    for name in ("T_max", "total_steps"):
        if isinstance(own := getattr(scheduler, name, None), (int, float)):
            return name, own
    return "", None


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
