"""How the conformance kit trains with an algorithm: a short run on fresh parts, and what came out of it."""

from __future__ import annotations

import copy
import importlib.util
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from engine_core.algorithm import algorithm_metadata
from engine_core.batch import map_batch
from engine_core.errors import EngineError, IdleAlgorithmWarning
from engine_core.event import Event
from engine_core.passes import members_of, referred
from engine_core.randomness import preserve_generators
from engine_core.state import State
from engine_core.trainer import Trainer

from .audit import fingerprint_state
from .kit import AlgorithmKit, Fault
from .recording import RecordingDestination

SEED = 1205


class Loader(list[Any]):
    """Gives copies of the same batches in each epoch, as a DataLoader makes new tensors."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield map_batch(batch, copy.deepcopy)


@dataclass(frozen=True)
class Outcome:
    """What a run produced; `applied` is how often each algorithm ran, as in `{"Halve/AFTER_LOSS": 8}`."""

    weights: dict[str, Any]
    optimizers: list[Any]
    algorithms: list[Any]
    metrics: dict[str, float]
    applied: Counter[str]

    def is_finite(self) -> bool:
        """Are all weights finite?"""
        return all(bool(torch.isfinite(w).all()) for w in self.weights.values() if torch.is_tensor(w))


@dataclass(frozen=True)
class Attempt:
    """A run that may have failed: its outcome or the error; `refused` if an algorithm refused it in time."""

    outcome: Outcome | None = None
    refused: bool = False
    error: BaseException | None = None


def seed_parts(seed: int) -> None:
    """Seed the global generators, so that parts are the same each time they are made."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a millisecond
    random.seed(seed)
    if importlib.util.find_spec("numpy") is not None:
        importlib.import_module("numpy.random").seed(seed)


def data_of(kit: AlgorithmKit) -> Loader:
    """Return a loader over the kit's batches."""
    seed_parts(SEED)
    return Loader(list(kit.make_batches()))


def by_index(batches: Sequence[Any], algorithms: Sequence[Any]) -> DataLoader[Any]:
    """Return a loader that reads the rows of batches by index: tuples of tensors, as large as the first.

    What the `index_key` of an algorithm finds are the places of the rows, whichever rows a check has left.
    """
    columns = [torch.cat(column) for column in zip(*batches, strict=True)]
    for key in [algorithm.index_key for algorithm in algorithms if hasattr(algorithm, "index_key")]:
        columns[key] = torch.arange(len(columns[key]))
    rows = TensorDataset(*columns)
    return DataLoader(rows, len(batches[0][0]), collate_fn=lambda found: tuple(default_collate(found)))


def make_trainer(kit: AlgorithmKit, algorithms: Sequence[Any], **settings: Any) -> Trainer:
    """Return a trainer of two epochs with fresh parts and what the algorithms require.

    The settings override; `data`, a loader, and `model` stand in for the kit's.
    """
    data = settings.pop("data", None) or data_of(kit)
    if any("epoch_order" in algorithm_metadata(algorithm).needs for algorithm in algorithms):
        data = by_index(data, algorithms)
    seed_parts(SEED)
    own_model = kit.make_model()
    model = settings.pop("model", own_model)
    given: dict[str, Any] = {
        "max_duration": "2ep",
        "loss_fn": kit.make_loss(),
        "optimizers": kit.make_optimizers,
        "eval_dataloader": Loader(list(data)[:2]),
        "device": "cpu",
        "seed": SEED,
        "progress_bar": False,
        **settings,
    }
    return Trainer(model, data, algorithms=[*algorithms, *required_by(kit, algorithms)], **given)


@contextmanager
def calm() -> Iterator[None]:
    """Use one thread, keep warnings from raising, and restore the global generators at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with preserve_generators(torch.device("cpu")), warnings.catch_warnings():
            filters: Any = warnings.filters
            filters[:] = [("default" if how == "error" else how, *rest) for how, *rest in filters]
            warnings.simplefilter("ignore", IdleAlgorithmWarning)  # how long a check trains says nothing about it
            warnings.filterwarnings("ignore", "BatchNorm .* each microbatch", UserWarning)  # the default model has some
            yield
    finally:
        torch.set_num_threads(threads)


def trained(kit: AlgorithmKit, algorithms: Sequence[Any], **settings: Any) -> Trainer:
    """Train with the algorithms and return the trainer, closed."""
    with make_trainer(kit, algorithms, **settings) as trainer:
        trainer.fit()
    return trainer


def train(kit: AlgorithmKit, algorithms: Sequence[Any], **settings: Any) -> Outcome:
    """Train with the algorithms and return what came out."""
    recorder = RecordingDestination()
    return outcome_of(trained(kit, algorithms, loggers=[recorder], **settings), recorder)


def outcome_of(trainer: Trainer, recorder: RecordingDestination | None = None) -> Outcome:
    """Return copies of what a trainer holds."""
    return Outcome(
        weights=weights_of(trainer.state),
        optimizers=[copy.deepcopy(optimizer.state_dict()) for optimizer in trainer.state.optimizers],
        algorithms=[copied(state_of(algorithm)) for algorithm in trainer.state.algorithms],
        metrics=dict(trainer.state.metrics),
        applied=Counter(key for traces in (recorder.traces if recorder else ()) for key in traces),
    )


def weights_of(state: State) -> dict[str, Any]:
    """Return copies of the parameters and buffers of the model."""
    model: Any = state.model
    return {name: w.detach().clone() if torch.is_tensor(w) else copied(w) for name, w in model.state_dict().items()}


def differing(one: Outcome, other: Outcome, parts: Sequence[str]) -> str | None:
    """Return where these parts of two outcomes differ in any bit, or None."""
    return next((d for part in parts if (d := difference(getattr(one, part), getattr(other, part), part))), None)


def leaves_of(state: State) -> dict[tuple[str, str], str]:
    """Return the digests of what algorithms may write, by field and leaf."""
    return {(field, leaf): d for field, digests in fingerprint_state(state).items() for leaf, d in digests.items()}


def state_of(algorithm: Any) -> Any:
    """Return the `state_dict` of an algorithm, `{}` if it has none."""
    return algorithm.state_dict() if hasattr(algorithm, "state_dict") else {}


def copied(state: Any) -> Any:
    """Return a copy, or the object itself if it can't be copied, which one check alone reports."""
    try:
        return copy.deepcopy(state)
    except Exception:  # noqa: BLE001
        return state


