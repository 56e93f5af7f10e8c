r"""The stacked networks in four Triton kernels, two forward and two backward, with few bytes moved.

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

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["MAX_INPUTS", "MAX_OUTPUTS", "ROW_MULTIPLE", "WIDTHS", "Launch", "LaunchPlan", "default_plan", "stacked_mlp"]

WIDTHS = (64, 128, 256)
MAX_INPUTS = 15  # u = [x_hi, x_lo, 1, 1] has at most 32 columns
MAX_OUTPUTS = 16  # the least width of a product on the matrix units; fewer outputs are padded with zeros
ROW_MULTIPLE = 128


@triton.jit
def _elu(z):
    return tl.where(z > 0, z, tl.exp(z) - 1)


@triton.jit
def _slope(h):
    """Derivative of the ELU where its value is h."""
    return 1 + tl.minimum(h.to(tl.float32), 0)


@triton.jit
def _streamed_kernel(
    inputs,  # descriptor of u, (rows, P) bfloat16, block (BLOCK, P)
    first,  # descriptor of V1, (K P, H) bfloat16, block (P, H)
    second,  # descriptor of W2, (K H, H) bfloat16, block (H, CHUNK)
    third,  # descriptor of W3, (K H, H) bfloat16, block (CHUNK, H)
    last,  # descriptor of W4, (K H, O) bfloat16, block (H, O)
    second_bias,  # (K, H) float32
    third_bias,  # (K, H) float32
    last_bias,  # (K, O) float32
    hidden2,  # descriptor of h2, (K rows, H) bfloat16, block (BLOCK, CHUNK)
    hidden3,  # descriptor of h3, (K rows, H) bfloat16, block (BLOCK, H)
    out,  # (K, num_rows, num_outputs) float32
    rows,  # rows of the padded buffers
    num_rows,
    num_outputs,
    H: tl.constexpr,
    P: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    STAGES: tl.constexpr,
    SAVE: tl.constexpr,
):
    tiles = rows // BLOCK
    network = tl.program_id(0) // tiles  # consecutive programs share their weights in L2
    row = (tl.program_id(0) % tiles) * BLOCK
    unit = tl.arange(0, H)
    h1 = _elu(tl.dot(inputs.load([row, 0]), first.load([network * P, 0]))).to(tl.bfloat16)
    z3 = tl.zeros((BLOCK, H), tl.float32)
    for start in tl.range(0, H, CHUNK, num_stages=STAGES):
        z2 = tl.dot(h1, second.load([network * H, start]))
        z2 += tl.load(second_bias + network * H + start + tl.arange(0, CHUNK))[None, :]
        h2 = _elu(z2).to(tl.bfloat16)
        if SAVE:
            hidden2.store([network * rows + row, start], h2)
        z3 = tl.dot(h2, third.load([network * H + start, 0]), z3)
    h3 = _elu(z3 + tl.load(third_bias + network * H + unit)[None, :]).to(tl.bfloat16)
    if SAVE:
        hidden3.store([network * rows + row, 0], h3)
    column = tl.arange(0, OUT)
    y = tl.dot(h3, last.load([network * H, 0])) + tl.load(last_bias + network * OUT + column)[None, :]
    position = row + tl.arange(0, BLOCK)
    offset = (network.to(tl.int64) * num_rows + position[:, None]) * num_outputs + column[None, :]
    tl.store(out + offset, y, mask=(position[:, None] < num_rows) & (column[None, :] < num_outputs))


@triton.jit
def _second_kernel(
    inputs,  # descriptor of u, (rows, P) bfloat16, block (BLOCK, P)
    first,  # descriptor of V1, (K P, H) bfloat16, block (P, H)
    second,  # descriptor of W2, (K H, H) bfloat16, block (H, H / 2)
    second_bias,  # (K, H) float32
    hidden2,  # descriptor of h2, (K rows, H) bfloat16, block (BLOCK, H / 2)
    rows,
    parts,
    H: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """h2 for one part of the rows, all of W2 staying in shared memory."""
    HALF: tl.constexpr = H // 2
    part = tl.program_id(0) % parts
    network = tl.program_id(0) // parts
    tiles = rows // BLOCK
    v1 = first.load([network * P, 0])
    w2_left = second.load([network * H, 0])
    w2_right = second.load([network * H, HALF])
    b2_left = tl.load(second_bias + network * H + tl.arange(0, HALF))[None, :]
    b2_right = tl.load(second_bias + network * H + HALF + tl.arange(0, HALF))[None, :]
    for tile in tl.range(part * tiles // parts, (part + 1) * tiles // parts, num_stages=STAGES):
        row = network * rows + tile * BLOCK
        h1 = _elu(tl.dot(inputs.load([tile * BLOCK, 0]), v1)).to(tl.bfloat16)
        hidden2.store([row, 0], _elu(tl.dot(h1, w2_left) + b2_left).to(tl.bfloat16))
        hidden2.store([row, HALF], _elu(tl.dot(h1, w2_right) + b2_right).to(tl.bfloat16))


@triton.jit
def _third_kernel(
    hidden2,  # descriptor of h2, (K rows, H) bfloat16, block (BLOCK, H)
    third,  # descriptor of W3, (K H, H) bfloat16, block (H, H / 2)
    last,  # descriptor of W4, (K H, O) bfloat16, block (H / 2, O)
    third_bias,  # (K, H) float32
    hidden3,  # descriptor of h3, (K rows, H) bfloat16, block (BLOCK, H / 2)
    out_halves,  # (2, K, num_rows, num_outputs) float32: what each half of the units adds to the output
    rows,
    num_rows,
    num_outputs,
    num_networks,
    parts,
    H: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    SAVE: tl.constexpr,
):
    """One half of the units of h3 for one part of the rows, units in rows, data in columns."""
    HALF: tl.constexpr = H // 2
    half = tl.program_id(0) % 2  # the two halves run side by side and share their reads in L2
    part = tl.program_id(0) // 2 % parts
    network = tl.program_id(0) // (2 * parts)
    tiles = rows // BLOCK
    w3 = tl.trans(third.load([network * H, half * HALF]))
    w4 = last.load([network * H + half * HALF, 0])
    b3 = tl.load(third_bias + network * H + half * HALF + tl.arange(0, HALF))[:, None]
    column = tl.arange(0, OUT)
    for tile in tl.range(part * tiles // parts, (part + 1) * tiles // parts, num_stages=STAGES):
        row = network * rows + tile * BLOCK
        h3 = tl.trans(_elu(tl.dot(w3, tl.trans(hidden2.load([row, 0]))) + b3).to(tl.bfloat16))
        if SAVE:
            hidden3.store([row, half * HALF], h3)
        y = tl.dot(h3, w4)
        position = tile * BLOCK + tl.arange(0, BLOCK)
        first_row = (half * num_networks + network).to(tl.int64) * num_rows
        offset = (first_row + position[:, None]) * num_outputs + column[None, :]
        tl.store(out_halves + offset, y, mask=(position[:, None] < num_rows) & (column[None, :] < num_outputs))


@triton.jit
def _upper_kernel(
    grad_out,  # descriptor of g, (K rows, O) bfloat16, block (BLOCK, O)
    hidden3,  # descriptor of h3, (K rows, H) bfloat16, block (BLOCK, H / 2)
    hidden2,  # descriptor of h2, (K rows, H) bfloat16, block (BLOCK, H / 2)
    last,  # descriptor of W4, (K H, O) bfloat16, block (H / 2, O)
    third,  # descriptor of W3, (K H, H) bfloat16, block (H / 2, H / 2)
    grad2,  # descriptor of delta2, (K rows, H) bfloat16, block (BLOCK, H / 2)
    third_parts,  # (K, parts, H, H) float32: sums of h2^T delta3
    last_parts,  # (K, parts, H, O) float32: sums of h3^T g
    bias_parts,  # (K, parts, H) float32: sums of delta3
    rows,
    parts,
    H: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients of layers three and four for one half of the units of layers two and three."""
    HALF: tl.constexpr = H // 2
    own = (tl.program_id(0) % 2) * HALF  # the two halves run side by side and share their reads in L2
    other = HALF - own
    part = tl.program_id(0) // 2 % parts
    network = tl.program_id(0) // (2 * parts)
    tiles = rows // BLOCK
    w4_own = last.load([network * H + own, 0])
    w4_other = last.load([network * H + other, 0])
    w3_own = third.load([network * H + own, own])
    w3_other = third.load([network * H + own, other])
    dw3_own = tl.zeros((HALF, HALF), tl.float32)
    dw3_other = tl.zeros((HALF, HALF), tl.float32)
    dw4 = tl.zeros((HALF, OUT), tl.float32)
    db3 = tl.zeros((HALF,), tl.float32)
    for tile in tl.range(part * tiles // parts, (part + 1) * tiles // parts, num_stages=STAGES):
        row = network * rows + tile * BLOCK
        g = grad_out.load([row, 0])
        h3_own = tl.trans(hidden3.load([row, own]))
        d3_own = tl.dot(w4_own, tl.trans(g)) * _slope(h3_own)
        db3 += tl.sum(d3_own, axis=1)
        d3_own = d3_own.to(tl.bfloat16)
        h3_other = tl.trans(hidden3.load([row, other]))
        d3_other = (tl.dot(w4_other, tl.trans(g)) * _slope(h3_other)).to(tl.bfloat16)
        dw4 = tl.dot(h3_own, g, dw4)
        d2 = tl.dot(w3_own, d3_own)
        d2 = tl.dot(w3_other, d3_other, d2)
        h2 = tl.trans(hidden2.load([row, own]))
        dw3_own = tl.dot(h2, tl.trans(d3_own), dw3_own)
        dw3_other = tl.dot(h2, tl.trans(d3_other), dw3_other)
        grad2.store([row, own], tl.trans((d2 * _slope(h2)).to(tl.bfloat16)))
    unit = (network * parts + part).to(tl.int64) * H + own + tl.arange(0, HALF)
    column = tl.arange(0, HALF)
    tl.store(third_parts + unit[:, None] * H + own + column[None, :], dw3_own)
    tl.store(third_parts + unit[:, None] * H + other + column[None, :], dw3_other)
    tl.store(last_parts + unit[:, None] * OUT + tl.arange(0, OUT)[None, :], dw4)
    tl.store(bias_parts + unit, db3)


@triton.jit
def _lower_kernel(
    inputs,  # descriptor of u, (rows, P) bfloat16, block (BLOCK, P)
    grad2,  # descriptor of delta2, (K rows, H) bfloat16, block (BLOCK, H / 2)
    first,  # descriptor of V1, (K P, H) bfloat16, block (P, H / 2)
    second,  # descriptor of W2, (K H, H) bfloat16, block (H / 2, H / 2)
    second_parts,  # (K, parts, H, H) float32: sums of h1^T delta2
    first_parts,  # (K, parts, H, P) float32: sums of delta1^T u
    bias_parts,  # (K, parts, H, P) float32: sums of delta2^T u, of which the column of ones is wanted
    rows,
    parts,
    H: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Gradients of layers one and two for one half of the units of layer one, units in rows, data in columns."""
    HALF: tl.constexpr = H // 2
    own = (tl.program_id(0) % 2) * HALF
    other = HALF - own
    part = tl.program_id(0) // 2 % parts
    network = tl.program_id(0) // (2 * parts)
    tiles = rows // BLOCK
    v1 = tl.trans(first.load([network * P, own]))
    w2_own = second.load([network * H + own, own])
    w2_other = second.load([network * H + own, other])
    dw2_own = tl.zeros((HALF, HALF), tl.float32)
    dw2_other = tl.zeros((HALF, HALF), tl.float32)
    dv1 = tl.zeros((HALF, P), tl.float32)
    db2 = tl.zeros((HALF, P), tl.float32)
    for tile in tl.range(part * tiles // parts, (part + 1) * tiles // parts, num_stages=STAGES):
        u = inputs.load([tile * BLOCK, 0])
        d2_own = grad2.load([network * rows + tile * BLOCK, own])
        d2_other = grad2.load([network * rows + tile * BLOCK, other])
        h1 = _elu(tl.dot(v1, tl.trans(u))).to(tl.bfloat16)  # (H / 2, BLOCK): an operand without leaving registers
        dw2_own = tl.dot(h1, d2_own, dw2_own)
        dw2_other = tl.dot(h1, d2_other, dw2_other)
        d1 = tl.dot(w2_own, tl.trans(d2_own))
        d1 = tl.dot(w2_other, tl.trans(d2_other), d1)
        db2 = tl.dot(tl.trans(d2_own), u, db2)
        dv1 = tl.dot((d1 * _slope(h1)).to(tl.bfloat16), u, dv1)
    unit = (network * parts + part).to(tl.int64) * H + own + tl.arange(0, HALF)
    column = tl.arange(0, HALF)
    tl.store(second_parts + unit[:, None] * H + own + column[None, :], dw2_own)
    tl.store(second_parts + unit[:, None] * H + other + column[None, :], dw2_other)
    tl.store(first_parts + unit[:, None] * P + tl.arange(0, P)[None, :], dv1)
    tl.store(bias_parts + unit[:, None] * P + tl.arange(0, P)[None, :], db2)


@dataclass(frozen=True)
class Launch:
    """How one kernel is cut up: rows of a tile, units of a weight chunk (forward only), warps, pipeline stages."""

    rows: int
    warps: int
    stages: int
    chunk: int = 0


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a step. Part of the numerical result: row tiles fix the order of the sums, so nothing is tuned
    at run time. With ``streamed``, one kernel that streams its weights replaces ``second`` and ``third``."""

    second: Launch
    third: Launch
    upper: Launch
    lower: Launch
    streamed: Launch | None = None


def default_plan(width: int) -> LaunchPlan:
    """The plan for hidden layers of ``width`` units."""
    if width < 256:
        return LaunchPlan(Launch(64, 4, 3), Launch(64, 4, 3), Launch(64, 4, 3), Launch(64, 4, 3))
    return LaunchPlan(Launch(128, 8, 3), Launch(64, 8, 3), Launch(64, 8, 3), Launch(64, 8, 3))


@dataclass(frozen=True)
class _Operands:
    """What the kernels read, in bfloat16 (biases in float32), padded."""

    u: Tensor  # (rows, P)
    v1: Tensor  # (K, P, H)
    w2: Tensor  # (K, H, H)
    w3: Tensor  # (K, H, H)
    w4: Tensor  # (K, H, O)


def _describe(tensor: Tensor, block: Sequence[int]) -> TensorDescriptor:
    flat = tensor.flatten(0, -2)
    return TensorDescriptor.from_tensor(flat, list(block))


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


def _pad_last(tensor: Tensor, rows: int) -> Tensor:
    """bfloat16 copy with 16 columns and the given number of rows."""
    padding = (0, MAX_OUTPUTS - tensor.shape[-1], 0, rows - tensor.shape[-2])
    return torch.nn.functional.pad(tensor.to(torch.bfloat16), padding)


def _first_width(num_inputs: int) -> int:
    return max(16, triton.next_power_of_2(2 * num_inputs + 2))


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _num_parts(programs: int, tiles: int, device: torch.device) -> int:
    """Parts to cut the rows into, ``programs`` to a part, such that every multiprocessor gets as many programs."""
    units = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    return min(tiles, units // math.gcd(units, programs))


def launch_streamed(
    operands: _Operands, biases: Sequence[Tensor], out: Tensor, hidden: Sequence[Tensor], launch: Launch
) -> None:
    """Fills ``out`` (K, n, o) and, unless ``hidden`` is empty, h2 and h3 (K, rows, H), in one kernel."""
    (rows, first_width), (num_networks, width, _) = operands.u.shape, operands.w2.shape
    block, chunk = launch.rows, launch.chunk
    h2, h3 = hidden or (operands.w2, operands.w2)  # never written when there is nothing to save
    _streamed_kernel[(num_networks * (rows // block),)](
        _describe(operands.u, (block, first_width)),
        _describe(operands.v1, (first_width, width)),
        _describe(operands.w2, (width, chunk)),
        _describe(operands.w3, (chunk, width)),
        _describe(operands.w4, (width, MAX_OUTPUTS)),
        *biases,
        _describe(h2, (block, chunk)),
        _describe(h3, (block, width)),
        out,
        rows,
        out.shape[1],
        out.shape[2],
        H=width,
        P=first_width,
        OUT=MAX_OUTPUTS,
        BLOCK=block,
        CHUNK=chunk,
        STAGES=launch.stages,
        SAVE=bool(hidden),
        num_warps=launch.warps,
        num_stages=launch.stages,
    )


def launch_second(operands: _Operands, bias: Tensor, launch: Launch) -> Tensor:
    """h2 (K, rows, H)."""
    (rows, first_width), (num_networks, width, _) = operands.u.shape, operands.w2.shape
    parts = _num_parts(num_networks, rows // launch.rows, bias.device)
    h2 = operands.u.new_empty((num_networks, rows, width))
    _second_kernel[(num_networks * parts,)](
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
    operands: _Operands, h2: Tensor, bias: Tensor, last_bias: Tensor, num_rows: int, save: bool, launch: Launch
) -> tuple[Tensor, Tensor | None]:
    """The output (K, n, o) and, if it is to be saved, h3 (K, rows, H)."""
    num_networks, rows, width = h2.shape
    parts = _num_parts(2 * num_networks, rows // launch.rows, h2.device)
    h3 = torch.empty_like(h2) if save else None
    halves = last_bias.new_empty((2, num_networks, num_rows, last_bias.shape[1]))
    _third_kernel[(2 * num_networks * parts,)](
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
    operands: _Operands, g: Tensor, h3: Tensor, h2: Tensor, launch: Launch
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """delta2 (K, rows, H) and the gradients of W3 (K, H, H), b3 (K, H) and the padded W4 (K, H, O)."""
    num_networks, rows, width = h2.shape
    parts = _num_parts(2 * num_networks, rows // launch.rows, g.device)
    d2 = torch.empty_like(h2)
    third = g.new_empty((num_networks, parts, width, width), dtype=torch.float32)
    last = g.new_empty((num_networks, parts, width, MAX_OUTPUTS), dtype=torch.float32)
    bias = g.new_empty((num_networks, parts, width), dtype=torch.float32)
    half = (launch.rows, width // 2)
    _upper_kernel[(2 * num_networks * parts,)](
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


def launch_lower(operands: _Operands, d2: Tensor, launch: Launch) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of W2 (K, H, H), of V1 transposed (K, H, P), and the sums of delta2^T u (K, H, P)."""
    (num_networks, rows, width), first_width = d2.shape, operands.u.shape[1]
    parts = _num_parts(2 * num_networks, rows // launch.rows, d2.device)
    second = d2.new_empty((num_networks, parts, width, width), dtype=torch.float32)
    first = d2.new_empty((num_networks, parts, width, first_width), dtype=torch.float32)
    bias = torch.empty_like(first)
    _lower_kernel[(2 * num_networks * parts,)](
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
        w1, w2, w3, w4, b1, b2, b3, b4 = parameters
        num_networks, _, width = w2.shape
        operands = _Operands(
            _pad_inputs(x),
            _pad_first(w1, b1),
            w2.to(torch.bfloat16).contiguous(),
            w3.to(torch.bfloat16).contiguous(),
            _pad_last(w4, width),
        )
        b2, b3, b4 = b2.contiguous(), b3.contiguous(), b4.contiguous()
        if plan.streamed is None:
            h2 = launch_second(operands, b2, plan.second)
            out, h3 = launch_third(operands, h2, b3, b4, len(x), save, plan.third)
            hidden = [h2, h3] if h3 is not None else []
        else:
            out = x.new_empty((num_networks, len(x), w4.shape[2]))
            shape = (num_networks, len(operands.u), width)
            hidden = [x.new_empty(shape, dtype=torch.bfloat16) for _ in range(2)] if save else []
            last_bias = torch.nn.functional.pad(b4, (0, MAX_OUTPUTS - b4.shape[1]))
            launch_streamed(operands, (b2, b3, last_bias), out, hidden, plan.streamed)
        ctx.save_for_backward(operands.u, operands.v1, operands.w2, operands.w3, operands.w4, *hidden)
        ctx.plan, ctx.num_inputs = plan, x.shape[1]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, h2, h3 = ctx.saved_tensors
        operands, d, o = _Operands(*tensors), ctx.num_inputs, grad.shape[2]
        d2, dw3, db3, dw4 = launch_upper(operands, _pad_last(grad, h2.shape[1]), h3, h2, ctx.plan.upper)
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
