"""The outputs of `nn.Linear` in a scoring forward, used again for the rows that are kept. Knows no engine, no loss."""
# ruff: noqa: SLF001  torch tells by `_version` alone whether a tensor was changed in place

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad

__all__ = ["LinearOutputs"]

_ENOUGH = 4096
"""After how many values that are alike a kernel is taken to round alike: few values may be so by chance."""

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class LinearOutputs:
    """The outputs that each exact `nn.Linear` of a model gave in one scoring forward.

    `recording` around the scoring forward keeps them, `keep` tells which rows the step trains on, and from `replay`
    to `end` the layers give those rows instead of computing them. Outputs and gradients have the bits that they have
    without: each layer's input is compared, by a checksum of each row, with the one that was scored, and the outputs
    are compared themselves until enough were alike for these numbers of rows. What differs is computed anew, and so
    is all that follows it. One object serves all steps of a run, one after the other.

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
        """Why the last training forward was no repetition of the scoring one; the step is exact all the same."""
        self.rounding: str | None = None
        """Which layer of the last step rounds by the number of rows; nothing is used again for these numbers."""
        self.reused = 0
        """How many outputs of the last step were used again, or computed and found alike."""
        self._alike: Counter[tuple[Any, ...]] = Counter()
        self._uneven: dict[tuple[int, int], str] = {}
        self._model: nn.Module | None = None
        self._calls: dict[nn.Linear, deque[_Call | None]] = {}
        self._swapped: list[nn.Linear] = []
        self._n = 0
        self._rows = torch.empty(0, dtype=torch.long)

    @contextmanager
    def recording(self, model: nn.Module, n: int) -> Iterator[None]:
        """Record the output of each `nn.Linear` that gets inputs of `n` rows, in the order of its calls."""
        self.end()
        self.fault, self.rounding, self.reused = None, None, 0
        self._model, self._n = model, n
        self._calls = {module: deque() for module in model.modules() if type(module) is nn.Linear}
        self._swap(self._record)
        try:
            yield
        except BaseException:
            self.end()
            raise
        self._put_back()
        if not any(call for calls in self._calls.values() for call in calls):
            self.fault = f"no nn.Linear gets contiguous inputs of {n} rows, in the precision of its weights"
            self.end()

    def keep(self, rows: torch.Tensor) -> None:
        """Let the step train on these rows (k,) of those that were scored."""
        self._rows = rows

    def replay(self) -> None:
        """Let the layers give the rows that are kept of what they gave before, call by call."""
        self.rounding = self._uneven.get((self._n, self._rows.shape[0]))
        if self.rounding is None:
            self._swap(self._replay)

    def end(self) -> None:
        """Leave the model as it was, and free what was recorded; may be called at any time."""
        self._put_back()
        self._calls, self._model = {}, None

    def _swap(self, forward: Callable[[int, nn.Linear, torch.Tensor], torch.Tensor]) -> None:
        for place, layer in enumerate(self._calls):
            if "forward" not in layer.__dict__:
                layer.__dict__["forward"] = partial(forward, place, layer)
                self._swapped.append(layer)

    def _put_back(self) -> None:
        for layer in self._swapped:
            layer.__dict__.pop("forward", None)
        self._swapped = []

    def _record(self, _: int, layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as nn.Linear does
        output = nn.Linear.forward(layer, input)
        fits = _fits(layer, input) and input.shape[0] == self._n and not output.is_inference()
        self._calls[layer].append(_Call.of(layer, input, output) if fits else None)
        return output

    def _replay(self, place: int, layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  as above
        calls = self._calls[layer]
        call = calls.popleft() if calls else None
        if call is None or self._is_over() or not (_fits(layer, input) and call.has_form(input, self._rows)):
            return nn.Linear.forward(layer, input)
        self.fault = self._why_other(call, layer, input)
        if self.fault is not None:
            return nn.Linear.forward(layer, input)
        key = (place, len(calls), self._n, input.shape)
        if self._alike[key] < _ENOUGH:
            return self._compared(key, call, layer, input)
        self.reused += 1
        return _linear(input, layer, call.output, self._rows)

    def _is_over(self) -> bool:
        return self.fault is not None or self.rounding is not None

    def _why_other(self, call: _Call, layer: nn.Linear, inputs: torch.Tensor) -> str | None:
        """Return why what was recorded is not what this layer would give, or None."""
        if call.output._version != call.version:
            return (
                f"the output of layer {self._name(layer)} was changed in place after scoring had computed it: "
                "write nn.ReLU(inplace=True) and the like without inplace"
            )
        if call.weights != _versions(layer):
            return f"the weights of layer {self._name(layer)} were changed between scoring and training"
        if not torch.equal(call.sums.index_select(0, self._rows), _row_sums(inputs)):
            return (
                f"layer {self._name(layer)} gets other inputs for {len(self._rows)} rows than for the same among "
                f"{self._n}: up to there, what becomes of a row has to depend on it alone, not on other rows, not on "
                "chance as with F.dropout, and not on its place, as the last bits of F.silu do at odd widths"
            )
        return None

    def _compared(self, key: tuple[Any, ...], call: _Call, layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        """Compute the output, and note whether what was recorded has the same bits."""
        output = nn.Linear.forward(layer, inputs)
        if torch.equal(_bits(output.detach()), _bits(call.output.index_select(0, self._rows))):
            self._alike[key] += output.numel()
            self.reused += 1
        else:
            k = len(self._rows)
            self.rounding = f"layer {self._name(layer)} gives other bits for {k} rows than for {self._n}"
            self._uneven[self._n, k] = self.rounding
        return output

    def _name(self, layer: nn.Linear) -> str:
        assert self._model is not None
        return repr(next(name for name, module in self._model.named_modules() if module is layer))


class _Call(NamedTuple):
    """One call of a layer in the scoring forward."""

    output: torch.Tensor
    version: int
    sums: torch.Tensor
    """A checksum of each row of the input (n,): all the bits count, and the input need not be kept."""
    form: tuple[torch.Size, torch.dtype]
    weights: list[tuple[int, int]]

    @classmethod
    def of(cls, layer: nn.Linear, inputs: torch.Tensor, output: torch.Tensor) -> _Call:
        detached, form = output.detach(), (inputs.shape[1:], inputs.dtype)
        return cls(detached, detached._version, _row_sums(inputs), form, _versions(layer))

    def has_form(self, inputs: torch.Tensor, rows: torch.Tensor) -> bool:
        """Are these inputs like those of this call, but of `rows`?"""
        there = inputs.device == rows.device == self.output.device
        return there and inputs.shape[:1] == rows.shape and (inputs.shape[1:], inputs.dtype) == self.form


def _fits(layer: nn.Linear, inputs: torch.Tensor) -> bool:
    """Is this a call of which `_linear` knows what torch would do with it?"""
    weight = layer.weight
    return (
        type(inputs) is torch.Tensor
        and type(weight) in (nn.Parameter, torch.Tensor)
        and inputs.dim() > 1
        and inputs.numel() > 0
        and inputs.is_floating_point()
        and inputs.is_contiguous()
        and not torch.is_autocast_enabled(inputs.device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _versions(layer: nn.Linear) -> list[tuple[int, int]]:
    tensors: list[torch.Tensor | None] = [layer.weight, layer.bias]
    return [(id(tensor), tensor._version) for tensor in tensors if tensor is not None]


def _row_sums(inputs: torch.Tensor) -> torch.Tensor:
    """Return a sum over the bits of each row (n,), in long words where these hold several values, as read fastest.

    Long words add up modulo 2**64, to which two bits at their top are nothing: those of double precision are halved,
    or a row and its negative would be alike.
    """
    rows = inputs.detach().flatten(1)
    size = rows.element_size()
    if size == 8 or rows.shape[1] * size % 8:
        return rows.view(_WORDS[min(size, 4)]).sum(1)
    if rows.storage_offset() * size % 8:
        rows = rows.clone()
    return rows.view(torch.int64).sum(1)


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(_WORDS[values.element_size()])


def _linear(inputs: torch.Tensor, layer: nn.Linear, output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return what F.linear gives for these inputs: those rows of an output that is known."""
    flat, weight_t = inputs.flatten(0, -2), layer.weight.t()
    taken: torch.Tensor = _KnownProduct.apply(layer.bias, flat, weight_t, output, rows)  # type: ignore[no-untyped-call]
    return taken if inputs.dim() == 2 else taken.view(*inputs.shape[:-1], taken.shape[-1])


