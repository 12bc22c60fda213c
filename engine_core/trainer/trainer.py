"""The Trainer: wires up model, data, plugins and engine, runs INIT, and hands them to the loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ..arguments import interval_in_run
from ..batch import Batches
from ..engine import refuse_to_copy
from ..errors import ArgumentError, ClosedEngineError, DurationWarning
from ..logger import Logger
from ..loop import Loop, Phase, check_batches
from ..messages import warn
from ..needs import EVERYTHING, FSDP_OFFERS
from ..objective import Objective, check_loss_fn, check_objective, check_own_objective
from ..parallel import DDP, FSDP, check_spread, join, shard_state_like, spread_model, spread_of
from ..passes import PassArgument
from ..randomness import check_seed, seed_generators
from ..ranks import Ranks
from ..registry import as_plugins
from ..state import State
from ..surgery import follow_parameters
from ..time import Interval, Time
from .arguments import as_loaders, check_loader, check_model, check_positive, choose_device, new_name
from .arguments import progress_bar as bar
from .evaluation import predictions, run_eval
from .feed import Feed
from .loop import check_trainable, enter_train_mode, run_fit
from .manifest import check_alike, describe_run, hyperparameters_of, model_of, settings_of, training_of
from .metrics import LossReader, check_metrics
from .optimizers import (
    begin_training,
    check_of_loss,
    check_optimizers,
    check_schedulers,
    check_trained,
    make_optimizers,
    make_schedulers,
)
from .peeking import peeking
from .requests import ended_together, ending_together, signals_noted
from .resuming import Loading, find_resumed, start_over
from .session import Precision, Session
from .weights import modes_of, shapes_of


class Trainer:
    """Trains a model, with algorithms, callbacks and loggers given as instances or by the names of installed plugins.

    Args:
        model: a module with batches `(inputs, targets)` and a `loss_fn`, or one with its own `loss(outputs, batch)`
            whose forward gets the whole batch, and optionally `eval_forward(batch) -> (outputs, targets)`.
        train_dataloader: an iterable of batches that starts over for each epoch.
        max_duration: the length of training, such as `"10ep"`; where schedules and `fit` end.
        loss_fn: `loss_fn(outputs, targets)` gives a scalar tensor, or a tuple or dict of scalars.
        optimizers: one or several optimizers, in state.optimizers from the start, or callables that make one from the
            parameters after INIT, or a list of them from pairs, as `by_name` does.
        schedulers: torch schedulers, or callables that make one from each optimizer, stepped each epoch or, as a pair
            such as `(scheduler, "1ba")`, at that interval. Lengths in the arguments of a partial, as in
            `partial(CosineAnnealingLR, T_max="1dur")`, become steps; an argument named `steps` gets their total.
        eval_dataloader: a loader, labelled `eval`, or loaders by label.
        eval_interval: how often to evaluate, such as `"1ep"`, `"500ba"` or `"0.1dur"`; `fit` also evaluates at its end.
        metrics: objects with `update(outputs, targets)`, `compute()` and `reset()`, by name.
        algorithms, callbacks, loggers: instances, names, or `(name, arguments)` pairs, one or a sequence.
        algorithm_passes: passes of your own, see `Engine`.
        microbatch_size: rows that go through the model at once; None: the whole batch.
        grad_clip_norm: the largest norm of all gradients together.
        precision: `fp32`, `amp_bf16`, or `amp_fp16` (CUDA).
        device: `auto`, `cpu`, `cuda` or `mps`.
        seed: of the global generators and the plugins' own; None draws one, see `state.seed`.
        progress_bar: header, evaluations and progress on stderr: `auto` for only on a terminal; `lines` for plain
            lines; True for a bar on a terminal and lines elsewhere; False for nothing.
        run_name: default: date and time.
        load_path: a checkpoint to resume, or a CheckpointSaver's folder for its latest.
        autoresume: resume the latest checkpoint in the folder of the run's CheckpointSaver, if there is one.
        load_weights_only: start from the beginning with the checkpoint's weights.
        load_strict: raise if something does not fit, instead of leaving it out with a warning that names it.
        parallel: `auto` for DDP where torchrun started several processes, `ddp`, `fsdp`, a `DDP(...)` or `FSDP(...)`
            of `engine_core.parallel`, or None for a process on its own; in a test, a rank of `ThreadRanks`.
        objective: in place of `loss_fn`: what the model gets of a batch, its loss, and what that counts.
        batches: what a row of a batch is, where its tensors do not tell, and what counts its tokens.
        load_changed: what to do if plugins, settings, versions or the machine differ from the saved run's: `error`;
            `warn` about each difference; or `adopt` the current ones.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for what can't work; then nothing has started.
        PluginError: for a name that can't be used.
        CheckpointError: for a checkpoint that is damaged or does not match this run.

    Example:
        >>> data = [(torch.randn(8, 4), torch.randn(8, 1))]
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Trainer(model, data, max_duration="2ep", loss_fn=torch.nn.MSELoss(), optimizers=optimizer) as trainer:
        ...     trainer.fit()
        >>> trainer.state.timestamp.batch
        2
    """

    @ending_together
    def __init__(  # noqa: PLR0913  frozen by a test: a new argument has to show why a callback can't do it
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
        progress_bar: bool | Literal["auto", "lines"] = "auto",
        run_name: str | None = None,
        load_path: Path | str | None = None,
        autoresume: bool = False,
        load_weights_only: bool = False,
        load_strict: bool = True,
        load_changed: Literal["error", "warn", "adopt"] = "warn",
        parallel: Literal["auto", "ddp", "fsdp"] | DDP | FSDP | Ranks | None = "auto",
        batches: Batches | None = None,
        objective: Objective | None = None,
    ) -> None:
        if objective is not None:
            check_own_objective(objective, loss_fn)
        spread = spread_of(parallel)
        at = choose_device(device, check_model(model), spread)
        check_spread(model, spread, precision)
        ranks = parallel if isinstance(parallel, Ranks) else join(spread, at)
        formats = Precision(precision, at)
        microbatch_size = check_positive(microbatch_size, "microbatch_size", int)
        grad_clip_norm = check_positive(grad_clip_norm, "grad_clip_norm", float)
        optimizers = check_optimizers(optimizers)
        self._own_horizon: Time | None = None
        self._closed = False
        if train_dataloader is not None:
            check_loader(train_dataloader, "train_dataloader")
        callbacks = as_plugins("callbacks", callbacks, "callbacks", ranks.rank)
        callbacks += as_plugins("callbacks", bar(progress_bar, callbacks), "", ranks.rank)
        self.logger = Logger(as_plugins("callbacks", loggers, "loggers", ranks.rank))
        loading = Loading(load_path, autoresume, load_weights_only, load_strict, load_changed)
        knows_targets = loss_fn is not None if objective is None else objective.knows_targets()
        resumed = find_resumed(loading, callbacks, ranks)
        self.state = State(
            model=model,
            train_dataloader=train_dataloader,
            evaluators=as_loaders(eval_dataloader),
            algorithms=as_plugins("algorithms", algorithms, "algorithms"),
            callbacks=callbacks,
            batches=check_batches(batches),
            objective=objective,  # type: ignore[arg-type]  # None is made from loss_fn
            loss_fn=check_loss_fn(loss_fn),
            metric_objects=check_metrics(metrics, model, knows_targets=knows_targets, ranks=ranks),
            max_duration=None if max_duration is None else Interval(max_duration, "max_duration").length,
            device=at,
            precision=precision,
            seed=ranks.first(check_seed(seed) if resumed is None else resumed.seed(seed)),
            run_name=ranks.first(run_name or new_name()),
            rank=ranks.rank,
            world_size=ranks.size,
            ranks=ranks,
        )
        interval = interval_in_run(self.state, "eval_interval", eval_interval)
        schedulers = check_schedulers(schedulers, self.state)
        offers = FSDP_OFFERS if isinstance(spread, FSDP) and ranks.size > 1 else EVERYTHING
        seam = Loop(self.state, offers, logger=self.logger, algorithm_passes=algorithm_passes)
        self.engine = seam.engine
        self._session = Session(
            seam=seam,
            precision=formats,
            device=at,
            readings=LossReader(self.state, self.logger, late=at.type != "cpu"),
            eval_interval=interval,
            feed=Feed(self.state, at, is_local=spread is not None and spread.data == "local"),
            parallel=spread,
            microbatch_size=microbatch_size,
            grad_clip_norm=grad_clip_norm,
        )
        self.state.loop.awaits_weights = train_dataloader is None or (resumed is not None and load_strict)
        try:
            _initialise(self._session, optimizers, schedulers)
            if autoresume and not (resumed is not None and resumed.is_own):
                start_over([*callbacks, *self.logger.destinations])
            if resumed is not None:
                resumed.resume(self._session, seed)
        except BaseException as error:  # noqa: BLE001  raised below
            ended = ended_together(error)  # first: closing may take long
            self.close()
            raise ended  # noqa: B904  mostly the same one

    @ending_together
    def fit(self, duration: Time | str | None = None) -> None:
        """Train to `max_duration`, or for `duration` from here; the next call continues where this one ended.

        A model that comes in eval mode is put into train mode, with a warning. Modules stay in eval mode if they have
        parameters and all of them are frozen. A first Ctrl-C or SIGTERM ends it after its batch, saved if it can be.

        Raises:
            ArgumentError: (a ValueError) if there is no loader, optimizer, loss or duration.
            ClosedEngineError: (a RuntimeError) if the trainer is closed.
            EngineError: if a fit or an evaluation is running.
        """
        self._check_open()
        self._session.status.check_can("fit")  # before anything changes
        check_trainable(self.state)
        end = self._end_of_fit(duration)
        if end is None:
            return
        state: Any = self.state
        if not self._session.left_in_eval:
            enter_train_mode(state.model)
        begin_training(state.optimizers)
        if state.timestamp.batch == 0 and self._session.batches is None:
            # Undoes draws made since the Trainer was created.
            seed_generators(state.derive_seed("rank") if state.rank else state.seed)
        run_fit(self._session, end)

    @ending_together
    def eval(self, dataloader: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None) -> dict[str, float]:
        """Evaluate on the given loaders, or else the trainer's, and return `{"<label>/<metric>": value}`.

        Raises:
            ArgumentError: (a ValueError) if there is no loader or no loss.
            ClosedEngineError: (a RuntimeError) if the trainer is closed.
        """
        self._check_open()
        loaders = self.state.evaluators if dataloader is None else as_loaders(dataloader)
        if not loaders:
            raise ArgumentError("there is nothing to evaluate on: give eval_dataloader to the Trainer or to eval()")
        check_objective(self.state.objective, self.state.model)
        session = self._session
        if session.status.phase not in (Phase.IDLE, Phase.RESUMED):  # a fit, which a signal ends at its own batch
            return run_eval(session, loaders)
        with signals_noted(self.state, session.together):
            return run_eval(session, loaders, session.is_signalled)

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last and the best value of each evaluation result, with the step and the epoch of the best."""
        return self.state.results.to_json()

    def predict(self, dataloader: Iterable[Any]) -> Generator[Any, None, None]:
        """Return an iterator over the model's outputs for each batch, computed one by one as in an evaluation.

        Batches are `(inputs, ...)`, `[inputs]` or inputs; a model with its own loss gets them whole. Until the iterator
        is exhausted or closed, the model is in eval mode, and `fit`, `eval` and `predict` raise an EngineError.

        Raises:
            ArgumentTypeError: (a TypeError) for what gives no batches.
            ClosedEngineError: (a RuntimeError) if the trainer is closed.
            EngineError: if a fit, an evaluation or another prediction is running.
        """
        self._check_open()
        return predictions(self._session, dataloader)

    def close(self) -> None:
        """Close callbacks and loggers, each once, and release the loader; safe to call twice."""
        self._closed = True
        self.engine.close()
        if (session := getattr(self, "_session", None)) is not None:
            session.batches = None  # ends the loader's worker processes

    __reduce_ex__ = refuse_to_copy

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            ended_together(error)
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedEngineError("the trainer is closed; make a new one")
        if self.state.ranks.has_ended():
            raise ClosedEngineError("an exception has ended this run on all ranks; make a new Trainer")

    def _end_of_fit(self, duration: Time | str | None) -> Time | None:
        """Return where this `fit` ends, None if training is there already; without a horizon this becomes it."""
        state = self.state
        horizon = None if state.max_duration is None else Time(state.max_duration)
        if duration is None:
            if horizon is None:
                raise ArgumentError("how long? give Trainer(max_duration='10ep') or fit('10ep')")
            status, done = self._session.status, f"training has reached its max_duration of {horizon}"
            is_resumed = status.phase is Phase.RESUMED
            if is_resumed and status.has_ended and state.loop.stop_requested:
                done = "the run was stopped" + (f": {state.loop.stop_reason}" if state.loop.stop_reason else "")
            elif state.timestamp.get(horizon.unit) < horizon or (is_resumed and not status.has_ended) or status.owed:
                return horizon
            warn(f"fit() has nothing to do: {done}; fit('1{horizon.unit}') continues it", DurationWarning)
            return None
        length = interval_in_run(state, "fit: the duration", duration).length
        end = state.timestamp.get(length.unit) + length
        if horizon is None or state.max_duration is self._own_horizon:
            state.max_duration = self._own_horizon = end
        elif end > horizon if end.unit is horizon.unit else state.timestamp.get(horizon.unit) >= horizon:
            kept = f"; the schedulers keep their length of {horizon}" if state.schedulers else ""
            past = f"goes past the max_duration of {horizon}, so what algorithms schedule now ends at {end}{kept}"
            warn(f"fit('{length}') {past}", DurationWarning)
            state.max_duration = end
        return end


