r"""The stacked networks with every product left to ``torch.bmm``; Triton adds biases, applies the ELU and its slope.

Every hidden value passes through device memory once per product and once per elementwise kernel: more bytes than
:mod:`~fishnets.ops.stacked_mlp.fused_triton`, but nothing that depends on how a compiler lays out shared memory.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fishnets.ops.stacked_mlp.fused_triton import MAX_OUTPUTS, _elu, _pad_first, _pad_inputs, _pad_last, _slope

__all__ = ["stacked_mlp"]

BLOCK = 64


@triton.jit
def _bias_elu_kernel(
    z,  # (K, rows, H) bfloat16, replaced by elu(z + bias)
    bias,  # (K, H) float32
    rows,
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK
    unit = tl.arange(0, H)
    position = z + (row + tl.arange(0, BLOCK))[:, None] * H + unit[None, :]
    b = tl.load(bias + row // rows * H + unit)
    tl.store(position, _elu(tl.load(position).to(tl.float32) + b[None, :]).to(tl.bfloat16))


@triton.jit
def _slope_kernel(
    d,  # (K, rows, H) bfloat16, replaced by d times the slope at h
    h,  # (K, rows, H) bfloat16
    parts,  # (K, rows / BLOCK, H) float32: sums over the rows of a tile
    H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    unit = tl.arange(0, H)
    offset = (tile * BLOCK + tl.arange(0, BLOCK))[:, None] * H + unit[None, :]
    value = tl.load(d + offset).to(tl.float32) * _slope(tl.load(h + offset))
    tl.store(d + offset, value.to(tl.bfloat16))
    tl.store(parts + tile * H + unit, tl.sum(value, axis=0))


def _bias_elu(z: Tensor, bias: Tensor) -> Tensor:
    num_networks, rows, width = z.shape
    _bias_elu_kernel[(num_networks * rows // BLOCK,)](z, bias, rows, H=width, BLOCK=BLOCK)
    return z


def _slope_and_sum(d: Tensor, h: Tensor) -> Tensor:
    """Multiplies ``d`` by the slope in place; returns its sums over rows (K, H)."""
    num_networks, rows, width = d.shape
    parts = d.new_empty((num_networks, rows // BLOCK, width), dtype=torch.float32)
    _slope_kernel[(num_networks * rows // BLOCK,)](d, h, parts, H=width, BLOCK=BLOCK)
    return parts.sum(1)


def _weight_gradient(h: Tensor, d: Tensor) -> Tensor:
    """h^T d in float32."""
    if d.is_cuda:
        return torch.bmm(h.mT, d, out_dtype=torch.float32)
    return torch.bmm(h.mT.float(), d.float())


class _Layerwise(torch.autograd.Function):
    """Four weights and four biases; the input has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        w1, w2, w3, w4, b1, b2, b3, b4 = parameters
        u = _pad_inputs(x).expand(len(w1), -1, -1)
        v1, w2, w3, w4 = _pad_first(w1, b1), w2.bfloat16(), w3.bfloat16(), _pad_last(w4, w4.shape[1])
        h1 = _bias_elu(torch.bmm(u, v1), torch.zeros_like(b2))  # V1 holds its bias
        h2 = _bias_elu(torch.bmm(h1, w2), b2.contiguous())
        h3 = _bias_elu(torch.bmm(h2, w3), b3.contiguous())
        ctx.save_for_backward(u, w2, w3, w4, h1, h2, h3)
        ctx.num_inputs = x.shape[1]
        return torch.bmm(h3, w4)[:, : len(x), : b4.shape[1]] + b4[:, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w2, w3, w4, h1, h2, h3 = ctx.saved_tensors
        d, o = ctx.num_inputs, grad.shape[2]
        g = _pad_last(grad, h1.shape[1])
        dw4 = _weight_gradient(h3, g)[..., :o]
        d3 = torch.bmm(g, w4.mT)
        db3 = _slope_and_sum(d3, h3)
        dw3 = _weight_gradient(h2, d3)
        d2 = torch.bmm(d3, w3.mT)
        db2 = _slope_and_sum(d2, h2)
        dw2 = _weight_gradient(h1, d2)
        d1 = torch.bmm(d2, w2.mT)
        db1 = _slope_and_sum(d1, h1)
        dv1 = _weight_gradient(u, d1)
        return None, dv1[:, :d] + dv1[:, d : 2 * d], dw2, dw3, dw4, db1, db2, db3, grad.sum(1)


def stacked_mlp(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """Same contract as :func:`fishnets.ops.stacked_mlp.fused_triton.stacked_mlp`."""
    if biases[3].shape[1] > MAX_OUTPUTS:
        raise ValueError(f"at most {MAX_OUTPUTS} outputs were expected, got {biases[3].shape[1]}.")
    return _Layerwise.apply(x, *weights, *biases)