def events_of(algorithm: Any) -> tuple[Event, ...]:
    """Return the events at which the engine asks an algorithm, in their order."""
    listed = algorithm_metadata(algorithm).events
    return tuple(event for event in Event if listed is None or event in listed)


def pairs_of(algorithm: Any) -> list[tuple[Event, Event]]:
    """Return the pairs of events of which metadata lists both halves."""
    listed = algorithm_metadata(algorithm).events or ()
    return [(e, e.partner) for e in Event if e in listed and e.is_before_event and e.partner in listed]


def required_by(kit: AlgorithmKit, algorithms: Sequence[Any]) -> list[Any]:
    """Return those of the kit's others that the algorithms' metadata requires."""
    present = members_of(algorithms)
    missing = {name for m in present for name in m.metadata.requires if not referred(name, None, present)}
    others = members_of(kit.make_others()) if missing else []
    wanted = [other for reference in missing for other in referred(reference, None, others)[:1]]
    return [other.algorithm for other in others if other in wanted]


def where_raised(error: BaseException) -> str | None:
    """Return `match`, `apply` or `validate`, whichever raised, and the event, as in `apply at INIT`; None: neither."""
    for note in getattr(error, "__notes__", ()):
        if note.startswith("raised by ") and " of algorithm " in note:
            return f"{note.removeprefix('raised by ').partition(' ')[0]} at {note.rpartition(' at ')[2]}"
    return None


def attempt(kit: AlgorithmKit, algorithms: Sequence[Any], **settings: Any) -> Attempt:
    """Train as `train` does, and distinguish a refusal in time from any other exception."""
    recorder = RecordingDestination()
    try:
        trainer = make_trainer(kit, algorithms, loggers=[recorder], **settings)
    except Exception as error:  # noqa: BLE001  what it is decides
        return Attempt(refused=isinstance(error, (EngineError, ValueError, TypeError)), error=error)
    try:
        with trainer:
            trainer.fit()
    except Exception as error:  # noqa: BLE001
        in_time = (where_raised(error) or "").startswith("validate")
        return Attempt(refused=in_time and isinstance(error, (EngineError, ValueError, TypeError)), error=error)
    return Attempt(outcome_of(trainer, recorder))


def can_split(kit: AlgorithmKit, size: int) -> bool:
    """Do the kit's parts work in microbatches of this size, without the algorithm?"""
    return attempt(kit, [], microbatch_size=size, max_duration="1ba").error is None


def described(error: BaseException | None) -> str:
    """Return what was raised, and if known by which method of the algorithm at which event."""
    if error is None:
        return "nothing was raised"
    where = where_raised(error)
    message = " ".join(str(error).split())
    short = f"{message[:160]}..." if len(message) > 160 else message
    return f"{type(error).__name__} ({short}) was raised{f' by {where}' if where else ''}"


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return where two trees of tensors and values differ in any bit, or None; seconds, under keys in `_s`, may."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return None if _same_bits(one, other) else f"{path or 'the tensor'} differs{_by(one, other)}"
    if isinstance(one, dict) and isinstance(other, dict):
        if list(map(repr, one)) != list(map(repr, other)):
            return f"{path or 'the mapping'} has different keys: {list(one)} and {list(other)}"
        alike = [key for key in one if not (str(key).endswith("_s") and type(one[key]) is type(other[key]) is float)]
        pairs = [(one[key], other[key], f"{path}.{key}" if path else str(key)) for key in alike]
    elif isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        pairs = [(a, b, f"{path}[{place}]") for place, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        opaque = "__eq__" not in {name for cls in type(one).__mro__[:-1] for name in vars(cls)}  # can't be compared
        same = type(one) is type(other) and (opaque or one == other or (one != one and other != other))  # noqa: PLR0124
        return None if same else f"{path or 'the value'} is {one!r} and {other!r}"
    return next((found for a, b, p in pairs if (found := difference(a, b, p))), None)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Are two tensors equal, NaN to NaN?"""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124


def _by(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.shape != other.shape or not one.is_floating_point():
        return ""
    return f" by up to {(one - other).abs().max().item():.2g}"


def refusal_of(kit: AlgorithmKit) -> Fault | None:
    """Train a batch; the fault says what the algorithm refuses. None if it works, or if the parts fail without it."""
    run = attempt(kit, [kit.make_algorithm()], max_duration="1ba")
    if not run.refused or attempt(kit, [], max_duration="1ba").error is not None:
        return None
    return Fault(
        f"it refuses the kit's own parts: {described(run.error)}; override make_model, make_batches, make_loss, "
        "make_optimizers or make_others so that they return what it accepts",
        run.error,
    )
