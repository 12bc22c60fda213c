"""Evaluation and prediction, two loops over the seam's moments which leave no trace, and the average that they use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from ..algorithm import is_averaging
from ..batch import move_batch
from ..engine import Engine
from ..errors import ArgumentTypeError, EngineError
from ..loop import BegunEvaluation, Phase
from ..messages import warn
from ..objective import AT, Loss
from ..parallel import ends_with, mark_of_tensors
from ..state import State, epochs_done
from .arguments import check_loader
from .feed import begin_pass, restart_pass
from .metrics import Measurement, as_numbers, check_values
from .optimizers import at_evaluation
from .requests import EvaluationInterrupted, lost_workers, signals_noted
from .session import Session, explain_out_of_memory


def run_eval(
    session: Session,
    loaders: Mapping[str, Iterable[Any]],
    ends: Callable[[], bool] | None = None,
    begun: BegunEvaluation = BegunEvaluation(),  # noqa: B008  a tuple
) -> dict[str, float]:
    """Evaluate on each loader; return `{"<label>/<metric>": value}` and log it.

    Args:
        ends: asked after each batch: does a signal, or a pause of `fit`, end it there? None: it can't be interrupted.
        begun: how far an interrupted evaluation is, whose done loaders are skipped.
    """
    session.status.check_can("eval")
    state, generators = session.state, begun.generators
    former, results = state.metrics, state.results.to_json()
    done = {name.partition("/")[0] for name in begun.results}
    try:
        # Around EVAL_START and EVAL_END: an average is put in last.
        with at_evaluation(state.optimizers), session.seam.evaluations(device=session.device):
            state.metrics = dict(begun.results)
            state.results.begin()
            state.results.record(state.metrics, state.timestamp.batch, epochs_done(state))
            for label, loader in loaders.items():
                if label in done:
                    continue
                if generators is not None:
                    restart_pass(loader, generators, session.device)
                    generators = None
                _evaluate_loader(session, label, loader, ends)
    except BaseException:
        state.metrics = former
        state.results.load(results)
        raise
    return dict(state.metrics)


def _evaluate_loader(session: Session, label: str, loader: Iterable[Any], ends: Callable[[], bool] | None) -> None:
    seam, state, measured = session.seam, session.state, _Measured(session, label)
    began, is_cut = begin_pass(loader, session.device), False
    forward = session.precision.wrap(_forward)
    seam.eval_start(label, loader)
    try:
        for batch, rows in session.deal(loader):
            _run_batch(session, batch, rows, forward, measured.take)
            if is_cut := ends is not None and ends():
                break
    except RuntimeError as error:
        if not (is_cut := ends is not None and lost_workers(error, state)):
            raise
    if is_cut:
        generators = {**began, "global": began["global"].to_state()}
        raise EvaluationInterrupted(BegunEvaluation(dict(state.metrics), generators))
    if not state.eval_timestamp.batch:
        raise EngineError(
            f"the evaluation loader {label!r} gave no batches; "
            "it has to be an iterable that starts over for each evaluation, as a DataLoader or a list does"
        )
    results = measured.compute()
    if state.evaluators.get(label) is loader:  # another loader may have the same label
        state.results.record(results, state.timestamp.batch, epochs_done(state), approximate=measured.approximate)
    seam.eval_end(results)
    session.engine.logger.log_metrics(results)


def predictions(session: Session, loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Check the loader and return an iterator over the model's outputs; nothing runs before the first is asked for."""
    session.status.check_can("predict")
    if isinstance(loader, Mapping):
        raise ArgumentTypeError(f"predict() takes one loader, not a {type(loader).__name__}; call it for each of them")
    if isinstance(loader, torch.Tensor):
        raise ArgumentTypeError(
            "predict() takes a loader, and a tensor would give its rows one by one: write predict([tensor]) if it is "
            "one batch, or predict(DataLoader(tensor, batch_size=...))"
        )
    return _predict(session, check_loader(loader, "the loader of predict()"))


