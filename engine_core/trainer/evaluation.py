"""Evaluation: run the model over loaders and leave everything else unchanged. Fires the evaluation events."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

import torch
from torch.nn.parameter import is_lazy

from ..batch import move_batch
from ..embed import BegunEvaluation
from ..engine import Engine
from ..errors import ArgumentError, ArgumentTypeError, EngineError
from ..event import Event
from ..messages import counted, warn
from ..objective import AT, Law, Loss, tolerance_of
from ..randomness import GlobalGenerators, preserve_generators
from ..state import State, epochs_done, length_of
from ..time import Timestamp
from .arguments import check_loader
from .data import begin_pass, restart_pass
from .interruption import EvaluationInterrupted, lost_workers
from .metrics import Measurement, as_numbers, look_at_values
from .out_of_memory import explain_out_of_memory
from .precision import Precision

_CURRENT = (
    *("batch", "is_placeholder", "between_batches", "outputs", "loss"),
    *("dataloader", "dataloader_label", "dataloader_len"),
)
"""The fields of State that are those of training again after an evaluation."""


class Measured(Protocol):
    """What an evaluation works with, as a Session provides it."""

    engine: Engine
    precision: Precision
    device: torch.device
    has_measured: bool
    told_of: set[str]

    def deal(self, loader: Iterable[Any], *, in_step: bool = True) -> Iterator[tuple[Any, int]]:
        """Return this rank's part of each batch, with the rows of the whole one."""
        ...


def run_eval(
    session: Measured,
    loaders: Mapping[str, Iterable[Any]],
    begun: BegunEvaluation,
    ends: Callable[[], bool] | None = None,
) -> dict[str, float]:
    """Evaluate on each loader; return `{"<label>/<metric>": value}` and log it.

    Args:
        begun: how far an interrupted evaluation is, whose done loaders are skipped.
        ends: asked after each batch: does a signal, or a pause of `fit`, end it there? None: it can't be interrupted.

    Raises:
        EvaluationInterrupted: where it ends so.

    `<label>/loss` is the loss of the whole set: the sum of the batches' sums by that of their counts. Module modes, the
    position in training, the current batch and the global random generators are restored afterwards.
    """
    state = session.engine.state
    before, former, results = Before(state, session.device), state.metrics, state.results.to_json()
    results_before, generators = begun
    done = {name.partition("/")[0] for name in results_before}
    try:
        state.metrics = dict(results_before)
        state.results.begin()
        state.results.record(state.metrics, state.timestamp.batch, epochs_done(state))
        enter_eval_mode(state)
        for label, loader in loaders.items():
            if label in done:
                continue
            if generators is not None:
                restart_pass(loader, generators, session.device)
                generators = None
            enter_loader(state, label, loader)
            with session.engine.restoring():
                _evaluate_loader(session, loader, ends)
    except BaseException:
        state.metrics = former
        state.results.load(results)
        raise
    finally:
        before.put_back()
    return dict(state.metrics)


def enter_eval_mode(state: State) -> None:
    """Let the model infer."""
    state.between_batches = False
    cast("torch.nn.Module", state.model).eval()
    torch.set_grad_enabled(False)


def enter_loader(state: State, label: str, loader: Iterable[Any]) -> None:
    """Let State show the loader that is worked on."""
    state.dataloader, state.dataloader_label, state.dataloader_len = loader, label, length_of(loader)
    state.eval_timestamp = Timestamp()


def run_batch(
    session: Measured,
    batch: Any,
    rows: int,
    forward: Callable[[State], Any],
    measure: Callable[[Any], None] | None = None,
) -> None:
    """Run the events of one batch around `forward`, and let `measure` take what that returns.

    Args:
        rows: of the global batch, of which `batch` is this rank's part.
    """
    state, fire, label = session.engine.state, session.engine.run_event, session.engine.state.dataloader_label
    started_s = time.perf_counter()
    try:
        state.batch = move_batch(batch, session.device) if session.device.type != "cpu" else batch
        fire(Event.EVAL_BATCH_START)
        fire(Event.EVAL_BEFORE_FORWARD)
        given = forward(state)
        fire(Event.EVAL_AFTER_FORWARD)
        if measure is not None:
            measure(given)
    except Exception as error:
        place = f"in the evaluation on {label!r} with batches of {rows} rows"
        explain_out_of_memory(error, state, place, f"give the loader {label!r} a smaller batch_size")
        raise
    state.eval_timestamp = state.eval_timestamp.to_next_batch(rows, 0, time.perf_counter() - started_s)
    fire(Event.EVAL_BATCH_END)


