"""Log what a model consists of: its modules, what they return, and their parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parameter import UninitializedParameter
from torch.utils.hooks import RemovableHandle

from engine_core import Callback, Logger, State
from engine_core.messages import escaped

__all__ = ["ModelSummary"]

_MOST_ROWS, _LONGEST, _DEEPEST = 2000, 100, 4
"""How many modules are listed, how long a name or a shape may be, and how deep an output, so that files stay small."""


class ModelSummary(Callback):
    """Logs what the model consists of, as `model_summary.txt` and `model_summary.json`, at the first batch of a run.

    Each module is listed once, with the shape of what it returned in the first forward pass of the first batch, how
    often it was called there, and the parameters in it and its children; those that several modules share count once.
    The pass is the run's own: nothing is computed, drawn or copied for it, and modules get no hooks of their own, which
    would turn torch's fast paths off. In a compiled model, nothing is known of shapes and calls.

    On several processes shapes are of the first one's rows; parameters are whole. Without loggers nothing is done.

    Example:
        >>> from engine_core_author import RecordingDestination
        >>> model, seen = torch.nn.Linear(3, 2), RecordingDestination()
        >>> state, logger, summary = State(model=model), Logger([seen]), ModelSummary()
        >>> summary.before_forward(state, logger)
        >>> state.outputs = model(torch.zeros(8, 3))
        >>> summary.after_forward(state, logger)
        >>> print(seen.files[0][2])
        module   type    output  calls  parameters  trainable
        (model)  Linear  [8, 2]      1           8          8
    """

    every_rank = False

    def __init__(self) -> None:
        self._is_done = False
        self._watch: _Watch | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run."""
        self._is_done = False

    def fit_start(self, state: State, logger: Logger) -> None:
        """Forget a forward pass that an exception ended."""
        self._end_watch()

    def before_forward(self, state: State, logger: Logger) -> None:
        """Watch the first forward pass."""
        if not self._is_done and logger.destinations and self._watch is None:
            self._watch = _Watch(state.model)

    def after_forward(self, state: State, logger: Logger) -> None:
        """Log what was seen."""
        if self._watch is None:
            return
        watch = self._end_watch()
        self._is_done = True
        rows = [_Row.of(path, module, watch) for path, module in _listed(state.model)]
        more = len(list(state.model.modules())) - len(rows)  # type: ignore[union-attr]  # it has run
        logger.log_file("model_summary.txt", _as_text(rows, more))
        modules = [asdict(row) for row in rows]
        content = {"schema": 1, "modules": modules, "left_out": more}
        logger.log_file("model_summary.json", json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    def close(self, state: State, logger: Logger) -> None:
        """Watch no longer."""
        self._end_watch()

    def state_dict(self) -> dict[str, Any]:
        """Return whether it is logged already."""
        return {"is_done": self._is_done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Log it once in a run, however often that is resumed."""
        self._is_done = bool(state.get("is_done"))

    def _end_watch(self) -> Any:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
        return watch


class _Watch:
    """Sees what the modules of a model return, by a hook for all modules, as one at a module can change what it does.

    Transformer layers compute in another way while a hook is at one of their modules. A model that is compiled is not
    watched: torch would compile the hook too.
    """

    def __init__(self, model: Any) -> None:
        self.shapes: dict[int, str] = {}
        self.calls: dict[int, int] = {}
        self._handle: RemovableHandle | None = None
        if not any(map(_is_compiled, model.modules())):
            self._handle = register_module_forward_hook(self._see)

    @property
    def sees_calls(self) -> bool:
        """Is it known which modules were called?"""
        return self._handle is not None

    def end(self) -> None:
        """Let torch forget the hook; may be called again."""
        if self._handle is not None:
            self._handle.remove()

    def _see(self, module: nn.Module, given: object, output: object) -> None:
        if torch.compiler.is_compiling():  # a part of a forward may be compiled
            return
        key = id(module)
        self.calls[key] = self.calls.get(key, 0) + 1
        if key not in self.shapes:
            self.shapes[key] = _cut(json.dumps(_shape(output), ensure_ascii=False))


@dataclass
class _Row:
    """One module; None stands for what is not known."""

    name: str
    type: str
    output: str | None
    calls: int | None
    parameters: int
    trainable: int
    uninitialized: bool

    @classmethod
    def of(cls, path: str, module: nn.Module, watch: _Watch) -> _Row:
        """Return what is known of a module after the forward pass."""
        made = [own for own in module.parameters() if not isinstance(own, UninitializedParameter)]
        return cls(
            _cut(path or "(model)"),
            _cut(type(module).__name__),
            watch.shapes.get(id(module)),
            watch.calls.get(id(module), 0) if watch.sees_calls else None,
            sum(own.numel() for own in made),
            sum(own.numel() for own in made if own.requires_grad),
            len(made) < len(list(module.parameters())),
        )


def _listed(model: Any) -> list[tuple[str, nn.Module]]:
    return list(islice(model.named_modules(), _MOST_ROWS))


def _is_compiled(module: nn.Module) -> bool:
    """Is it compiled in place, or the wrapper that torch.compile returns?"""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _shape(output: Any, depth: int = 0) -> Any:
    """Return the shapes of tensors in the form of the output; of anything else the type."""
    if isinstance(output, torch.Tensor) and not output.is_nested:
        return list(output.shape)
    if depth < _DEEPEST and isinstance(output, Mapping):
        return {str(key): _shape(output[key], depth + 1) for key in islice(output, _LONGEST)}
    if depth < _DEEPEST and isinstance(output, (list, tuple)):
        return [_shape(value, depth + 1) for value in output[:_LONGEST]]
    return type(output).__name__


def _cut(text: str) -> str:
    """Return text of a model's author for one line, at most so long that the files stay small."""
    shown = escaped(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 3]}..."


def _as_text(rows: list[_Row], more: int) -> str:
    """Return a table; children are to the right of their parents, under the last part of their names."""
    head = ("module", "type", "output", "calls", "parameters", "trainable")
    table = [head, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < 3 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in table
    ]
    return "\n".join([*lines, *([f"and {more:,} modules more"] if more else [])])


def _cells(row: _Row) -> tuple[str, ...]:
    depth, _, last = row.name.rpartition(".")
    place = "  " * (depth.count(".") + 1 if depth else 1) + last if row.name != "(model)" else row.name
    output = "?" if row.calls is None else "not called" if row.output is None else row.output
    mark = "+ uninitialized" if row.uninitialized else ""
    return (
        place,
        row.type,
        output,
        "?" if row.calls is None else f"{row.calls:,}",
        f"{row.parameters:,} {mark}".rstrip(),
        f"{row.trainable:,}",
    )
