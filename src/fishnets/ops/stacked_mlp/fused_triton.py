r"""The stacked networks in four Triton kernels, two forward and two backward, with few bytes moved.

The kernels are in :mod:`~fishnets.ops.stacked_mlp.kernels_triton`; here are their launches and the derivative.

With :math:`u = [x_{hi}, x_{lo}, 1, 1]`, the input split into two bfloat16 parts, and :math:`V_1` the rows of
:math:`W_1` twice and of :math:`b_1` in two parts, the first layer is :math:`h_1 = \mathrm{elu}(u V_1)`, a product of
at most 32 terms. It is cheaper to repeat than to read back, so only :math:`h_2`, :math:`h_3` and, on the way back,
the gradient :math:`\delta_2` of the second pre-activation ever reach device memory, in bfloat16:

.. math::
    \delta_3 = (g W_4^\top) \odot s(h_3), \quad
    \delta_2 = (\delta_3 W_3^\top) \odot s(h_2), \quad
    \delta_1 = (\delta_2 W_2^\top) \odot s(h_1), \qquad s(h) = 1 + \min(h, 0),

:math:`s` being the slope of the ELU as a function of its value. The README of this folder counts bytes and registers.

Rows are padded to a multiple of :data:`ROW_MULTIPLE` in every buffer of our own, with zero gradients, so that no kernel
masks a row except where it writes the output. Sums over rows are cut into as many parts as fill the device; the parts
are written and summed in a second step, without atomics, so results are the same bits from run to run.
"""

# Triton and ``autograd.Function.apply`` are untyped.
# mypy: disable-error-code="no-untyped-call, no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fishnets.ops.dispatch import num_multiprocessors
from fishnets.ops.stacked_mlp.kernels_triton import lower_kernel, second_kernel, third_kernel, upper_kernel

__all__ = [
    "MAX_INPUTS",
    "MAX_OUTPUTS",
    "ROW_MULTIPLE",
    "WIDTHS",
    "Launch",
    "LaunchPlan",
    "Operands",
    "default_plan",
    "launch_lower",
    "launch_second",
    "launch_third",
    "launch_upper",
    "pad_last",
    "pad_operands",
    "stacked_mlp",
]

WIDTHS = (64, 128, 256)
MAX_INPUTS = 15  # u = [x_hi, x_lo, 1, 1] has at most 32 columns
MAX_OUTPUTS = 16  # the least width of a product on the matrix units; fewer outputs are padded with zeros
ROW_MULTIPLE = 128