def _evaluate_loader(session: Measured, loader: Iterable[Any], ends: Callable[[], bool] | None) -> None:
    state, fire, metrics = session.engine.state, session.engine.run_event, session.engine.state.metric_objects
    label = state.dataloader_label
    forward, loss_of = (session.precision.wrap(each) for each in (_forward, state.objective.eval_loss))
    for metric in metrics.values():
        metric.reset()
    measurement = Measurement(metrics, state.ranks)
    began = begin_pass(loader, session.device)
    fire(Event.EVAL_START)
    losses = _Losses(session, str(label))

    def measure(targets: Any) -> None:
        """Compute the loss of the current batch, and update the metrics."""
        state.loss = losses.take(loss_of(state.model, state.outputs, state.batch))
        if metrics:
            outputs = session.precision.full(state.outputs)
            given = state.objective.for_metrics(outputs, state.batch) if targets is None else (outputs, targets)
            measurement.take(*given, state)
        if not session.has_measured:
            session.has_measured = True
            look_at_values(metrics, str(label))

    # The targets of a batch end with its call, before the next one is made.
    if _ended_early(session, loader, lambda batch, rows: run_batch(session, batch, rows, forward, measure), ends):
        generators = {**began, "global": began["global"].to_state()}
        raise EvaluationInterrupted(BegunEvaluation(dict(state.metrics), generators))
    if not state.eval_timestamp.batch:
        raise EngineError(
            f"the evaluation loader {label!r} gave no batches; "
            "it has to be an iterable that starts over for each evaluation, as a DataLoader or a list does"
        )
    results = losses.compute()
    for name in metrics:
        results |= as_numbers(f"{label}/{name}", measurement.compute(name))
    state.metrics = {**state.metrics, **results}
    if state.evaluators.get(str(label)) is loader:  # another loader may have the same label
        state.results.record(results, state.timestamp.batch, epochs_done(state), approximate=losses.approximate)
    fire(Event.EVAL_END)
    session.engine.logger.log_metrics(results)


def _ended_early(
    session: Measured, loader: Iterable[Any], run: Callable[[Any, int], None], ends: Callable[[], bool] | None
) -> bool:
    """Run each batch; return whether a signal or a pause ended that before the loader did."""
    try:
        for batch, rows in session.deal(loader):
            run(batch, rows)
            if ends is not None and ends():
                return True
    except RuntimeError as error:
        if ends is None or not lost_workers(error, session.engine.state):
            raise
        return True
    return False


class _Losses:
    """The losses of a set's batches, which make the loss of the set; the law that they add up is measured."""

    def __init__(self, session: Measured, label: str) -> None:
        self._session, self._state, self._label = session, session.engine.state, label
        self._taken: list[Loss] = []
        self._batches = 0
        self.approximate: set[str] = set()

    def take(self, given: Any) -> torch.Tensor | None:
        """Take the loss of the current batch, and return it as one number."""
        state, objective = self._state, self._state.objective
        self._batches += 1
        self._check_law()
        if given is None:
            return None
        loss = objective.counted(given, state.outputs, state.batch, objective.eval_loss_fn)
        if not state.is_placeholder:
            self._taken.append(loss.detach())
        return loss.mean

    def compute(self) -> dict[str, float]:
        """Return the loss over all ranks, nothing if there is none; NaN if no target counts."""
        taken = self._taken
        counts = [0.0 if loss.count is None else float(loss.count) for loss in taken]
        total = sum(loss.sum.item() for loss in taken)
        table = self._state.ranks.table([len(taken), any(loss.count is None for loss in taken), total, sum(counts)])
        losses, are_sums, sums, divisors = zip(*table, strict=True)
        if not any(losses):
            return {}
        count = 1 if any(are_sums) else sum(divisors)
        return {f"{self._label}/loss": sum(sums) / count if count else math.nan}

    def _check_law(self) -> None:
        """Warn once for each loader if the loss of a set depends on how it is cut into batches."""
        state, objective, session = self._state, self._state.objective, self._session
        measured = self._batches - 1  # that there is more than one batch is known at the second
        if measured not in AT or not objective.check or objective.is_certain(objective.eval_loss_fn):
            return
        said = law_of(session, in_eval=True).broken_by(state.batch)
        if not state.ranks.any(said):
            return
        self.approximate.add(f"{self._label}/loss")
        if said and self._label not in session.told_of:
            session.told_of.add(self._label)
            warn(f"{self._label}/loss is approximate: {said}; it depends on the size of batches", UserWarning)


def law_of(session: Measured, *, in_eval: bool = False) -> Law:
    """Return the law of the run's loss, in training or in evaluations."""
    state: Any = session.engine.state
    run = session.precision.wrap(lambda block: without_trace(state.model, session.device, block))
    tolerance = tolerance_of(state.precision, session.device)
    return Law(state.objective, state.model, run, state.ranks.any, tolerance, in_eval)


