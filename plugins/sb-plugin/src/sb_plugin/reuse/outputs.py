"""The outputs of `nn.Linear` in a scoring forward, used again for the kept rows. Independent of the engine and loss."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from .known import known_linear
from .recorded import Call, fits, have_same_bits

__all__ = ["LinearOutputs"]

_ENOUGH = 4096
"""After how many equal values a kernel is assumed to round alike: a few may be equal by chance."""


class LinearOutputs:
    """The outputs that each exact `nn.Linear` of a model gave in one scoring forward.

    `recording` around the scoring forward keeps them, `keep` says which rows the step trains on, and from `replay` to
    `end` the layers return those rows instead of computing them. Outputs and gradients have the same bits as without
    reuse: each layer's input is compared with the one that was scored, and the outputs themselves are compared, at each
    position of a row, until enough were equal for these numbers of rows. What differs is recomputed. One object serves
    all steps of a run, one after another.

    Weights written through `.data` between scoring and training are detected only by a sum over one word in 16: a
    change of few values, or of their order, is missed.

    Example:
        >>> net, x, rows, outputs = nn.Linear(8, 4), torch.randn(16, 8), torch.arange(8), LinearOutputs()
        >>> with torch.no_grad(), outputs.recording(net, 16):
        ...     scores = net(x).sum(1)
        >>> outputs.keep(rows)
        >>> outputs.replay()
        >>> net(x[rows]).sum().backward()
        >>> outputs.end()
        >>> outputs.reused, outputs.fault
        (1, None)
    """

    def __init__(self) -> None:
        self.fault: str | None = None
        """Why the last training forward did not repeat the scoring one; the step is exact all the same."""
        self.rounding: str | None = None
        """Which layer of the last step rounds by the number of rows, or by their position; it is recomputed."""
        self.reused = 0
        """How many outputs of the last step were reused, or computed and found equal."""
        self._alike: Counter[tuple[Any, ...]] = Counter()
        self._uneven: set[tuple[Any, ...]] = set()
        self._model: nn.Module | None = None
        self._calls: dict[nn.Linear, deque[Call | None]] = {}
        self._swapped: list[nn.Linear] = []
        self._n = 0
        self._rows = torch.empty(0, dtype=torch.long)

    @contextmanager
    def recording(self, model: nn.Module, n: int) -> Iterator[None]:
        """Record the output of each `nn.Linear` that gets inputs of `n` rows, in the order of its calls."""
        try:
            self._begin(model, n)
            yield
        except BaseException:
            self.end()
            raise
        self._finish()

    def _begin(self, model: nn.Module, n: int) -> None:
        self.end()
        self.fault, self.rounding, self.reused = None, None, 0
        self._model, self._n = model, n
        self._calls = {module: deque() for module in model.modules() if type(module) is nn.Linear}
        self._swap(self._record)

    def _finish(self) -> None:
        self._put_back()
        if not any(call for calls in self._calls.values() for call in calls):
            self.fault = (
                f"no nn.Linear of more than one output feature gets contiguous inputs of {self._n} rows, in the "
                "precision of its weights"
            )
            self.end()

    def keep(self, rows: torch.Tensor) -> None:
        """Train the step on these rows (k,) of the scored ones."""
        self._rows = rows

    def replay(self) -> None:
        """Make the layers return the kept rows of their recorded outputs, call by call."""
        self._swap(self._replay)

    def end(self) -> None:
        """Restore the model, and free what was recorded."""
        self._put_back()
        self._calls, self._model = {}, None

    def _swap(self, forward: Callable[[int, nn.Linear, torch.Tensor], torch.Tensor]) -> None:
        for place, layer in enumerate(self._calls):
            if "forward" not in layer.__dict__:
                self._swapped.append(layer)
                layer.__dict__["forward"] = _Swapped(partial(forward, place, layer), layer)

    def _put_back(self) -> None:
        for layer in self._swapped:
            layer.__dict__.pop("forward", None)
        self._swapped = []

    def _record(self, _: int, layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as nn.Linear does
        output = nn.Linear.forward(layer, input)
        is_one = fits(layer, input) and input.shape[0] == self._n and not output.is_inference()
        self._calls[layer].append(Call.of(layer, input, output) if is_one else None)
        return output

    def _replay(self, place: int, layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as above
        calls = self._calls[layer]
        call = calls.popleft() if calls else None
        if call is None or self.fault is not None or not (fits(layer, input) and call.has_form(input, self._rows)):
            return nn.Linear.forward(layer, input)
        key = (place, len(calls), self._n, input.shape, input.dtype, input.device, torch.get_num_threads())
        if key in self._uneven:
            self._note_uneven(layer)
            return nn.Linear.forward(layer, input)
        self.fault = self._why_changed(call, layer)
        if self.fault is not None:
            return nn.Linear.forward(layer, input)
        if not call.repeats(input, self._rows):
            if self.rounding is None:  # else it may follow from the layer that rounds differently
                self.fault = self._other_inputs(layer)
            return nn.Linear.forward(layer, input)
        if self._alike[key] < _ENOUGH:
            return self._compared(key, call, layer, input)
        self.reused += 1
        return known_linear(input, layer, call.output, self._rows)

    def _why_changed(self, call: Call, layer: nn.Linear) -> str | None:
        """Return why what was recorded is no longer what this layer would give, or None."""
        if call.was_changed():
            return (
                f"the input or the output of layer {self._name(layer)} was changed in place after scoring "
                "computed it: write nn.ReLU(inplace=True) and the like without inplace"
            )
        if not call.has_weights(layer):
            return f"the weights of layer {self._name(layer)} were changed between scoring and training"
        return None

    def _other_inputs(self, layer: nn.Linear) -> str:
        return (
            f"layer {self._name(layer)} gets other inputs for {len(self._rows)} rows than for the same rows among "
            f"{self._n}: up to there, the result for a row must depend on it alone, not on other rows, not on chance "
            "as with F.dropout, and not on its position, as the last bits of F.silu do at odd widths"
        )

    def _compared(self, key: tuple[Any, ...], call: Call, layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the output, and note whether what was recorded has the same bits."""
        output = nn.Linear.forward(layer, inputs)
        with torch.no_grad():
            is_alike = have_same_bits(output, call.output.index_select(0, self._rows))
            is_alike = is_alike and not call.rounds_by_place(layer, len(self._rows))
        if is_alike:
            self._alike[key] += output.numel()
            self.reused += 1
        else:
            self._uneven.add(key)
            self._note_uneven(layer)
        return output

    def _note_uneven(self, layer: nn.Linear) -> None:
        if self.rounding is None:
            k = len(self._rows)
            self.rounding = f"layer {self._name(layer)} gives other bits for {k} rows than for {self._n}"

    def _name(self, layer: nn.Linear) -> str:
        assert self._model is not None
        return repr(next(name for name, module in self._model.named_modules() if module is layer))


class _Swapped:
    """A forward that replaces a layer's own; copies of the layer compute as nn.Linear does."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor], layer: nn.Linear) -> None:
        self._forward, self._layer = forward, layer

    def __call__(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as nn.Linear does
        return self._forward(input)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (nn.Linear.forward, self._layer)
