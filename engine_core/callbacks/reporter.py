"""What a run is and how its evaluations went: as events that JSON can hold, and in words. Writes nothing itself."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algorithm import unique_names
from ..callback import Callback
from ..files import finite
from ..logger import Logger
from ..messages import aligned, escaped, join_words, plural
from ..ranks import share
from ..registry import Origin, Registry, display_name
from ..state import State, epochs_done, length_of, train_length
from ..time import Time, TimeUnit

if TYPE_CHECKING:
    from ..objective import LossMeter

_KINDS = {"finished": "end", "paused": "pause", "interrupted": "pause", "failed": "fail"}


class RunReporter(Callback):
    """Follows a run, and emits events: mappings with `kind`, `step`, `epoch` and `seconds`.

    The kinds are `start` or, for a run that continues from a checkpoint, `resume`, with what `header_of` returns; and
    `evaluation`, with `train_loss`, `metrics`, `best` and `improved`, the names in `metrics` whose value is better than
    all before. There is one evaluation when the last of the run's loaders has ended, and one for each other loader that
    is given to `eval`. `train_loss` is the mean of the training loss since the one before, weighted as
    `train/loss_epoch` is; it is missing if nothing was trained. `end` emits the last event: `end`, `pause` or `fail`.
    Of several processes the first one reports.

    Args:
        write: receives each event as a line of JSON, without its end.

    Example:
        >>> lines = []
        >>> RunReporter(lines.append).end("failed", exit_code=1)
        >>> lines[0][:38]
        '{"kind": "fail", "step": 0, "epoch": 0'
    """

    every_rank = False

    def __init__(self, write: Callable[[str], object] = lambda _: None) -> None:
        self._write = write
        self._last: dict[str, Any] | None = None
        self._results: dict[str, Any] = {}
        self._started_s: float | None = None
        self._earlier_s = 0.0
        self.is_fitting = False

    @cached_property
    def loss(self) -> LossMeter:
        """The losses since the last evaluation."""
        from ..objective import LossMeter  # noqa: PLC0415  it needs torch, and a run that never began has no loss

        return LossMeter()

    def emit(self, event: dict[str, Any]) -> None:
        """Hand on an event."""
        self._write(as_line(event))

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run."""
        self._started_s, self._earlier_s, self.is_fitting = None, 0.0, False
        self.__dict__.pop("loss", None)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Start the clock and report what the run is, once."""
        self.is_fitting = True
        if self._started_s is None:
            self._started_s = time.perf_counter()
            kind = "start" if state.loaded_from is None else "resume"
            self.emit({**self.event(kind, state), **header_of(state)})

    def batch_end(self, state: State, logger: Logger) -> None:
        """Take the loss of the batch."""
        self.loss.take(state.loss, state.count_of_loss())

    def eval_end(self, state: State, logger: Logger) -> None:
        """Report how the evaluation went, if this was its last loader."""
        label, metrics, evaluators = state.dataloader_label, state.metrics, state.evaluators
        if not self.is_fitting and evaluators.get(str(label)) is not state.dataloader:  # given to eval()
            metrics = {name: value for name, value in metrics.items() if name.startswith(f"{label}/")}
        elif label not in [*evaluators][-1:]:
            return
        if not metrics:
            return
        self.loss.flush()
        trained = {} if self.loss.mean is None else {"train_loss": self.loss.mean}
        self.loss.restart()
        results = state.results
        best = {name: results.best[name]._asdict() for name in metrics if name in results.best}
        improved = [name for name in metrics if name in results.improved]
        told = {**trained, "metrics": dict(metrics), "best": best, "improved": improved}
        self.emit({**self.event("evaluation", state), **told})

    def fit_end(self, state: State, logger: Logger) -> None:
        """Note that evaluations are no longer those of a `fit`."""
        self.is_fitting = False

    def close(self, state: State, logger: Logger) -> None:
        """Remember where the run ended, and its results."""
        self._last, self._results = self.event("", state), state.results.to_json()

    def end(self, status: str, exit_code: int | None, *, folder: Path | None = None, **left: Path | str | None) -> None:
        """Report how the run ended, with the latest results; call it once, after the engine is closed.

        Args:
            status: `finished`, `paused`, `interrupted` or `failed`.
            exit_code: of the command; None: there is none.
            left: `model`, `average` and `checkpoint`, what was saved, and `resume`, the command that resumes the run;
                None, or left out, for what there is not.
        """
        last = {**(self._last or self.event("", State())), "kind": _KINDS[status]}
        told = {"folder": folder, **dict.fromkeys(("model", "average", "checkpoint", "resume")), **left}
        paths = {name: None if value is None else str(value) for name, value in told.items()}
        self.emit({**last, "status": status, "exit_code": exit_code, **paths, "results": self._results})

    def state_dict(self) -> dict[str, Any]:
        """Return the time so far, and the losses since the last evaluation."""
        self.loss.flush()
        loss = self.loss
        return {"seconds": self.seconds, "loss_total": loss.total, "loss_weight": loss.count, "is_sum": loss.is_sum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._earlier_s = float(state["seconds"])
        if self._started_s is not None:
            self._started_s = time.perf_counter()
        self.loss.total, self.loss.count = float(state["loss_total"]), float(state["loss_weight"])
        self.loss.is_sum = state.get("is_sum") is True

    @property
    def seconds(self) -> float:
        """Return the seconds since the first FIT_START, without the time between attempts."""
        return self._earlier_s + (0.0 if self._started_s is None else time.perf_counter() - self._started_s)

    def event(self, kind: str, state: State) -> dict[str, Any]:
        """Return what each event begins with."""
        now = state.timestamp
        return {"kind": kind, "step": now.batch, "epoch": epochs_done(state), "seconds": round(self.seconds, 3)}


def header_of(state: State) -> dict[str, Any]:
    """Return what a run is; None stands for what is not known.

    Example:
        >>> header_of(State(seed=3))["seed"]
        3
    """
    registry, names = Registry.scan(), unique_names(state.algorithms)
    algorithms = []
    for name, algorithm in zip(names, state.algorithms, strict=True):
        distribution, version = registry.origin_of(algorithm) or (None, None)
        algorithms.append({"algorithm": name, "distribution": distribution, "version": version})
    epochs, steps = totals_of(state)
    length = None if state.max_duration is None else str(state.max_duration)
    # Not the class that torch derives from a model's when it shards the model.
    kinds = (kind for kind in type(state.model).__mro__ if not kind.__module__.startswith("torch.distributed."))
    return {
        "model": None if state.model is None else next(kinds).__name__,
        "parameters": _parameters_of(state.model),
        "device": None if state.device is None else str(state.device),
        "precision": state.precision,
        "ranks": _dealt(state),
        "data": _size_of(state.train_dataloader),
        "eval": {label: _size_of(loader) for label, loader in state.evaluators.items()},
        "algorithms": algorithms,
        "optimizer": [
            {"name": type(each).__name__, "lr": [float(group["lr"]) for group in each.param_groups], **_taken(each)}
            for each in state.optimizers
        ],
        "duration": {"max_duration": length, "epochs": epochs, "steps": steps},
        "seed": state.seed,
        "folder": None if state.folder is None else str(state.folder),
    }


def _taken(optimizer: Any) -> dict[str, Any]:
    """Return by which key of `by_name` an optimizer was made, and how many parameters it has."""
    key, count = vars(optimizer).get("taken_by"), sum(len(group["params"]) for group in optimizer.param_groups)
    return {} if key is None else {"by_name": key, "parameters": count}


def totals_of(state: State) -> tuple[int | None, int | None]:
    """Return how many epochs and steps the whole training has, as far as that is known; a begun epoch counts.

    Example:
        >>> totals_of(State(max_duration="10ba", train_dataloader=[1, 2, 3]))
        (4, 10)
    """
    length = train_length(state)
    end = None if state.max_duration is None else Time(state.max_duration)
    if end is None or end.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
        return None, None
    value = int(end)
    if end.unit is TimeUnit.EPOCH:
        return value, None if length is None else value * length
    return math.ceil(value / length) if length else None, value


def _parameters_of(model: Any) -> dict[str, int] | None:
    if model is None:
        return None
    try:
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    except ValueError:  # a lazy module has no size before its first batch
        return None
    return {"trainable": sum(size for size, is_trained in sizes if is_trained), "all": sum(size for size, _ in sizes)}


def _dealt(state: State) -> dict[str, Any] | None:
    """Return how many ranks there are, how the run is spread, and each one's rows of a whole batch, if it has several.

    The rows are not known without reading a batch if the loader does not say its batch size, or is a rank's own.
    """
    ranks, rows = state.ranks, getattr(state.train_dataloader, "batch_size", None)
    if ranks.size == 1:
        return None
    parts = None
    if type(rows) is int and not ranks.is_local:
        parts = [stop - start for start, stop in (share(rows, rank, ranks.size) for rank in range(ranks.size))]
    return {"number": ranks.size, "parallel": "fsdp" if ranks.is_sharded else "ddp", "rows": parts}


def _size_of(loader: Iterable[Any] | None) -> dict[str, int | None]:
    """Return samples and batches of an epoch; a sampler may give fewer or more samples than the dataset has."""
    batches, size = length_of(loader), getattr(loader, "batch_size", None)
    sources = (getattr(loader, "sampler", None), getattr(loader, "dataset", None))
    samples = next((length for source in sources if (length := length_of(source)) is not None), None)
    if samples is not None and batches is not None and getattr(loader, "drop_last", False) and size:
        samples = batches * size
    return {"samples": samples, "batches": batches}


def as_line(event: Mapping[str, Any]) -> str:
    """Return an event as JSON in one line; a number that is not finite, which JSON lacks, is null.

    Example:
        >>> as_line({"kind": "evaluation", "metrics": {"eval/loss": float("nan")}})
        '{"kind": "evaluation", "metrics": {"eval/loss": null}}'
    """
    return json.dumps(finite(event), allow_nan=False)


def header_lines(header: Mapping[str, Any]) -> list[str]:
    """Return the lines of a `start` or a `resume`, see `RunReporter`; names are escaped, nothing is cut."""
    length, sizes = header["duration"], header["parameters"]
    resumed = f", resumed at step {header['step']:,}" if header.get("kind") == "resume" else ""
    values = {
        "model": _said(header["model"]),
        "parameters": "?" if sizes is None else f"{sizes['trainable']:,} trainable, {sizes['all']:,} in all",
        "device": _said(header["device"]),
        "precision": header["precision"],
        **({} if (ranks := header["ranks"]) is None else {"ranks": _ranks(ranks)}),
        "data": _size(header["data"]),
        **{f"eval {escaped(label)}": _size(size) for label, size in header["eval"].items()},
        "algorithms": ", ".join(map(_algorithm, header["algorithms"])) or "none",
        "optimizer": ", ".join(map(_optimizer, header["optimizer"])) or "none",
        "duration": f"{plural(length['steps'], 'step', 'steps')} ({_said(length['max_duration'])}){resumed}",
        "seed": _said(header["seed"]),
        "folder": "none" if header["folder"] is None else escaped(header["folder"]),
    }
    return aligned(values.items())


def row(evaluation: Mapping[str, Any], position: str) -> str:
    """Return the line of an evaluation; a `*` marks a value that is better than all before.

    Example:
        >>> found = {"seconds": 12.3, "train_loss": 0.25, "metrics": {"eval/loss": 0.5}, "improved": ["eval/loss"]}
        >>> row(found, "epoch 1/10")
        'epoch 1/10  train/loss 0.25  eval/loss 0.5*  0:12'
    """
    pairs = [position]
    if "train_loss" in evaluation:
        pairs.append(f"train/loss {evaluation['train_loss']:.4g}")
    for name, value in evaluation["metrics"].items():
        pairs.append(f"{escaped(name)} {value:.4g}{'*' if name in evaluation['improved'] else ''}")
    return "  ".join([*pairs, clock(evaluation["seconds"])])


def clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours if there are any.

    Example:
        >>> clock(75), clock(3675)
        ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _said(value: object) -> str:
    return "?" if value is None else escaped(str(value))


def _ranks(ranks: Mapping[str, Any]) -> str:
    said, rows = f"{ranks['number']} ({ranks['parallel']})", ranks["rows"]
    if rows is None:
        return said
    same = len({*rows}) == 1
    each = f"{plural(rows[0], 'row', 'rows')} on each" if same else f"{join_words([*map(str, rows)], most=8)} rows"
    return f"{said}: global batch {sum(rows)} = {each}"


def _size(size: Mapping[str, int | None]) -> str:
    return f"{plural(size['samples'], 'sample', 'samples')}, {plural(size['batches'], 'batch', 'batches')}"


def _algorithm(entry: Mapping[str, Any]) -> str:
    return escaped(display_name(entry["algorithm"], Origin.of(entry["distribution"], entry["version"])))


def _optimizer(entry: Mapping[str, Any]) -> str:
    taken = (
        f"{entry['by_name']!r}, {plural(entry['parameters'], 'parameter', 'parameters')}, "
        if "by_name" in entry
        else ""
    )
    return f"{escaped(entry['name'])} ({escaped(taken)}lr {', '.join(f'{lr:g}' for lr in entry['lr'])})"
