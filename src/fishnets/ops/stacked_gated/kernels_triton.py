"""The Triton kernels of the stacked gated networks: one forward, one backward.

Comments give what each argument holds and its shape: K networks of width W with DEPTH blocks, one or two, and S
parameters each. The parameters of a network are one vector: for every block the weight (W, 4 W) and bias of its gates
and the weight (2 W, W) and bias of its leave, then weight (W, OUTPUTS) and bias of the head, then weight (INPUTS, W)
and bias of the entrance. Their gradients are laid out alike. Weights are (in, out), row after row.

Data run along the rows of a tile and units along its columns: what one product gives is the left operand of the next
without leaving registers. A bias is a product too, of a tile of ones with its two bfloat16 parts, so that it occupies
no registers while the rows go by. Invariants are not hoisted out of the backward loop: those are addresses, cheaper
to compute again than to keep.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

__all__ = ["backward_kernel", "forward_kernel"]

PAD = tl.constexpr(16)  # the least extent of an operand of the matrix units
TALL = tl.constexpr(64)  # the least extent of a product on Hopper's faster matrix units


@triton.jit
def _weight(pointer, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PAD_ROWS: tl.constexpr, PAD_COLUMNS: tl.constexpr):
    """The (ROWS, COLUMNS) float32 matrix at ``pointer`` in bfloat16, padded with zeros."""
    row, column = tl.arange(0, PAD_ROWS)[:, None], tl.arange(0, PAD_COLUMNS)[None, :]
    mask = (row < ROWS) & (column < COLUMNS)
    return tl.load(pointer + row * COLUMNS + column, mask=mask, other=0).to(tl.bfloat16)


@triton.jit
def _bias(pointer, COLUMNS: tl.constexpr, PAD_COLUMNS: tl.constexpr):
    """The bias at ``pointer`` as (PAD, PAD_COLUMNS) bfloat16: its high part, its low part, zeros."""
    row, column = tl.arange(0, PAD)[:, None], tl.arange(0, PAD_COLUMNS)[None, :]
    bias = tl.load(pointer + row * 0 + column, mask=(row < 2) & (column < COLUMNS), other=0)
    high = bias.to(tl.bfloat16).to(tl.float32)
    return tl.where(row == 0, high, bias - high).to(tl.bfloat16)


@triton.jit
def _rows(pointer, tile, num_rows, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of one tile of a (num_rows, COLUMNS) float32 matrix, padded with zeros to (BLOCK, PAD)."""
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, PAD)[None, :]
    first = tile * BLOCK
    mask = (row < num_rows - first) & (column < COLUMNS)
    return tl.load(pointer + first.to(tl.int64) * COLUMNS + (row * COLUMNS + column), mask=mask, other=0)


@triton.jit
def _sigmoid(z):
    """Sigmoid to a few units in the last place, without the care for subnormal numbers that would double its cost."""
    return libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf(-z))


