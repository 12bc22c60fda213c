"""What an adapter to another library's trainer begins with and patches, and its steps of several batches."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from ..batch import Batches
from ..errors import ArgumentTypeError, UnsupportedError
from ..logger import Logger
from ..messages import join_words
from ..needs import Offers
from ..objective import Loss, Objective, check_loss_fn, check_own_objective
from ..randomness import check_seed
from ..registry import as_plugins, installed_version, normalise, required_by
from ..state import State
from .loop import Loop


class Accumulated:
    """The losses of a step. Sums over a nominal number are differentiated; after the last, one factor makes the mean.

    Attributes:
        batches: of the step; a loop may divide by it what it differentiates.

    Args:
        loop: its State's objective counts, and State gets the loss of the step.
        summed: returns the sum of a tensor over the processes, whose gradients are averaged; None: there is one.

    Example:
        >>> import engine_core
        >>> from engine_core.needs import EVERYTHING
        >>> weight = torch.nn.Parameter(torch.ones(()))
        >>> state = engine_core.State(loss_fn=torch.nn.MSELoss(), optimizers=[torch.optim.SGD([weight], lr=0.1)])
        >>> step = Accumulated(Loop(state, EVERYTHING))
        >>> step.begin(2)  # batches
        >>> for values in torch.tensor([1.0, 3.0]), torch.tensor([5.0]):
        ...     state.batch, state.outputs = (values, 0 * values), weight * values
        ...     scalar = step.scalar(state.objective.given(None, state.outputs, state.batch))
        ...     mean = step.add(scalar)
        ...     scalar.backward()
        >>> step.end()
        >>> state.loss, weight.grad  # (1 + 9 + 25) / 3, and twice that
        (tensor(11.6667), tensor(23.3333))
    """

    def __init__(self, loop: Loop, summed: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._loop, self._state, self._summed, self.batches = loop, loop.state, summed, 1
        self._losses: list[Loss] = []
        self._own: Loss | None = None
        self._nominal: float | None = None
        self._rows: float | None = None
        self._shown: Any = 0.0
        self._is_counted = False

    def begin(self, batches: int) -> None:
        """Begin a step of so many batches; with one batch on one process, its mean is differentiated."""
        is_alone = batches == 1 and self._summed is None
        self.batches, self._nominal = batches, None if is_alone else batches * self._rows_of_batch()
        self._is_counted = False
        self.again()

    def again(self) -> None:
        """Begin the step again, with the same batches."""
        self._losses, self._shown, self._state.loss_weight = [], 0.0, self._nominal

    def _rows_of_batch(self) -> float:
        """Return about how many rows a batch has: a number that stays, the same on all processes."""
        if self._rows is None:
            loader, state = self._state.train_dataloader, self._state
            sizes = (getattr(loader, name, None) for name in ("total_batch_size", "batch_size"))
            self._rows = float(next((size for size in sizes if type(size) is int), 1))
            if self._summed is not None:
                rows = torch.tensor(self._rows, dtype=torch.float64, device=state.device)
                self._rows = self._summed(rows).item() / state.world_size
        return self._rows

    def scalar(self, given: Any) -> torch.Tensor:
        """Return what is differentiated of what the loss function returned for the batch of State."""
        state = self._state
        if self._nominal is None:
            return state.objective.scalar(given)[0]
        self._own = state.objective.counted(given, state.outputs, state.batch)
        return self._own.sum / self._nominal

    def add(self, taken: torch.Tensor) -> torch.Tensor:
        """Add what is differentiated, as algorithms leave it; return the mean loss of the batch."""
        if self._nominal is None or self._own is None:
            return taken.detach()
        own, self._own = Loss(taken * self._nominal, self._own.count).detach(), None
        self._losses.append(own)
        return own.mean

    def evaluated(self, outputs: Any, batch: Any) -> torch.Tensor:
        """Return the loss of a batch of an evaluation, NaN if it has none."""
        state, objective = self._state, self._state.objective
        if type(objective).eval_loss is Objective.eval_loss and objective.eval_loss_fn is None:  # rows need no count
            return objective.scalar(objective.given(state.model, outputs, batch))[0]
        found = objective.eval_loss(state.model, outputs, batch)
        return torch.tensor(math.nan, device=state.device) if found is None else found.mean

    def end(self) -> None:
        """The gradients are there: scale them, before they are clipped, and let State show the loss of the step.

        Rows and tokens of all processes are those that the loop has loaded.
        """
        state, losses, processes = self._state, self._losses, 1
        if not losses and self._summed is None:
            return
        total = Loss.merged(losses) if losses else Loss(torch.zeros((), device=state.device), 0)
        if self._summed is not None:
            total, processes = self._summed_up(total, self._summed), state.world_size
        if losses and self._nominal is not None:
            factor = factor_of(total, self._nominal * processes)
            if not isinstance(factor, float) or factor != 1:
                scale_gradients(state.optimizers, factor)
            state.loss_weight, state.loss = total.count, total.mean

    def shown(self, loss: torch.Tensor, *, is_last: bool) -> torch.Tensor:
        """Return what a loop that adds up the losses of a step's batches shall add; `end` with the last."""
        before, self._shown = self._shown, self._shown + loss
        if not is_last:
            return loss
        self.end()
        shown: torch.Tensor = self._state.loss - before if self._losses else loss
        return shown

    def _summed_up(self, own: Loss, summed: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
        """Return the loss of all processes; count their rows and tokens, once in a step."""
        loop, count = self._loop, 0 if own.count is None else float(own.count)
        sent = [own.sum.item(), count, loop.samples, loop.tokens]
        total, count, samples, tokens = summed(own.sum.new_tensor(sent, dtype=torch.float64)).tolist()
        if not self._is_counted:
            self._is_counted, loop.samples, loop.tokens = True, round(samples), round(tokens)
        return Loss(own.sum.new_tensor(total), None if own.count is None else count)


def factor_of(total: Loss, divided_by: float) -> float | torch.Tensor:
    """Return what makes gradients of `sum / divided_by` those of the mean: 0 where nothing counts."""
    count = total.count
    if count is None:
        return float(divided_by)
    if isinstance(count, torch.Tensor):  # it need not be there yet
        return torch.where(count > 0, divided_by / count, 0.0)
    return divided_by / count if count else 0.0


def scale_gradients(optimizers: Iterable[torch.optim.Optimizer], factor: float | torch.Tensor) -> None:
    """Multiply all gradients by a number, or a scalar tensor whose value need not be there yet."""
    trained = {p: None for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    dense = [p.grad for p in trained if p.grad is not None and p.grad.layout is torch.strided]
    if dense:
        torch._foreach_mul_(dense, factor)
    for parameter in trained:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            parameter.grad.mul_(factor)


def make_loop(
    offers: Offers,
    *,
    algorithms: Any = (),
    callbacks: Any = (),
    loggers: Any = (),
    algorithm_passes: Any = None,
    batches: Batches | None = None,
    **fields: Any,
) -> Loop:
    """Return a loop for what a user lists: instances, names of installed plugins, and `(name, arguments)` pairs.

    Args:
        offers: what is known of the loop so far; say the rest by `Loop.offer`.
        batches: what a row of a batch is, where its tensors do not tell.
        fields: those of State that are known.

    Raises:
        ArgumentError, ArgumentTypeError: for a seed, a `loss_fn` or `batches` that is none.
        PluginError: for a name that is not installed, with the nearest.
        UnsupportedError: (an EngineError) if one of them needs what the loop does not offer.

    Example:
        >>> from engine_core.needs import EVERYTHING
        >>> make_loop(EVERYTHING, max_duration="3ep").state.max_duration
        Time('3ep')
    """
    rank = fields.get("rank", 0)
    check_loss_fn(fields.get("loss_fn"))
    if (objective := fields.get("objective")) is not None:
        check_own_objective(objective, fields.get("loss_fn"))
    check_seed(fields.get("seed"))
    state = State(
        batches=check_batches(batches),
        algorithms=as_plugins("algorithms", algorithms, "algorithms"),
        callbacks=as_plugins("callbacks", callbacks, "callbacks", rank),
        **fields,
    )
    logger = Logger(as_plugins("callbacks", loggers, "loggers", rank))
    return Loop(state, offers, logger=logger, algorithm_passes=algorithm_passes)


def check_batches(batches: Any) -> Batches:
    """Return what a user says of batches, the strict rule if that is nothing."""
    if batches is None or isinstance(batches, Batches):
        return batches or Batches()
    raise ArgumentTypeError(f"batches has to be such as engine_core.Batches(shared=('x',)), not {batches!r}")


def check_names(adapter: str, library: str, names: Iterable[str]) -> None:
    """Raise unless a library still has the names that are not public and that an adapter uses all the same.

    Args:
        adapter: the adapter's distribution, which declares a range of the library's versions.
        library: the library's distribution.
        names: each as `module:Class.attribute`.

    Raises:
        UnsupportedError: (an EngineError) with the names that are gone, the installed version, and the range.

    Example:
        >>> check_names("engine-core", "pluggy", ["pluggy:PluginManager.hook_of"])
        Traceback (most recent call last):
        engine_core.errors.UnsupportedError: engine-core can't work with pluggy ...: it lacks PluginManager.hook_of...
    """
    gone = [name.partition(":")[2] for name in names if not _is_there(name)]
    if gone:
        raise UnsupportedError(
            f"{adapter} can't work with {library} {installed_version(library)}: it lacks {join_words(gone)}; install "
            f"{_range_of(adapter, library)}, or another version of {adapter}"
        )


def _is_there(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        attrgetter(path)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True


def _range_of(adapter: str, library: str) -> str:
    """Return what the adapter's metadata require of the library."""
    for requirement in required_by(adapter):
        if normalise(requirement).startswith(normalise(library)):
            return f"{requirement.partition(';')[0].strip()!r}"
    return f"a {library} that it was made for"


class Patched(partial[Any]):
    """Calls `wrapper(original, ...)`, and has the attributes and the signature of the original, which a copy is."""

    def __getattr__(self, name: str) -> Any:
        # The last: what a `wrapper` that is a partial itself was given comes before it.
        return self.args[-1] if name == "__wrapped__" else getattr(self.args[-1], name)

    def __deepcopy__(self, memo: Any) -> Any:
        """Return a copy of the original: a copy of its owner is not ours."""
        return copy.deepcopy(self.args[-1], memo)


@contextmanager
def patched(owner: Any, name: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Let `owner.<name>(...)` call `wrapper(original, ...)` within the block; then `vars(owner)` is as it was.

    Example:
        >>> class Greeter:
        ...     def greet(self, name):
        ...         return f"Hello {name}"
        >>> greeter = Greeter()
        >>> with patched(greeter, "greet", lambda original, name: original(name).upper()):
        ...     greeter.greet("Ada")
        'HELLO ADA'
        >>> greeter.greet("Ada"), vars(greeter)
        ('Hello Ada', {})
    """
    own, missing = vars(owner), object()
    former = own.get(name, missing)
    own[name] = Patched(wrapper, getattr(owner, name))
    try:
        yield
    finally:
        own.pop(name, None) if former is missing else own.__setitem__(name, former)