def _predict(session: Session, loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the outputs of each batch, with grad mode and generators as the caller's; in the end, all is as before.

    A first signal during a batch ends this after it, one in between at once.
    """
    session.status.check_can("predict")
    state, seam, eval_timestamp = session.state, session.seam, session.state.eval_timestamp
    forward = session.precision.wrap(lambda state, batch: (state.objective.predict(state.model, batch), None))
    leaving_no_trace = seam.evaluations(device=session.device, phase=Phase.PREDICTING)
    try:
        with ExitStack() as noting:
            noting.enter_context(signals_noted(state))
            with at_evaluation(state.optimizers), leaving_no_trace as outside:
                state.loss = None
                seam.eval_start("predict", loader)
                for batch, rows in session.deal(loader, in_step=state.ranks.is_sharded):
                    _run_batch(session, batch, rows, forward)
                    if state.is_placeholder:
                        continue
                    noting.close()
                    with outside():
                        yield session.precision.full(state.outputs)
                    noting.enter_context(signals_noted(state))
                seam.eval_end({})
    except BaseException as error:  # noqa: BLE001  raised below, mostly as it is
        # To the others this rank's signal is a failure: each predicts on its own.
        raise error if isinstance(error, GeneratorExit) else ends_with(error)  # noqa: B904
    finally:
        state.eval_timestamp = eval_timestamp


def _run_batch(
    session: Session,
    batch: Any,
    rows: int,
    forward: Callable[[State, Any], tuple[Any, Any]],
    measure: Callable[[Any, Any], Any] = lambda *_: None,
) -> None:
    """Run the events of one batch, of `rows` on all ranks, around `forward`; `measure` takes outputs and targets."""
    seam, label, started_s = session.seam, session.state.dataloader_label, time.perf_counter()
    try:
        batch = seam.eval_batch(move_batch(batch, session.device) if session.device.type != "cpu" else batch)
        outputs, targets = forward(session.state, batch)
        loss = measure(seam.eval_outputs(outputs), targets)
    except Exception as error:
        place = f"in the evaluation on {label!r} with batches of {rows} rows"
        explain_out_of_memory(error, session.state, place, f"give the loader {label!r} a smaller batch_size")
        raise
    seam.eval_batch_end(loss, samples=rows, seconds=time.perf_counter() - started_s)


def _forward(state: State, batch: Any) -> tuple[Any, Any]:
    """Return the outputs, and the targets that the model gives, or None if the batch holds them."""
    model: Any = state.model
    if state.loss_fn is not None or not hasattr(model, "eval_forward"):
        return state.objective.forward(model, batch), None
    given = model.eval_forward(batch)
    if not isinstance(given, (tuple, list)) or len(given) != 2:  # two rows would be taken for outputs and targets
        raise ArgumentTypeError(
            f"eval_forward of {type(model).__name__} returned a {type(given).__name__}; it has to return "
            "(outputs, targets)"
        )
    return given[0], given[1]


class _Measured:
    """What metrics and losses of a set's batches make of the whole set; the law that losses add up is measured."""

    def __init__(self, session: Session, label: str) -> None:
        self._session, self._state, self._label = session, session.state, label
        for metric in self._state.metric_objects.values():
            metric.reset()
        self._metrics = Measurement(self._state.metric_objects, self._state.ranks)
        self._loss_of = session.precision.wrap(self._state.objective.eval_loss)
        self._losses: list[Loss] = []
        self._batches = 0
        self.approximate: set[str] = set()

    def take(self, outputs: Any, targets: Any) -> torch.Tensor | None:
        """Update the metrics with the current batch, and return its loss; without targets, these are in the batch."""
        state, session, metrics = self._state, self._session, self._state.metric_objects
        objective, loss = state.objective, None
        given = self._loss_of(state.model, outputs, state.batch)
        self._batches += 1
        self._check_law()
        if given is not None:
            counted = objective.counted(given, state.outputs, state.batch, objective.eval_loss_fn)
            loss = counted.mean
            if not state.is_placeholder:
                self._losses.append(counted.detach())
        if metrics:
            outputs = session.precision.full(outputs)
            pair = objective.for_metrics(outputs, state.batch) if targets is None else (outputs, targets)
            self._metrics.take(*pair, state)
        if session.is_new("values of metrics"):
            check_values(metrics, self._label)
        return loss

    def compute(self) -> dict[str, float]:
        """Return the loss over all ranks, none if there is none, NaN if no target counts; and the metrics."""
        own = self._losses
        counts = [0.0 if loss.count is None else float(loss.count) for loss in own]
        total = sum(loss.sum.item() for loss in own)
        table = self._state.ranks.table([len(own), any(loss.count is None for loss in own), total, sum(counts)])
        losses, are_sums, sums, divisors = zip(*table, strict=True)
        count = 1 if any(are_sums) else sum(divisors)
        results = {f"{self._label}/loss": sum(sums) / count if count else math.nan} if any(losses) else {}
        for name in self._state.metric_objects:
            results |= as_numbers(f"{self._label}/{name}", self._metrics.compute(name))
        return results

    def _check_law(self) -> None:
        """Warn once for each loader if the loss of a set depends on how it is cut into batches."""
        state, objective, label = self._state, self._state.objective, self._label
        measured = self._batches - 1  # that there is more than one batch is known at the second
        if measured not in AT or not objective.check or objective.is_certain(objective.eval_loss_fn):
            return
        said = self._session.law(in_eval=True).broken_by(state.batch)
        if not state.ranks.any(said):
            return
        self.approximate.add(f"{label}/loss")
        if said and self._session.is_new(f"approximate {label}"):
            warn(f"{label}/loss is approximate: {said}; it depends on the size of batches", UserWarning)


class Average(NamedTuple):
    """Averaged weights, and the algorithm that keeps them by its unique and its registered name."""

    algorithm: str
    registered: str
    weights: Mapping[str, torch.Tensor]


def find_average(engine: Engine) -> Average | None:
    """Return the average of the engine's averaging algorithm; None if there is no such algorithm, or no average yet."""
    for member in engine.members:
        if is_averaging(member.algorithm):
            averaging: Any = member.algorithm
            weights = averaging.averaged_state_dict()
            return Average(member.name, member.registered, weights) if weights else None
    return None


def mark_of_evaluated(engine: Engine) -> int:
    """Return a number that differs if what evaluations look at differs: the model's weights, and their average."""
    model: Any = engine.state.model
    average = find_average(engine)
    weights = [*model.parameters(), *model.buffers(), *(average.weights.values() if average is not None else ())]
    return mark_of_tensors(weights)