@triton.jit
def _split(both, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Left and right half of the columns: in the layout of a product, registers change their names only."""
    return tl.split(tl.permute(tl.reshape(both, (BLOCK, 2, WIDTH)), (0, 2, 1)))


@triton.jit
def _join(left, right, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """The opposite of :func:`_split`."""
    return tl.reshape(tl.permute(tl.join(left, right), (0, 2, 1)), (BLOCK, 2 * WIDTH))


@triton.jit
def _enter(x, weight, bias, ones):
    """The first layer, from the two bfloat16 parts of x, and the high part."""
    high = x.to(tl.bfloat16)
    low = (x - high.to(tl.float32)).to(tl.bfloat16)
    h = tl.dot(high, weight, tl.dot(ones, bias))
    return tl.dot(low, weight, h), high


@triton.jit
def _block(h, gate_weight, gate_bias, leave_weight, leave_bias, ones, BLOCK: tl.constexpr, W: tl.constexpr):
    """The residual stream, (BLOCK, W) float32, after one block."""
    gate, value = _split(tl.dot(h.to(tl.bfloat16), gate_weight, tl.dot(ones, gate_bias)), BLOCK, 2 * W)
    product = (gate * _sigmoid(gate) * value).to(tl.bfloat16)
    return tl.dot(product, leave_weight, tl.dot(ones, leave_bias, h))


@triton.jit
def forward_kernel(
    x,  # (num_rows, INPUTS) float32
    parameters,  # (K, S) float32
    out,  # (K, num_rows, OUTPUTS) float32
    num_rows,
    num_parameters,
    parts,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    W: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Outputs of one network for one part of the rows."""
    part = tl.program_id(0) % parts
    network = (tl.program_id(0) // parts).to(tl.int64)
    tiles = tl.cdiv(num_rows, BLOCK)
    SIZE: tl.constexpr = W * (6 * W + 5)  # parameters of a block
    lower = parameters + network * num_parameters
    upper = lower + (DEPTH - 1) * SIZE
    head = upper + SIZE
    enter = head + (W + 1) * OUTPUTS
    enter_weight = _weight(enter, INPUTS, W, PAD, W)
    enter_bias = _bias(enter + INPUTS * W, W, W)
    if DEPTH == 2:
        lower_gate = _weight(lower, W, 4 * W, W, 4 * W)
        lower_gate_bias = _bias(lower + 4 * W * W, 4 * W, 4 * W)
        lower_leave = _weight(lower + 4 * W * (W + 1), 2 * W, W, 2 * W, W)
        lower_leave_bias = _bias(upper - W, W, W)
    upper_gate = _weight(upper, W, 4 * W, W, 4 * W)
    upper_gate_bias = _bias(upper + 4 * W * W, 4 * W, 4 * W)
    upper_leave = _weight(upper + 4 * W * (W + 1), 2 * W, W, 2 * W, W)
    upper_leave_bias = _bias(head - W, W, W)
    head_weight = _weight(head, W, OUTPUTS, W, PAD)
    head_bias = _bias(head + W * OUTPUTS, OUTPUTS, PAD)
    ones = tl.full((BLOCK, PAD), 1, tl.float32).to(tl.bfloat16)
    column = tl.arange(0, PAD)[None, :]
    for tile in tl.range(part * tiles // parts, (part + 1) * tiles // parts):
        h, _ = _enter(_rows(x, tile, num_rows, INPUTS, BLOCK), enter_weight, enter_bias, ones)
        if DEPTH == 2:
            h = _block(h, lower_gate, lower_gate_bias, lower_leave, lower_leave_bias, ones, BLOCK, W)
        h = _block(h, upper_gate, upper_gate_bias, upper_leave, upper_leave_bias, ones, BLOCK, W)
        y = tl.dot(h.to(tl.bfloat16), head_weight, tl.dot(ones, head_bias))
        row = tile * BLOCK + tl.arange(0, BLOCK)[:, None]
        offset = (network * num_rows + row) * OUTPUTS + column
        tl.store(out + offset, y, mask=(row < num_rows) & (column < OUTPUTS))


@triton.jit
def _block_backward(
    both,  # (BLOCK, 4 W) float32: gate and value
    dproduct,  # (BLOCK, 2 W) float32: gradient of their product
    dh,  # (BLOCK, W) float32: gradient of what the block gave
    h,  # (BLOCK, W) bfloat16: what it was given
    gate_weight,  # (W, 4 W) bfloat16
    ones,  # (BLOCK, W) bfloat16: ones in one half of the columns
    gate_sum,  # (4 W, W) float32
    bias_sum,  # (4 W, W) float32
    leave_sum,  # (2 W, W) float32
    BLOCK: tl.constexpr,
    W: tl.constexpr,
):
    """The product; the gradient of what the block was given; the sums with this tile added."""
    gate, value = _split(both, BLOCK, 2 * W)
    slope = _sigmoid(gate)
    swish = gate * slope
    product = (swish * value).to(tl.bfloat16)
    dgate = (dproduct * value * (slope + swish * (1 - slope))).to(tl.bfloat16)
    dboth = _join(dgate, (dproduct * swish).to(tl.bfloat16), BLOCK, 2 * W)
    leave_sum = tl.dot(tl.trans(product), dh.to(tl.bfloat16), leave_sum)
    dh = tl.dot(dboth, tl.trans(gate_weight), dh)
    dboth = tl.trans(dboth)
    bias_sum = tl.dot(dboth, ones, bias_sum)
    gate_sum = tl.dot(dboth, h, gate_sum)
    return product, dh, gate_sum, bias_sum, leave_sum


@triton.jit
def _store_block(
    target,  # where the gradients of the block begin
    source,  # where its parameters begin
    gate_sum,  # (4 W, W) float32
    gate_bias,  # (4 W,) float32
    leave_sum,  # (2 W, W) float32
    dh_sum,  # (W,) float32: sum over rows of the gradient of what the block gave
    W: tl.constexpr,
):
    """Writes the gradients of a block; gives the sum over rows of the gradient of what the block was given."""
    unit, inner, wide = tl.arange(0, W), tl.arange(0, 2 * W), tl.arange(0, 4 * W)
    transposed = unit[None, :] * (4 * W) + wide[:, None]
    tl.store(target + transposed, gate_sum)
    tl.store(target + 4 * W * W + wide, gate_bias)
    target += 4 * W * (W + 1)
    tl.store(target + inner[:, None] * W + unit[None, :], leave_sum)
    tl.store(target + 2 * W * W + unit, dh_sum)
    return dh_sum + tl.sum(tl.load(source + transposed) * gate_bias[:, None], axis=0)


@triton.jit
def backward_kernel(
    x,  # (num_rows, INPUTS) float32
    parameters,  # (K, S) float32
    grad,  # (K, num_rows, OUTPUTS) float32
    sums,  # (K, parts, S) float32: gradients of the parameters
    num_rows,
    num_parameters,
    parts,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    W: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradients of the parameters of one network, summed over one part of the rows."""
    part = tl.program_id(0) % parts
    network = (tl.program_id(0) // parts).to(tl.int64)
    tiles = tl.cdiv(num_rows, BLOCK)
    SIZE: tl.constexpr = W * (6 * W + 5)  # parameters of a block
    lower = parameters + network * num_parameters
    upper = lower + (DEPTH - 1) * SIZE
    head = upper + SIZE
    enter = head + (W + 1) * OUTPUTS
    enter_weight = _weight(enter, INPUTS, W, PAD, W)
    enter_bias = _bias(enter + INPUTS * W, W, W)
    if DEPTH == 2:
        lower_gate = _weight(lower, W, 4 * W, W, 4 * W)
        lower_gate_bias = _bias(lower + 4 * W * W, 4 * W, 4 * W)
        lower_leave = _weight(lower + 4 * W * (W + 1), 2 * W, W, 2 * W, W)
        lower_leave_bias = _bias(upper - W, W, W)
        lower_gate_sum = tl.zeros((4 * W, W), tl.float32)
        lower_leave_sum = tl.zeros((2 * W, W), tl.float32)
    upper_gate = _weight(upper, W, 4 * W, W, 4 * W)
    upper_gate_bias = _bias(upper + 4 * W * W, 4 * W, 4 * W)
    upper_leave = _weight(upper + 4 * W * (W + 1), 2 * W, W, 2 * W, W)
    upper_leave_bias = _bias(head - W, W, W)
    upper_gate_sum = tl.zeros((4 * W, W), tl.float32)
    upper_leave_sum = tl.zeros((2 * W, W), tl.float32)
    head_weight = _weight(head, W, OUTPUTS, W, PAD)
    outer_sum = tl.zeros((TALL, 2 * PAD), tl.float32)  # of the head in its upper left, of the entrance right and below
    bias_sum = tl.zeros((4 * W, W), tl.float32)  # of the upper block in the left half, of the lower in the right
    grad_sum = tl.zeros((PAD, PAD), tl.float32)
    ones = tl.full((BLOCK, PAD), 1, tl.float32).to(tl.bfloat16)
    left = tl.arange(0, W)[None, :] < W // 2
    left_ones = tl.where(left, 1.0, tl.zeros((BLOCK, W), tl.float32)).to(tl.bfloat16)
    right_ones = tl.where(left, 0.0, tl.full((BLOCK, W), 1, tl.float32)).to(tl.bfloat16)
    grad += network * num_rows * OUTPUTS
    for tile in tl.range(part * tiles // parts, (part + 1) * tiles // parts, disable_licm=True):
        g = _rows(grad, tile, num_rows, OUTPUTS, BLOCK)
        grad_sum += tl.sum(tl.reshape(g, (BLOCK // PAD, PAD, PAD)), axis=0)  # within a thread
        g = g.to(tl.bfloat16)
        h, high = _enter(_rows(x, tile, num_rows, INPUTS, BLOCK), enter_weight, enter_bias, ones)
        if DEPTH == 2:
            h_lower = h.to(tl.bfloat16)
            h = _block(h, lower_gate, lower_gate_bias, lower_leave, lower_leave_bias, ones, BLOCK, W)
        h_upper = h.to(tl.bfloat16)
        dh = tl.dot(g, tl.trans(head_weight))
        dproduct = tl.dot(dh.to(tl.bfloat16), tl.trans(upper_leave))  # before the gates: fewer values wait at once
        both = tl.dot(h_upper, upper_gate, tl.dot(ones, upper_gate_bias))
        product, dh, upper_gate_sum, bias_sum, upper_leave_sum = _block_backward(
            both, dproduct, dh, h_upper, upper_gate, left_ones, upper_gate_sum, bias_sum, upper_leave_sum, BLOCK, W
        )
        h = tl.dot(product, upper_leave, tl.dot(ones, upper_leave_bias, h_upper.to(tl.float32))).to(tl.bfloat16)
        if DEPTH == 2:
            dproduct = tl.dot(dh.to(tl.bfloat16), tl.trans(lower_leave))
            # Computed again, not kept; with the bias last, or the compiler would see that it had these values before.
            both = tl.dot(ones, lower_gate_bias, tl.dot(h_lower, lower_gate))
            _, dh, lower_gate_sum, bias_sum, lower_leave_sum = _block_backward(
                both, dproduct, dh, h_lower, lower_gate, right_ones,
                lower_gate_sum, bias_sum, lower_leave_sum, BLOCK, W,
            )  # fmt: skip
        tall = _join(h, dh.to(tl.bfloat16), BLOCK, W)
        if 2 * W < TALL:
            tall = _join(tall, tall, BLOCK, 2 * W)
        outer_sum = tl.dot(tl.trans(tall), _join(g, high, BLOCK, PAD), outer_sum)
    unit, output = tl.arange(0, W), tl.arange(0, PAD)
    row, column = tl.arange(0, TALL)[:, None], tl.arange(0, 2 * PAD)[None, :]
    sums += (network * parts + part) * num_parameters
    target = sums + DEPTH * SIZE
    grad_total = tl.sum(grad_sum, axis=0)
    tl.store(target + row * OUTPUTS + column, outer_sum, mask=(row < W) & (column < OUTPUTS))
    tl.store(target + W * OUTPUTS + output, grad_total, mask=output < OUTPUTS)
    # Biases after a block share the gradient of the residual stream, whose sum over rows goes back by linear algebra.
    weight = tl.load(head + unit[None, :] * OUTPUTS + output[:, None], mask=output[:, None] < OUTPUTS, other=0)
    dh_sum = tl.sum(weight * grad_total[:, None], axis=0)
    upper_bias = tl.sum(tl.where(left, bias_sum, 0), axis=1) / (W // 2)
    dh_sum = _store_block(target - SIZE, upper, upper_gate_sum, upper_bias, upper_leave_sum, dh_sum, W)
    if DEPTH == 2:
        lower_bias = tl.sum(tl.where(left, 0, bias_sum), axis=1) / (W // 2)
        dh_sum = _store_block(sums, lower, lower_gate_sum, lower_bias, lower_leave_sum, dh_sum, W)
    target += (W + 1) * OUTPUTS
    is_enter = (row >= W) & (row < 2 * W) & (column >= PAD) & (column < PAD + INPUTS)
    tl.store(target + (column - PAD) * W + row - W, outer_sum, mask=is_enter)
    tl.store(target + INPUTS * W + unit, dh_sum)