def without_trace(model: Any, device: torch.device, block: Callable[[], Any]) -> Any:
    """Return what a function returns, run eagerly, in eval mode and without gradients.

    Generators, and what modules have in attributes and buffers, are put back, also where another object took the place.
    """
    contents = ModuleContents(model, model.buffers())
    try:
        with preserve_generators(device), torch.no_grad():
            model.eval()
            return _eagerly(block)
    finally:
        contents.put_back()


def _eagerly(block: Callable[[], Any]) -> Any:
    """Run a function without compiling anything for its shapes; torch before 2.6 can't be told so."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    if set_stance is None or "torch._dynamo" not in sys.modules:  # nothing is compiled
        return block()
    with set_stance("force_eager"):
        return block()


def _forward(state: State) -> Any:
    """Set `state.outputs`; return the targets that the model gives, or None if the batch holds them."""
    model: Any = state.model
    if state.loss_fn is None and hasattr(model, "eval_forward"):
        given = model.eval_forward(state.batch)
        if not isinstance(given, (tuple, list)) or len(given) != 2:  # two rows would be taken for outputs and targets
            raise ArgumentTypeError(
                f"eval_forward of {type(model).__name__} returned a {type(given).__name__}; it has to return "
                "(outputs, targets)"
            )
        state.outputs, targets = given
        return targets
    state.outputs = state.objective.forward(model, state.batch)
    return None


def as_loaders(dataloader: Any) -> dict[str, Iterable[Any]]:
    """Return evaluation loaders by label; a single loader gets the label `eval`."""
    if dataloader is None:
        return {}
    loaders = dict(dataloader) if isinstance(dataloader, Mapping) else {"eval": dataloader}
    for label, loader in loaders.items():
        if not isinstance(label, str) or not label or "/" in label:
            raise ArgumentError(f"an evaluation loader's label has to be a string without '/', not {label!r}")
        check_loader(loader, f"the evaluation loader {label!r}")
    return loaders


class Before:
    """The training state, the modes and the generators as they are before an evaluation."""

    def __init__(self, state: State, device: torch.device) -> None:
        self._state, self._kept = state, {name: getattr(state, name) for name in _CURRENT}
        self._modes = ModuleModes(state.model)
        self.globals = Globals(device)

    def put_back(self) -> None:
        """Put them back."""
        self.globals.put_back()
        self._modes.put_back()
        for name, value in self._kept.items():
            setattr(self._state, name, value)


class Globals:
    """torch's grad mode and the global generators as they are when this is made."""

    def __init__(self, device: torch.device) -> None:
        self._records, self._generators = torch.is_grad_enabled(), GlobalGenerators.capture(device)

    def put_back(self) -> None:
        """Put them back."""
        torch.set_grad_enabled(self._records)
        self._generators.restore()


class ModuleContents:
    """What modules have in attributes and buffers, and the values of some tensors, as they are when this is made."""

    def __init__(self, model: Any, tensors: Iterable[torch.Tensor]) -> None:
        modules = model.modules()
        self._modules = [(module, dict(vars(module)), dict(module._buffers)) for module in modules]  # noqa: SLF001
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]

    def put_back(self) -> None:
        """Put them back, also where another object took the place."""
        for module, attributes, buffers in self._modules:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()  # noqa: SLF001
            module._buffers.update(buffers)  # noqa: SLF001
        with torch.no_grad():
            for tensor, former in self._values:
                if tensor.shape == former.shape:
                    tensor.copy_(former)
                else:  # it was resized in place
                    tensor.data = former


class ModuleModes:
    """The mode, train or eval, of each module of a model as it is when this is made."""

    def __init__(self, model: Any) -> None:
        self._modes = [(module, module.training) for module in model.modules()]

    def put_back(self) -> None:
        """Put them back."""
        for module, training in self._modes:
            module.training = training

    def enter_train_mode(self, model: Any) -> int:
        """Put the model into train mode, but for what has only frozen parameters; return how many modules changed."""
        model.train()
        kept = {id(part) for module in model.modules() if _is_frozen(module) for part in module.modules()}
        for module, training in self._modes:
            if id(module) in kept:
                module.training = training
        return sum(module.training and not training for module, training in self._modes)


def _is_frozen(module: Any) -> bool:
    """Has it parameters, and is none of them trained?"""
    trained = [parameter.requires_grad for parameter in module.parameters()]
    return bool(trained) and not any(trained)


def enter_train_mode(model: Any) -> None:
    """Put a model that is in eval mode into train mode, but for frozen parts, and warn of it."""
    if model.training:
        return
    modes = ModuleModes(model)
    try:
        if changed := modes.enter_train_mode(model):
            warn(
                f"the model came in eval mode, and fit() has put {counted(changed, 'module', 'modules')} of it into "
                "train mode; those with parameters that are all frozen stay as they are. Call model.train() before",
                UserWarning,
            )
    except Exception:
        modes.put_back()
        raise