class _KnownProduct(torch.autograd.Function):
    """`addmm`, or `mm` without bias, where the result is known.

    It saves what torch saves, in the same form and only where a gradient needs it, and computes the same products in
    backward (derivatives.yaml, `mm_mat1_grad` and `mm_mat2_grad`), so that gradients have the same bits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        bias: torch.Tensor | None,  # noqa: ARG004  takes part in the graph alone
        mat1: torch.Tensor,
        mat2: torch.Tensor,
        output: torch.Tensor,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        _, needs1, needs2, *_ = ctx.needs_input_grad
        ctx.save_for_backward(mat1 if needs2 else None, mat2 if needs1 else None)
        ctx.transposed = _is_transposed(mat1), _is_transposed(mat2)
        return output.index_select(0, rows).flatten(0, -2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        mat1, mat2 = ctx.saved_tensors
        transposed1, transposed2 = ctx.transposed
        of_bias = grad.sum(0) if ctx.needs_input_grad[0] else None
        of_mat1 = of_mat2 = None
        if mat2 is not None:
            of_mat1 = mat2.mm(grad.t()).t() if transposed1 else grad.mm(mat2.t())
        if mat1 is not None:
            of_mat2 = grad.t().mm(mat1).t() if transposed2 else mat1.t().mm(grad)
        return of_bias, of_mat1, of_mat2, None, None


def _is_transposed(matrix: torch.Tensor) -> bool:
    return matrix.stride() == (1, matrix.shape[0])