def describe(trainer: Trainer) -> dict[str, Any]:
    """Return what a run is, as data: settings, versions, algorithms and their order, as checkpoints keep it."""
    return describe_run(trainer._session)  # noqa: SLF001  no method, as users have no need of it


def _initialise(session: Session, optimizers: Sequence[Any], schedulers: Sequence[Any]) -> None:
    """Run INIT on the given model, then move and spread it, and make what depends on its parameters."""
    state: Any = session.state
    before = _parameters(state.model)
    given = [optimizer for optimizer in optimizers if isinstance(optimizer, torch.optim.Optimizer)]
    check_trained(given, before.values())
    check_of_loss(given, state)
    state.optimizers = list(given)  # surgery updates them, or is refused before it starts
    check_alike(session, settings_of)
    seed_generators(state.seed)  # the same on all ranks: so are the draws of INIT
    with peeking(session):
        session.seam.init()
    if optimizers and list(map(id, state.optimizers)) != list(map(id, given)):
        raise ArgumentError("optimizers were given to the Trainer, and an algorithm set state.optimizers at INIT")
    after = _parameters(state.model)
    follow_parameters(given, before, after)  # to what was put in by hand; `replace_modules` did so itself
    check_trained(given, after.values())
    for part in (state.model, state.loss_fn, state.objective.eval_loss_fn, *state.metric_objects.values()):
        if callable(getattr(part, "to", None)):
            part.to(session.device)
    check_alike(session, model_of)
    moved = _parameters(state.model)
    finds_unused = session.engine.find_unused_parameters
    session.wrapping = spread_model(
        state.model, session.parallel, state.ranks, session.device, finds_unused=finds_unused
    )
    _follow_sharded(given, moved, _parameters(state.model))
    state.optimizers = make_optimizers(optimizers, state.model) or list(state.optimizers)
    session.schedulers = make_schedulers(schedulers, state)
    state.schedulers = [schedule.scheduler for schedule in session.schedulers]
    check_alike(session, training_of)
    session.given_modes, session.given_shapes = modes_of(state), shapes_of(state.model)
    session.engine.logger.log_hyperparameters(hyperparameters_of(session))
    if state.rank:
        seed_generators(state.derive_seed("rank"))


def _follow_sharded(optimizers: Sequence[Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Give optimizers the sharded parameters, and of what they keep for the whole ones the same part."""
    for optimizer in optimizers:
        for name, parameter in before.items():
            if after[name] is not parameter and parameter in optimizer.state:
                optimizer.state[after[name]] = shard_state_like(optimizer.state[parameter], after[name])
    follow_parameters(optimizers, before, after)


def _parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))
