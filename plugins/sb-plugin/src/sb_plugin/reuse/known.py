"""A matrix product whose result is already known, for autograd. Does not check that the result is right."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["known_linear"]


def known_linear(inputs: torch.Tensor, layer: nn.Linear, output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return what F.linear gives for these inputs: `rows` of a known output."""
    flat, weight_t = inputs.flatten(0, -2), layer.weight.t()
    known: torch.Tensor = _KnownProduct.apply(layer.bias, flat, weight_t, output, rows)  # type: ignore[no-untyped-call]
    return known


class _KnownProduct(torch.autograd.Function):
    """`addmm`, or `mm` without bias, with a known result, in the shape that the layer gives it.

    It saves what torch saves, in the same form and only if a gradient needs it, and computes the same products in
    backward (derivatives.yaml, `mm_mat1_grad` and `mm_mat2_grad`), so that gradients have the same bits.
    """

    @staticmethod
    def forward(
        ctx: Any,
        bias: torch.Tensor | None,  # noqa: ARG004  only part of the graph
        mat1: torch.Tensor,
        mat2: torch.Tensor,
        output: torch.Tensor,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        _, needs1, needs2, *_ = ctx.needs_input_grad
        ctx.save_for_backward(mat1 if needs2 else None, mat2 if needs1 else None)
        ctx.transposed = _is_transposed(mat1), _is_transposed(mat2)
        return output.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = grads[0].reshape(-1, grads[0].shape[-1])
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
