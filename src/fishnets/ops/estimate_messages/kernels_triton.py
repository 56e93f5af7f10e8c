"""Triton kernels that estimate from messages, their linear layer included, forward and back.

A program multiplies a tile of messages, (M, C), by the weights of the layer on the tensor cores and takes the product
apart into columns: M lanes, each with the outputs of a message, as in the kernels of ``segment_information``, which go
on from there. Forward, outputs are never written to memory. On the way back their gradients are, a part of the messages
at a time, for the two products that follow.

There are K outputs, of which ``A`` are in a first product and up to ``B`` in a second, both powers of two; ``B`` may
be 0. Channels are padded to CP, a power of two. On the way back outputs are padded to KP, a multiple of 16. Factors are
full; other names are those of ``segment_information``.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment, attr-defined"

import triton
import triton.language as tl

from fishnets.ops.segment_information.kernels_triton import (
    _add_information,
    _factor,
    _load,
    _packed,
    _scaled,
    _slope,
    _store_sums,
    _times,
    _transposed_times,
    _wide,
    _zeros,
)
from fishnets.ops.solve_information.kernels_triton import _cholesky, _substitute

__all__ = ["layer_backward", "nodes_backward", "outputs_backward", "solve_nodes", "sum_messages"]


@triton.constexpr_function
def _log2(n):
    return n.bit_length() - 1


@triton.jit
def _apart(tile, M: tl.constexpr, N: tl.constexpr):
    """Columns of a tile (M, N): N tensors (M,), in order."""
    parts = (tile,)
    for level in tl.static_range(_log2(N)):
        finer = ()
        for i in tl.static_range(2**level):
            halves = tl.permute(tl.reshape(parts[i], [M, 2, N // 2 ** (level + 1)]), (0, 2, 1))
            low, high = tl.split(halves)
            finer = finer + (low, high)
        parts = finer
    out = ()
    for i in tl.static_range(N):
        out = out + (tl.reshape(parts[i], [M]),)
    return out


@triton.jit
def _weights(lin, bias, FIRST: tl.constexpr, N: tl.constexpr, K: tl.constexpr, C: tl.constexpr, CP: tl.constexpr):
    """Weights (CP, N) and bias (N,) of outputs FIRST, ..., FIRST + N - 1, zero beyond K."""
    output, channel = FIRST + tl.arange(0, N), tl.arange(0, CP)
    mask = (channel < C)[:, None] & (output < K)[None, :]
    weights = tl.load(lin + output[None, :] * C + channel[:, None], mask=mask, other=0.0)
    return weights, tl.load(bias + output, mask=output < K, other=0.0).to(tl.float32)


@triton.jit
def _product(tile, weights, bias, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr):
    """Columns of the product of messages and weights, with the bias: N tensors (M,)."""
    return _apart(tl.dot(tile, weights, input_precision=PRECISION) + bias[None, :], M, N)


@triton.jit(do_not_specialize=["num_items", "num_places"])
def sum_messages(
    x,  # (n, C)
    order,  # (n,) row of each position, or unused
    weight,  # (n,) by row, or unused
    lin,  # (K, C)
    bias,  # (K,)
    starts,  # (items,) first position of each item
    stops,  # (items,) one beyond the last
    places,  # (items,) where its sum goes
    out,  # (P + P(P+1)/2, places)
    num_items,
    num_places,
    K: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    P: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
    ITEMS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Sums the information of the messages of every item."""
    M: tl.constexpr = ITEMS * LANES
    WIDTH: tl.constexpr = P + P * (P + 1) // 2
    lane, channel = tl.arange(0, M), tl.arange(0, CP)
    item = tl.program_id(0).to(tl.int64) * ITEMS + lane // LANES
    start = tl.load(starts + item, mask=item < num_items, other=0)
    stop = tl.load(stops + item, mask=item < num_items, other=0)
    longest = tl.max(stop - start, 0)
    weights_a, bias_a = _weights(lin, bias, 0, A, K, C, CP)
    if B > 0:
        weights_b, bias_b = _weights(lin, bias, A, B, K, C, CP)
    total = _zeros(WIDTH, [M])
    for step in range(0, longest, LANES):
        position = start + step + lane % LANES
        live = position < stop
        row = position
        if HAS_ORDER:
            row = tl.load(order + position, mask=live, other=0)
        scale = tl.where(live, 1.0, 0.0)
        if HAS_WEIGHT:
            scale = tl.load(weight + row, mask=live, other=0.0).to(tl.float32)
        mask = live[:, None] & (channel < C)[None, :]
        tile = tl.load(x + row[:, None] * C + channel[None, :], mask=mask, other=0.0)
        outputs = _product(tile, weights_a, bias_a, M, A, PRECISION)
        if B > 0:
            outputs = outputs + _product(tile, weights_b, bias_b, M, B, PRECISION)
        entries = _factor(outputs[P:], live, P, P, 0)
        scaled = _scaled(outputs[:P] + entries, scale, WIDTH)
        total = _add_information(total, outputs[:P], entries, scaled, P, P, 0, FORM)
    place = tl.load(places + item, mask=item < num_items, other=0)
    _store_sums(out + place, total, item < num_items, num_places, WIDTH, ITEMS, LANES)