@dataclass(frozen=True)
class Launch:
    """How one kernel is cut up: rows of a tile, warps, pipeline stages."""

    rows: int
    warps: int
    stages: int


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a step. Part of the numerical result: row tiles fix the order of the sums, so nothing is tuned
    at run time."""

    second: Launch
    third: Launch
    upper: Launch
    lower: Launch


def default_plan(width: int) -> LaunchPlan:
    """The plan for hidden layers of ``width`` units: at 256 the fastest measured on an H200; the rest is untimed."""
    if width < 256:
        return LaunchPlan(Launch(64, 4, 3), Launch(64, 4, 3), Launch(64, 4, 3), Launch(64, 4, 3))
    return LaunchPlan(Launch(128, 8, 3), Launch(64, 4, 3), Launch(64, 8, 3), Launch(64, 8, 4))


@dataclass(frozen=True)
class Operands:
    """The input and the weights as the kernels read them: in bfloat16, padded, contiguous."""

    u: Tensor  # (rows, P)
    v1: Tensor  # (K, P, H)
    w2: Tensor  # (K, H, H)
    w3: Tensor  # (K, H, H)
    w4: Tensor  # (K, H, O)


def _describe(tensor: Tensor, block: Sequence[int]) -> TensorDescriptor:
    flat = tensor.flatten(0, -2)
    return TensorDescriptor.from_tensor(flat, list(block))


def pad_operands(x: Tensor, weights: Sequence[Tensor], first_bias: Tensor) -> Operands:
    """Operands from the input (n, d), the four weights and the first bias (K, H)."""
    w1, w2, w3, w4 = weights
    w2, w3 = w2.to(torch.bfloat16).contiguous(), w3.to(torch.bfloat16).contiguous()
    return Operands(_pad_inputs(x), _pad_first(w1, first_bias), w2, w3, pad_last(w4, w4.shape[1]))


def _pad_inputs(x: Tensor) -> Tensor:
    """u = [x_hi, x_lo, 1, 1, 0...], rows padded with zeros."""
    n, d = x.shape
    u = x.new_zeros((_round_up(n, ROW_MULTIPLE), _first_width(d)), dtype=torch.bfloat16)
    u[:n, :d] = x
    u[:n, d : 2 * d] = x - u[:n, :d]
    u[:n, 2 * d : 2 * d + 2] = 1
    return u


def _pad_first(weight: Tensor, bias: Tensor) -> Tensor:
    """V1 = [W1; W1; b1_hi; b1_lo; 0...]."""
    num_networks, d, width = weight.shape
    v1 = weight.new_zeros((num_networks, _first_width(d), width), dtype=torch.bfloat16)
    v1[:, :d] = weight
    v1[:, d : 2 * d] = weight
    v1[:, 2 * d] = bias
    v1[:, 2 * d + 1] = bias - v1[:, 2 * d]
    return v1


def pad_last(tensor: Tensor, rows: int) -> Tensor:
    """bfloat16 copy with 16 columns and the given number of rows."""
    padding = (0, MAX_OUTPUTS - tensor.shape[-1], 0, rows - tensor.shape[-2])
    return torch.nn.functional.pad(tensor.to(torch.bfloat16), padding).contiguous()  # padding by 0 keeps strides


def _first_width(num_inputs: int) -> int:
    return max(16, triton.next_power_of_2(2 * num_inputs + 2))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _num_parts(programs: int, tiles: int, device: torch.device) -> int:
    """Parts to cut the rows into, ``programs`` to a part, such that every multiprocessor gets as many programs."""
    units = num_multiprocessors(device) if device.type == "cuda" else 4
    return min(tiles, units // math.gcd(units, programs))


def launch_second(operands: Operands, bias: Tensor, launch: Launch) -> Tensor:
    """h2 (K, rows, H)."""
    (rows, first_width), (num_networks, width, _) = operands.u.shape, operands.w2.shape
    parts = _num_parts(num_networks, rows // launch.rows, bias.device)
    h2 = operands.u.new_empty((num_networks, rows, width))
    second_kernel[(num_networks * parts,)](
        _describe(operands.u, (launch.rows, first_width)),
        _describe(operands.v1, (first_width, width)),
        _describe(operands.w2, (width, width // 2)),
        bias,
        _describe(h2, (launch.rows, width // 2)),
        rows,
        parts,
        H=width,
        P=first_width,
        BLOCK=launch.rows,
        STAGES=launch.stages,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    return h2


def launch_third(
    operands: Operands, h2: Tensor, bias: Tensor, last_bias: Tensor, num_rows: int, save: bool, launch: Launch
) -> tuple[Tensor, Tensor | None]:
    """The output (K, n, o) and, if it is to be saved, h3 (K, rows, H)."""
    num_networks, rows, width = h2.shape
    parts = _num_parts(2 * num_networks, rows // launch.rows, h2.device)
    h3 = torch.empty_like(h2) if save else None
    halves = last_bias.new_empty((2, num_networks, num_rows, last_bias.shape[1]))
    third_kernel[(2 * num_networks * parts,)](
        _describe(h2, (launch.rows, width)),
        _describe(operands.w3, (width, width // 2)),
        _describe(operands.w4, (width // 2, MAX_OUTPUTS)),
        bias,
        _describe(h2 if h3 is None else h3, (launch.rows, width // 2)),
        halves,
        rows,
        num_rows,
        last_bias.shape[1],
        num_networks,
        parts,
        H=width,
        OUT=MAX_OUTPUTS,
        BLOCK=launch.rows,
        STAGES=launch.stages,
        SAVE=save,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    return halves[0].add_(halves[1]).add_(last_bias[:, None]), h3


def launch_upper(
    operands: Operands, g: Tensor, h3: Tensor, h2: Tensor, launch: Launch
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """delta2 (K, rows, H) and the gradients of W3 (K, H, H), b3 (K, H) and the padded W4 (K, H, O)."""
    num_networks, rows, width = h2.shape
    parts = _num_parts(2 * num_networks, rows // launch.rows, g.device)
    d2 = torch.empty_like(h2)
    third = g.new_empty((num_networks, parts, width, width), dtype=torch.float32)
    last = g.new_empty((num_networks, parts, width, MAX_OUTPUTS), dtype=torch.float32)
    bias = g.new_empty((num_networks, parts, width), dtype=torch.float32)
    half = (launch.rows, width // 2)
    upper_kernel[(2 * num_networks * parts,)](
        _describe(g, (launch.rows, MAX_OUTPUTS)),
        _describe(h3, half),
        _describe(h2, half),
        _describe(operands.w4, (width // 2, MAX_OUTPUTS)),
        _describe(operands.w3, (width // 2, width // 2)),
        _describe(d2, half),
        third,
        last,
        bias,
        rows,
        parts,
        H=width,
        OUT=MAX_OUTPUTS,
        BLOCK=launch.rows,
        STAGES=launch.stages,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    return d2, third.sum(1), bias.sum(1), last.sum(1)


def launch_lower(operands: Operands, d2: Tensor, launch: Launch) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of W2 (K, H, H), of V1 transposed (K, H, P), and the sums of delta2^T u (K, H, P)."""
    (num_networks, rows, width), first_width = d2.shape, operands.u.shape[1]
    parts = _num_parts(2 * num_networks, rows // launch.rows, d2.device)
    second = d2.new_empty((num_networks, parts, width, width), dtype=torch.float32)
    first = d2.new_empty((num_networks, parts, width, first_width), dtype=torch.float32)
    bias = torch.empty_like(first)
    lower_kernel[(2 * num_networks * parts,)](
        _describe(operands.u, (launch.rows, first_width)),
        _describe(d2, (launch.rows, width // 2)),
        _describe(operands.v1, (first_width, width // 2)),
        _describe(operands.w2, (width // 2, width // 2)),
        second,
        first,
        bias,
        rows,
        parts,
        H=width,
        P=first_width,
        BLOCK=launch.rows,
        STAGES=launch.stages,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    return second.sum(1), first.sum(1), bias.sum(1)


class _StackedMLP(torch.autograd.Function):
    """Four weights and four biases; the input has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: LaunchPlan, save: bool, *parameters: Tensor) -> Tensor:
        b1, b2, b3, b4 = (bias.contiguous() for bias in parameters[4:])
        operands = pad_operands(x, parameters[:4], b1)
        h2 = launch_second(operands, b2, plan.second)
        out, h3 = launch_third(operands, h2, b3, b4, len(x), save, plan.third)
        hidden = [] if h3 is None else [h2, h3]
        ctx.save_for_backward(operands.u, operands.v1, operands.w2, operands.w3, operands.w4, *hidden)
        ctx.plan, ctx.num_inputs = plan, x.shape[1]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, h2, h3 = ctx.saved_tensors
        operands, d, o = Operands(*tensors), ctx.num_inputs, grad.shape[2]
        d2, dw3, db3, dw4 = launch_upper(operands, pad_last(grad, h2.shape[1]), h3, h2, ctx.plan.upper)
        dw2, dv1, d2_u = launch_lower(operands, d2, ctx.plan.lower)
        dw1 = (dv1[..., :d] + dv1[..., d : 2 * d]).mT  # V1 holds W1 twice
        db1, db2 = dv1[..., 2 * d], d2_u[..., 2 * d]  # the column of ones
        return None, None, None, dw1, dw2, dw3, dw4[..., :o], db1, db2, db3, grad.sum(1)


def stacked_mlp(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], plan: LaunchPlan | None = None
) -> Tensor:
    """The stacked networks with ELU and three hidden layers; see the package for the contract.

    Args:
        x: Shared input, shape (n, d), float32, n at least 1.
        weights: W1 (K, d, H), W2 and W3 (K, H, H), W4 (K, H, o), float32.
        biases: (K, H) three times and (K, o), float32.
        plan: How the kernels are cut up; default: :func:`default_plan`.

    Returns:
        Outputs, shape (K, n, o), float32.
    """
    parameters = (*weights, *biases)
    save = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
    plan = plan or default_plan(weights[1].shape[2])
    return _StackedMLP.apply(x, plan, save, *parameters)
