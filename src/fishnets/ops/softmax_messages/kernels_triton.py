"""Triton kernels of sums weighted by a softmax, forward and back.

A program owns a group and all channels, and goes through its messages ROWS at a time. Forward it keeps the largest
logit so far and what has been added up relative to it, so that messages are read once; the gradient reads them once
more.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment, attr-defined"

import triton
import triton.language as tl

__all__ = ["softmax_backward", "sum_softmax"]


@triton.jit
def _rows(x, order, first, stop, column, channels, HAS_ORDER: tl.constexpr, ROWS: tl.constexpr):
    """Places of the next messages (ROWS, CP), and which of them there are."""
    position = first + tl.arange(0, ROWS)
    live = position < stop
    row = tl.load(order + position, mask=live, other=0) if HAS_ORDER else position  # int64: offsets exceed 2^31
    return row[:, None] * channels + column[None, :], live[:, None] & (column < channels)[None, :]


@triton.jit
def sum_softmax(
    x,  # (n, C)
    temperature,  # (1,)
    ptr,  # (g + 1,)
    order,  # (n,), with HAS_ORDER
    out,  # (g, C)
    log_total,  # (g, C)
    channels,
    HAS_ORDER: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    start, stop = tl.load(ptr + group), tl.load(ptr + group + 1)
    slope, column = tl.load(temperature), tl.arange(0, CP)
    top = tl.full([CP], -float("inf"), tl.float32)
    total = tl.zeros([CP], tl.float32)
    weighted = tl.zeros([CP], tl.float32)
    for first in range(start, stop, ROWS):
        place, live = _rows(x, order, first, stop, column, channels, HAS_ORDER, ROWS)
        value = tl.load(x + place, mask=live, other=0.0)
        logit = tl.where(live, slope * value, -float("inf"))
        higher = tl.maximum(top, tl.max(logit, 0))
        higher = tl.where(column < channels, higher, 0.0)  # nothing minus nothing is not a number
        kept, share = tl.exp(top - higher), tl.exp(logit - higher[None, :])
        total = total * kept + tl.sum(share, 0)
        weighted = weighted * kept + tl.sum(share * value, 0)
        top = higher
    empty = start == stop
    place, live = group * channels + column, column < channels
    tl.store(out + place, tl.where(empty, 0.0, weighted / tl.where(empty, 1.0, total)), mask=live)
    tl.store(log_total + place, tl.where(empty, 0.0, top + tl.log(tl.where(empty, 1.0, total))), mask=live)


@triton.jit
def softmax_backward(
    grad,  # (g, C)
    x,  # (n, C)
    temperature,  # (1,)
    ptr,  # (g + 1,)
    order,  # (n,), with HAS_ORDER
    out,  # (g, C)
    log_total,  # (g, C)
    grad_x,  # (n, C)
    grad_slope,  # (g, C)
    channels,
    HAS_ORDER: tl.constexpr,
    CP: tl.constexpr,
    ROWS: tl.constexpr,
):
    group = tl.program_id(0).to(tl.int64)
    start, stop = tl.load(ptr + group), tl.load(ptr + group + 1)
    slope, column = tl.load(temperature), tl.arange(0, CP)
    of_group, known = group * channels + column, column < channels
    given = tl.load(grad + of_group, mask=known, other=0.0)[None, :]
    mean = tl.load(out + of_group, mask=known, other=0.0)[None, :]
    log_sum = tl.load(log_total + of_group, mask=known, other=0.0)[None, :]
    total = tl.zeros([CP], tl.float32)
    for first in range(start, stop, ROWS):
        place, live = _rows(x, order, first, stop, column, channels, HAS_ORDER, ROWS)
        value = tl.load(x + place, mask=live, other=0.0)
        share = given * tl.exp(slope * value - log_sum)
        tl.store(grad_x + place, share * (1 + slope * (value - mean)), mask=live)
        total += tl.sum(tl.where(live, share * value * (value - mean), 0.0), 0)
    tl.store(grad_slope + of_group, total, mask=known)
