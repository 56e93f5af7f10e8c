"""The Triton kernels of the stacked networks: ``second`` and ``third`` forward, ``upper`` and ``lower`` backward.

They are named after the layers they compute. Comments give what each argument holds and its shape, in the names of
:mod:`~fishnets.ops.stacked_mlp.fused_triton`: K networks of H units, P columns of u, O padded outputs. Descriptors view
their tensors as matrices, all leading dimensions flattened.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["lower_kernel", "second_kernel", "third_kernel", "upper_kernel"]


@triton.jit
def _elu(z):
    return tl.where(z > 0, z, tl.exp(z) - 1)


@triton.jit
def _slope(h):
    """Derivative of the ELU where its value is h."""
    return 1 + tl.minimum(h.to(tl.float32), 0)


@triton.jit
def second_kernel(
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
def third_kernel(
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
def upper_kernel(
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
def lower_kernel(
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