@triton.jit
def _numbers(place, stride, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """COUNT columns at ``place``, from the one FIRST on."""
    values = ()
    for k in tl.static_range(COUNT):
        values = values + (tl.load(place + _wide(FIRST + k) * stride),)
    return values


@triton.jit
def _minus(one, other, P: tl.constexpr):
    out = ()
    for k in tl.static_range(P):
        out = out + (one[k] - other[k],)
    return out


@triton.jit(do_not_specialize=["length", "num_groups"])
def outputs_backward(
    node,  # (3P, num_groups) lambda, estimate, gradient of the summed Fisher matrix's diagonal
    x,  # (n, C) messages or, without a layer, (K, n) their outputs
    weight,  # (n,), or unused
    lin,  # (K, C), or unused
    bias,  # (K,)
    owners,  # (n,) group of each row
    columns,  # (K, stride) gradient of the outputs of rows from ``start`` on
    grad_weight,  # (n,), or unused
    num_groups,
    start,
    length,
    stride,
    K: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    P: tl.constexpr,
    FORM: tl.constexpr,
    HAS_LAYER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEED_WEIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
):
    """Gradients of the outputs, and of the weights, of ``length`` rows from ``start`` on."""
    within = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    live = within < length
    row = start + within
    spot = columns + within
    scale = 1.0
    if HAS_WEIGHT:
        scale = tl.load(weight + row, mask=live, other=0.0).to(tl.float32)
    if HAS_LAYER:
        channel = tl.arange(0, CP)
        mask = live[:, None] & (channel < C)[None, :]
        tile = tl.load(x + row[:, None] * C + channel[None, :], mask=mask, other=0.0)
        weights, offset = _weights(lin, bias, 0, A, K, C, CP)
        outputs = _product(tile, weights, offset, M, A, PRECISION)
        if B > 0:
            weights, offset = _weights(lin, bias, A, B, K, C, CP)
            outputs = outputs + _product(tile, weights, offset, M, B, PRECISION)
    else:
        outputs = _load(x + row, live, stride, bias, 0, P + P * (P + 1) // 2, True)
    a = outputs[:P]
    L = _factor(outputs[P:], live, P, P, 0)
    place = node + tl.load(owners + row, mask=live, other=0)
    towards = _numbers(place, num_groups, 0, P)  # lambda
    z = _numbers(place, num_groups, P, P)
    h = _numbers(place, num_groups, 2 * P, P)
    u = _transposed_times(L, z, P, P, 0)
    v = _transposed_times(L, towards, P, P, 0)
    behind = u  # what multiplies -lambda in the gradient of the factor
    grad_a = towards
    if FORM == 1:
        behind = _minus(u, a, P)
        grad_a = v
    if FORM == 2:
        behind = _minus(u, _transposed_times(L, a, P, P, 0), P)
        z = _minus(z, a, P)
        grad_a = _times(L, v, P, P, 0)
    if NEED_WEIGHT:
        share = tl.zeros([M], tl.float32)
        for k in tl.static_range(P):
            share -= v[k] * behind[k]
            if FORM == 0:
                share += towards[k] * a[k]
            for i in tl.static_range(P):
                if k <= i:
                    share += h[i] * L[_packed(i, k)] * L[_packed(i, k)]
        tl.store(grad_weight + row, share, mask=live)
    kind = columns.dtype.element_ty
    for k in tl.static_range(P):
        tl.store(spot + _wide(k) * stride, (scale * grad_a[k]).to(kind), mask=live)
    for i in tl.static_range(P):
        for k in tl.static_range(i + 1):
            entry = L[_packed(i, k)]
            value = 2.0 * h[i] * entry - towards[i] * behind[k] - z[i] * v[k]
            if i == k:
                value = value * _slope(entry)
            tl.store(spot + _wide(P + _packed(i, k)) * stride, (scale * value).to(kind), mask=live)


@triton.jit
def _fetch(
    columns,
    x,
    number,
    start,
    length,
    stride,
    K: tl.constexpr,
    KP: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    M: tl.constexpr,
):
    """Messages of a tile, (M, CP), and the gradients of their outputs, 32 at a time, (32, M); zero beyond the last.

    Tiles are counted from the end, whose gradients were written last and may still be in the cache.
    """
    tiles = tl.cdiv(length, M)
    real = number < tiles
    within = tl.where(real, tiles - 1 - number, tiles).to(tl.int64) * M + tl.arange(0, M)
    channel = tl.arange(0, CP)
    mask = (within < length)[:, None] & (channel < C)[None, :]
    row = start + within
    tile = tl.load(x + row[:, None] * C + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    gradients = ()
    for first in tl.static_range(0, KP, 32):
        output = first + tl.arange(0, min(32, KP - first))
        place = columns + output.to(tl.int64)[:, None] * stride + within[None, :]
        mask = ((output < K) & real)[:, None]  # not by the row, which would load single numbers
        gradients = gradients + (tl.load(place, mask=mask, other=0.0),)
    return tile, gradients


@triton.jit(do_not_specialize=["length"])
def layer_backward(
    columns,  # (K, stride) gradient of the outputs, zero from ``length`` on
    x,  # (n, C)
    parts,  # (programs, KP CP + KP) parts of the gradient of the layer and of its bias, added to beyond the first start
    start,
    length,
    stride,
    K: tl.constexpr,
    KP: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
):
    """Gradient of the layer; a program takes every so many tiles of M rows.

    The next tile is on its way while one is multiplied.
    """
    lin = ()
    bias = ()
    for first in tl.static_range(0, KP, 32):
        lin = lin + (tl.zeros([min(32, KP - first), CP], tl.float32),)
        bias = bias + (tl.zeros([min(32, KP - first), M], tl.float32),)
    step = tl.num_programs(0)
    tile, gradients = _fetch(columns, x, tl.program_id(0), start, length, stride, K, KP, C, CP, M)
    for number in tl.range(tl.program_id(0), tl.cdiv(length, M), step, num_stages=1):
        ahead = _fetch(columns, x, number + step, start, length, stride, K, KP, C, CP, M)
        more_lin = ()
        more_bias = ()
        for part in tl.static_range(0, KP, 32):
            d = gradients[part // 32]
            more_lin = more_lin + (tl.dot(d, tile, lin[part // 32], input_precision=PRECISION),)
            more_bias = more_bias + (bias[part // 32] + d,)
        lin = more_lin
        bias = more_bias
        tile = ahead[0]
        gradients = ahead[1]
    channel = tl.arange(0, CP)
    parts += tl.program_id(0).to(tl.int64) * (KP * CP + KP)
    for first in tl.static_range(0, KP, 32):
        output = first + tl.arange(0, min(32, KP - first))
        spot = parts + output[:, None] * CP + channel[None, :]
        tl.store(spot, tl.load(spot, mask=start > 0, other=0.0) + lin[first // 32])
        spot = parts + KP * CP + output
        tl.store(spot, tl.load(spot, mask=start > 0, other=0.0) + tl.sum(bias[first // 32], 1))


@triton.jit
def _precision(total, prior, place, real, num_groups, P: tl.constexpr):
    """Packed sum of Fisher matrices and prior."""
    matrix = ()
    for i in tl.static_range(P):
        for j in tl.static_range(i + 1):
            value = tl.load(total + _wide(P + _packed(i, j)) * num_groups + place, mask=real, other=0.0)
            if i == j:
                value += tl.load(prior + i)
            matrix = matrix + (value,)
    return matrix


@triton.jit(do_not_specialize=["num_groups"])
def solve_nodes(
    total,  # (P + P(P+1)/2, num_groups)
    prior,  # (P,)
    features,  # (num_groups, 2P) estimate and log-information
    num_groups,
    P: tl.constexpr,
    LANES: tl.constexpr,
):
    """Features of groups; a lane owns one."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = place < num_groups
    matrix = _precision(total, prior, place, real, num_groups, P)
    score = ()
    for i in tl.static_range(P):
        score = score + (tl.load(total + _wide(i) * num_groups + place, mask=real, other=0.0),)
    lower, inverse = _cholesky(matrix, P)
    solution = _substitute(lower, inverse, score, P)
    for i in tl.static_range(P):
        tl.store(features + place * (2 * P) + i, solution[i], mask=real)
        own = tl.load(total + _wide(P + _packed(i, i)) * num_groups + place, mask=real, other=0.0)
        # ln(1 + r), for which there is no function, by its logarithm at 1 + r rounded and what the rounding lost
        r = own / tl.load(prior + i)
        near = 1.0 + r
        tl.store(features + place * (2 * P) + P + i, tl.log(near) + (r - (near - 1.0)) / near, mask=real)


@triton.jit(do_not_specialize=["num_groups"])
def nodes_backward(
    grad,  # (num_groups, 2P)
    total,  # (P + P(P+1)/2, num_groups)
    prior,  # (P,)
    features,  # (num_groups, 2P) estimate and log-information
    node,  # (3P, num_groups) lambda, estimate, gradient of the summed Fisher matrix's diagonal
    grad_prior,  # (programs, P) parts of the gradient of the prior
    num_groups,
    P: tl.constexpr,
    LANES: tl.constexpr,
):
    """What the gradients of a group's messages depend on."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = place < num_groups
    matrix = _precision(total, prior, place, real, num_groups, P)
    lower, inverse = _cholesky(matrix, P)
    gradient = ()
    for i in tl.static_range(P):
        gradient = gradient + (tl.load(grad + place * (2 * P) + i, mask=real, other=0.0),)
    towards = _substitute(lower, inverse, gradient, P)
    for i in tl.static_range(P):
        z = tl.load(features + place * (2 * P) + i, mask=real, other=0.0)
        h = tl.load(grad + place * (2 * P) + P + i, mask=real, other=0.0) / matrix[_packed(i, i)]
        own = tl.load(total + _wide(P + _packed(i, i)) * num_groups + place, mask=real, other=0.0)
        tl.store(node + _wide(i) * num_groups + place, towards[i], mask=real)
        tl.store(node + _wide(P + i) * num_groups + place, z, mask=real)
        tl.store(node + _wide(2 * P + i) * num_groups + place, h, mask=real)
        of_prior = -towards[i] * z - h * own / tl.load(prior + i)
        tl.store(grad_prior + tl.program_id(0) * P + i, tl.sum(tl.where(real, of_prior, 0.0), 0))
