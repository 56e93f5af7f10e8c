r"""The stacked gated networks in two Triton kernels, one forward and one backward, with all hidden values on the chip.

The kernels are in :mod:`~fishnets.ops.stacked_gated.kernels_triton`; here are their launches and the derivative.

Forward reads the input and writes the output. Backward reads the input and the gradient of the output, repeats the
forward pass for a tile of rows, walks back through it, and adds the tile to the gradients of all weights, which stay in
registers while a program walks over its rows. With :math:`s` the sigmoid and :math:`a = \mathrm{silu}(g) \odot v`:

.. math::
    \delta_a = \delta_h W_{leave}^\top, \quad
    \delta_v = \delta_a \odot g s(g), \quad
    \delta_g = \delta_a \odot v \odot s(g) (1 + g (1 - s(g))), \quad
    \delta_h \leftarrow \delta_h + [\delta_g, \delta_v] W_{gate}^\top .

Rows are cut into as many parts as fill the device; the sums of the parts are written and added in a second step,
without atomics, so results are the same bits from run to run. The README of this folder counts bytes and registers.
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

from fishnets.ops.dispatch import num_multiprocessors
from fishnets.ops.stacked_gated.kernels_triton import backward_kernel, forward_kernel
from fishnets.ops.stacked_gated.reference import Affine

__all__ = [
    "DEPTHS",
    "MAX_INPUTS",
    "MAX_OUTPUTS",
    "WIDTHS",
    "Launch",
    "LaunchPlan",
    "default_plan",
    "launch_backward",
    "launch_forward",
    "pack",
    "stacked_gated",
    "unpack",
]

WIDTHS = (16, 32)
DEPTHS = (1, 2)
MAX_INPUTS = 15
MAX_OUTPUTS = 16  # the least width of a product on the matrix units; fewer outputs are padded with zeros


@dataclass(frozen=True)
class Launch:
    """How a kernel is cut up: rows of a tile, warps, pipeline stages, programs side by side on a multiprocessor.

    Four warps take 64 rows, eight 128: fewer rows would be split across units and more would not fit in registers.
    """

    rows: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a step. Part of the numerical result: row tiles fix the order of the sums, so nothing is tuned
    at run time."""

    forward: Launch
    backward: Launch


def default_plan(width: int) -> LaunchPlan:
    """The plan for networks of ``width``: what registers and shared memory allow; untimed."""
    if width < 32:
        return LaunchPlan(Launch(64, 4, 3, 6), Launch(64, 4, 3, 2))
    return LaunchPlan(Launch(64, 4, 3, 4), Launch(128, 8, 3, 1))


@dataclass(frozen=True)
class Sizes:
    """Inputs, width, outputs and blocks of every network."""

    inputs: int
    width: int
    outputs: int
    depth: int

    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the parameters of one network, in the order of the kernels."""
        w = self.width
        blocks: list[tuple[int, ...]] = [(w, 4 * w), (4 * w,), (2 * w, w), (w,)] * self.depth
        return [*blocks, (w, self.outputs), (self.outputs,), (self.inputs, w), (w,)]


def pack(parameters: Sequence[Tensor]) -> Tensor:
    """Parameters (K, ...) as one vector for each network, (K, S)."""
    return torch.cat([parameter.flatten(1) for parameter in parameters], dim=1)


def unpack(packed: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """The opposite of :func:`pack`, as views."""
    parts = packed.split([math.prod(shape) for shape in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def _num_parts(num_networks: int, num_rows: int, launch: Launch, device: torch.device) -> int:
    """Parts to cut the rows into such that every multiprocessor gets as many programs."""
    units = num_multiprocessors(device) if device.type == "cuda" else 3
    resident = launch.programs * units
    return min(triton.cdiv(num_rows, launch.rows), resident // math.gcd(resident, num_networks))


def launch_forward(x: Tensor, packed: Tensor, sizes: Sizes, launch: Launch) -> Tensor:
    """The output (K, n, o) from the input (n, d) and the packed parameters (K, S), all contiguous."""
    num_rows, (num_networks, num_parameters) = len(x), packed.shape
    parts = _num_parts(num_networks, num_rows, launch, x.device)
    out = x.new_empty((num_networks, num_rows, sizes.outputs))
    forward_kernel[(num_networks * parts,)](
        x,
        packed,
        out,
        num_rows,
        num_parameters,
        parts,
        INPUTS=sizes.inputs,
        OUTPUTS=sizes.outputs,
        W=sizes.width,
        DEPTH=sizes.depth,
        BLOCK=launch.rows,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    return out


def launch_backward(x: Tensor, packed: Tensor, grad: Tensor, sizes: Sizes, launch: Launch) -> Tensor:
    """The gradient of the packed parameters (K, S) from that of the output (K, n, o), all contiguous."""
    num_rows, (num_networks, num_parameters) = len(x), packed.shape
    parts = _num_parts(num_networks, num_rows, launch, x.device)
    sums = x.new_empty((num_networks, parts, num_parameters))
    backward_kernel[(num_networks * parts,)](
        x,
        packed,
        grad,
        sums,
        num_rows,
        num_parameters,
        parts,
        INPUTS=sizes.inputs,
        OUTPUTS=sizes.outputs,
        W=sizes.width,
        DEPTH=sizes.depth,
        BLOCK=launch.rows,
        num_warps=launch.warps,
        num_stages=launch.stages,
    )
    return sums.sum(1)


class _StackedGated(torch.autograd.Function):
    """Parameters in the order of the kernels; the input has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: LaunchPlan, sizes: Sizes, *parameters: Tensor) -> Tensor:
        x, packed = x.contiguous(), pack(parameters)
        ctx.save_for_backward(x, packed)
        ctx.launch, ctx.sizes = plan.backward, sizes
        return launch_forward(x, packed, sizes, plan.forward)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, packed = ctx.saved_tensors
        gradient = launch_backward(x, packed, grad.contiguous(), ctx.sizes, ctx.launch)
        return None, None, None, *unpack(gradient, ctx.sizes.shapes())


def stacked_gated(
    x: Tensor,
    enter: Affine,
    gates: Sequence[Affine],
    leaves: Sequence[Affine],
    head: Affine,
    plan: LaunchPlan | None = None,
) -> Tensor:
    """The stacked gated networks of one or two blocks; see the package for the contract.

    Args:
        x: Shared input, shape (n, d), float32, n at least 1.
        enter: Weight (K, d, w) and bias (K, w), float32.
        gates: Weight (K, w, 4 w) and bias (K, 4 w) for every block, float32.
        leaves: Weight (K, 2 w, w) and bias (K, w) for every block, float32.
        head: Weight (K, w, o) and bias (K, o), float32.
        plan: How the kernels are cut up; default: :func:`default_plan`.

    Returns:
        Outputs, shape (K, n, o), float32.
    """
    blocks = [tensor for gate, leave in zip(gates, leaves, strict=True) for tensor in (*gate, *leave)]
    sizes = Sizes(x.shape[1], enter[0].shape[2], head[0].shape[2], len(gates))
    return _StackedGated.apply(x, plan or default_plan(sizes.width), sizes, *blocks, *head, *enter)
