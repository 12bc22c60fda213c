"""The Trainer: wires model, data, plugins and engine, and hands them to the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import torch

from ..engine import Engine
from ..errors import ArgumentError, DurationWarning
from ..event import Event
from ..logger import Logger
from ..order import PassArgument
from ..precision import Precision
from ..randomness import seed_generators
from ..state import State
from ..time import Time
from .arguments import (
    as_optimizers,
    as_plugins,
    as_schedulers,
    check_loader,
    check_loggers,
    check_model,
    check_positive,
    check_seed,
    choose_device,
    new_name,
)
from .arguments import progress_bar as bar
from .evaluation import as_loaders, check_metrics, run_eval
from .intervals import Interval
from .loop import Run, run_fit
from .objective import check_objective
from .readings import LossReader

__all__ = ["Trainer"]


class Trainer:
    """Trains a model, with algorithms, callbacks and loggers given as instances or by the names of installed plugins.

    Args:
        model: a module with batches `(inputs, targets)` and a `loss_fn`, or one with its own `loss(outputs, batch)`
            whose forward gets the whole batch, and optionally `eval_forward(batch) -> (outputs, targets)`.
        train_dataloader: an iterable of batches that starts anew for each epoch.
        max_duration: the whole training, as `"10ep"`; the horizon of schedules and where `fit` ends.
        loss_fn: `loss_fn(outputs, targets)` gives a scalar tensor, or a tuple or dict of scalars.
        optimizers: an optimizer, or a callable that makes one from the parameters, called after INIT.
        schedulers: torch schedulers, or callables that make one from the optimizer, each stepped per epoch, or in a
            pair such as `(scheduler, "1ba")`.
        eval_dataloader: a loader, then called `eval`, or loaders by label.
        eval_interval: how often to evaluate, as `"1ep"` or `"500ba"`; also at the end of `fit`.
        metrics: objects with `update(outputs, targets)`, `compute()` and `reset()`, by name.
        algorithms, callbacks, loggers: instances, names, or `(name, arguments)` pairs, one or a sequence.
        algorithm_passes: passes of your own, see `Engine`.
        microbatch_size: rows that go through the model at once; None: the whole batch.
        grad_clip_norm: the largest norm of all gradients together.
        precision: `fp32`, `amp_bf16`, or `amp_fp16` (CUDA).
        device: `auto`, `cpu`, `cuda` or `mps`.
        seed: of the global generators and of the plugins' own; None: one is drawn, see `state.seed`.
        progress_bar: True, False, or `auto`: on a terminal.
        run_name: default: date and time.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for what can't work; nothing has started then.
        PluginError: for a name that can't be used.

    Example:
        >>> data = [(torch.randn(8, 4), torch.randn(8, 1))]
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Trainer(model, data, max_duration="2ep", loss_fn=torch.nn.MSELoss(), optimizers=optimizer) as trainer:
        ...     trainer.fit()
        >>> trainer.state.timestamp.batch
        2
    """

    def __init__(
        self,
        model: torch.nn.Module,
        train_dataloader: Iterable[Any] | None = None,
        *,
        max_duration: Time | str | None = None,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        optimizers: Any = None,
        schedulers: Any = None,
        eval_dataloader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
        eval_interval: Time | str = "1ep",
        metrics: Mapping[str, Any] | None = None,
        algorithms: Any = (),
        callbacks: Any = (),
        loggers: Any = (),
        algorithm_passes: PassArgument | None = None,
        microbatch_size: int | None = None,
        grad_clip_norm: float | None = None,
        precision: str = "fp32",
        device: str | torch.device = "auto",
        seed: int | None = None,
        progress_bar: bool | Literal["auto"] = "auto",
        run_name: str | None = None,
    ) -> None:
        if loss_fn is not None and not callable(loss_fn):
            raise ArgumentError(f"loss_fn has to be callable as loss_fn(outputs, targets), not {loss_fn!r}")
        self._device = choose_device(device, check_model(model))
        self._precision = Precision(precision, self._device)
        self._metrics = check_metrics(metrics, model, loss_fn is not None)
        self._microbatch_size = check_positive(microbatch_size, "microbatch_size", int)
        self._grad_clip_norm = check_positive(grad_clip_norm, "grad_clip_norm", float)
        self._eval_interval = Interval(eval_interval, "eval_interval")
        callbacks = [*as_plugins("callbacks", callbacks, "callbacks"), *as_plugins("callbacks", bar(progress_bar), "")]
        self.logger = Logger(check_loggers(as_plugins("callbacks", loggers, "loggers")))
        self.state = State(
            model=model,
            train_dataloader=check_loader(train_dataloader),
            evaluators=as_loaders(eval_dataloader),
            algorithms=as_plugins("algorithms", algorithms, "algorithms"),
            callbacks=callbacks,
            loss_fn=loss_fn,
            max_duration=None if max_duration is None else Interval(max_duration, "max_duration").length,
            device=self._device,
            precision=precision,
            seed=check_seed(seed),
            run_name=run_name or new_name(),
        )
        self.engine = Engine(self.state, self.logger, algorithm_passes)
        try:
            self._initialise(optimizers, schedulers)
        except BaseException:
            self.close()
            raise

    def fit(self, duration: Time | str | None = None) -> None:
        """Train to `max_duration`, or for `duration` from here; the next call goes on where this one ended.

        Raises:
            ArgumentError: (a ValueError) if there is no loader, optimizer, loss or duration.
            ClosedEngineError: (a RuntimeError) if the trainer is closed.
        """
        end = self._end_of_fit(duration)
        if end is None:
            return
        if not self.state.model.training:
            self.state.model.train()
        self.state.stop_requested = False
        run_fit(self._run, end)

    def eval(self, dataloader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None) -> dict[str, float]:
        """Evaluate on the given loaders, else on the trainer's, and return `{"<label>/<metric>": value}`.

        Raises:
            ArgumentError: (a ValueError) if there is no loader or no loss.
        """
        loaders = self.state.evaluators if dataloader is None else as_loaders(dataloader)
        if not loaders:
            raise ArgumentError("there is nothing to evaluate on: give eval_dataloader to the Trainer or to eval()")
        check_objective(self.state)
        return run_eval(self.engine, loaders, self._metrics, self._precision, self._device)

    def close(self) -> None:
        """Close callbacks and loggers, each once; safe to call twice."""
        self.engine.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self, optimizers: Any, schedulers: Any) -> None:
        """Run INIT on the model as it was given, then move it, and make what depends on its parameters."""
        state = self.state
        seed_generators(state.seed)
        self.engine.run_event(Event.INIT)
        state.model.to(self._device)
        for metric in self._metrics.values():
            if callable(getattr(metric, "to", None)):
                metric.to(self._device)
        state.optimizers = as_optimizers(optimizers, state.model)
        timed_schedulers = as_schedulers(schedulers, state.optimizers)
        state.schedulers = [scheduler for scheduler, _ in timed_schedulers]
        self._run = Run(
            engine=self.engine,
            state=state,
            precision=self._precision,
            device=self._device,
            readings=LossReader(state, self.logger, late=self._device.type != "cpu"),
            schedulers=timed_schedulers,
            eval_interval=self._eval_interval,
            evaluate=self._evaluate,
            microbatch_size=self._microbatch_size,
            grad_clip_norm=self._grad_clip_norm,
        )
        self.logger.log_hyperparameters(
            {
                "run_name": state.run_name,
                "seed": state.seed,
                "max_duration": None if state.max_duration is None else str(state.max_duration),
                "precision": state.precision,
                "device": str(self._device),
                "microbatch_size": self._microbatch_size,
                "grad_clip_norm": self._grad_clip_norm,
                "algorithms": [type(algorithm).__name__ for algorithm in state.algorithms],
            }
        )

    def _evaluate(self) -> None:
        if self.state.evaluators:
            self.eval()

    def _end_of_fit(self, duration: Time | str | None) -> Time | None:
        """Return where this call of `fit` ends, after checking that it can start; None: it is there already."""
        state = self.state
        if state.train_dataloader is None:
            raise ArgumentError("there is nothing to train on: give Trainer(train_dataloader=...)")
        if not state.optimizers:
            raise ArgumentError(
                "there is no optimizer: give Trainer(optimizers=torch.optim.SGD(model.parameters(), lr=0.1))"
            )
        check_objective(state)
        if duration is None and state.max_duration is None:
            raise ArgumentError("how long? give Trainer(max_duration='10ep') or fit('10ep')")
        horizon = None if state.max_duration is None else Time(state.max_duration)
        if duration is None:
            if state.timestamp.get(horizon.unit) >= horizon:
                warnings.warn(
                    f"fit() has nothing to do: the training is at its max_duration of {horizon}; "
                    f"fit('1{horizon.unit}') would go on",
                    DurationWarning,
                    stacklevel=3,
                )
                return None
            return horizon
        length = Interval(duration, "duration").length
        end = state.timestamp.get(length.unit) + length
        if horizon is None:
            state.max_duration = end
        elif end.unit is horizon.unit and end > horizon:
            warnings.warn(
                f"fit('{length}') goes past the max_duration of {horizon}; schedules now end at {end}",
                DurationWarning,
                stacklevel=3,
            )
            state.max_duration = end
        return end
