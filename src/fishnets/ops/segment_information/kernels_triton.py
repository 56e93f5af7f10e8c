"""Triton kernels of the sum of information over groups, forward and back.

Outputs of a row are columns: where they lie one behind the other, (K, n) in memory, every load is coalesced. A program
takes ``ITEMS`` runs of consecutive positions side by side, ``LANES`` rows of each at a step; a lane owns a row, holds
all of its numbers in registers and adds to sums of its own, which are reduced over lanes once, at the end. On the way
back a lane owns a row, whatever its position. All indices of the factor are known at compile time: only entries that
exist are computed, nothing is padded.

Kinds of factor are numbers here: 0 full, 1 diagonal, 2 low rank. Forms too: 0 score, 1 regression, 2 location.
A factor has P rows and R columns; ``_exists`` and ``_at`` say which entries there are and where they lie.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment, attr-defined"

import triton
import triton.language as tl

__all__ = ["add_parts", "rows_backward", "sum_rows"]


@triton.constexpr_function
def _exists(kind, i, k):
    """Whether the factor has an entry in row i and column k."""
    return k <= i if kind == 0 else (k == i if kind == 1 else True)


@triton.constexpr_function
def _at(kind, rank, i, k):
    """Where that entry lies among the outputs of the factor."""
    return i * (i + 1) // 2 + k if kind == 0 else (i if kind == 1 else i * rank + k)


@triton.constexpr_function
def _packed(i, j):
    """Where the entry of a symmetric matrix in row i and column j lies in its packed triangle."""
    return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)


@triton.constexpr_function
def _width(kind, p, rank):
    """Number of outputs of a factor."""
    return p * (p + 1) // 2 if kind == 0 else (p if kind == 1 else p * rank)


@triton.jit
def _wide(n: tl.constexpr):
    """A number whose products do not overflow: offsets exceed 2^31."""
    return tl.full([], n, tl.int64)


@triton.jit
def _softplus(x):
    """Softplus, with ln(1 + e) as e times a polynomial, right to 2^-22.

    The logarithm of 1 + e takes longer, and loses a small e.
    """
    e = tl.exp(-tl.abs(x))
    p = 0.01985139027237892 - 0.003244009567424655 * e
    p = p * e - 0.056959398090839386
    p = p * e + 0.10603640973567963
    p = p * e - 0.1530558466911316
    p = p * e + 0.19675935804843903
    p = p * e - 0.24954132735729218
    p = p * e + 0.3332996368408203
    p = p * e - 0.4999990165233612
    p = p * e + 1.0
    return tl.maximum(x, 0.0) + e * p


@triton.jit
def _load(base, live, stride, bias, FIRST: tl.constexpr, COUNT: tl.constexpr, HAS_BIAS: tl.constexpr):
    """COUNT columns of rows, in float32, zero where no row lives."""
    columns = ()
    for k in tl.static_range(COUNT):
        value = tl.load(base + _wide(FIRST + k) * stride, mask=live, other=0.0).to(tl.float32)
        if HAS_BIAS:
            value = tl.where(live, value + tl.load(bias + FIRST + k).to(tl.float32), 0.0)
        columns = columns + (value,)
    return columns


@triton.jit
def _factor(raw, live, P: tl.constexpr, R: tl.constexpr, KIND: tl.constexpr):
    """Entries of the factor from outputs: softplus on the diagonal, but for low rank; zero where no row lives."""
    entries = ()
    for i in tl.static_range(P):
        for k in tl.static_range(R):
            if _exists(KIND, i, k):
                value = raw[_at(KIND, R, i, k)]
                if KIND < 2 and i == k:
                    value = tl.where(live, _softplus(value), 0.0)
                entries = entries + (value,)
    return entries


@triton.jit
def _transposed_times(entries, vector, P: tl.constexpr, R: tl.constexpr, KIND: tl.constexpr):
    """L^T v, R numbers."""
    out = ()
    for k in tl.static_range(R):
        total = vector[0] * 0.0
        for i in tl.static_range(P):
            if _exists(KIND, i, k):
                total += entries[_at(KIND, R, i, k)] * vector[i]
        out = out + (total,)
    return out


@triton.jit
def _times(entries, vector, P: tl.constexpr, R: tl.constexpr, KIND: tl.constexpr):
    """L v, P numbers."""
    out = ()
    for i in tl.static_range(P):
        total = vector[0] * 0.0
        for k in tl.static_range(R):
            if _exists(KIND, i, k):
                total += entries[_at(KIND, R, i, k)] * vector[k]
        out = out + (total,)
    return out


@triton.jit
def _zeros(COUNT: tl.constexpr, shape: tl.constexpr):
    """COUNT tensors of zeros."""
    out = ()
    for _ in tl.static_range(COUNT):
        out = out + (tl.zeros(shape, tl.float32),)
    return out


@triton.jit
def _scaled(values, scale, COUNT: tl.constexpr):
    out = ()
    for k in tl.static_range(COUNT):
        out = out + (scale * values[k],)
    return out


@triton.jit
def _add_information(
    total, vector, entries, scaled, P: tl.constexpr, R: tl.constexpr, KIND: tl.constexpr, FORM: tl.constexpr
):
    """Adds score and packed Fisher matrix of a row, P + P(P + 1)/2 numbers.

    ``scaled`` are its outputs, vector and entries, times its weight.
    """
    along = vector
    if FORM == 2:
        along = _transposed_times(entries, vector, P, R, KIND)
    out = ()
    for i in tl.static_range(P):
        value = total[i]
        if FORM == 0:
            value += scaled[i]
        else:
            for k in tl.static_range(R):
                if _exists(KIND, i, k):
                    value += scaled[P + _at(KIND, R, i, k)] * along[k]
        out = out + (value,)
    for i in tl.static_range(P):
        for j in tl.static_range(i + 1):
            value = total[P + _packed(i, j)]
            for k in tl.static_range(R):
                if _exists(KIND, i, k) and _exists(KIND, j, k):
                    value += scaled[P + _at(KIND, R, i, k)] * entries[_at(KIND, R, j, k)]
            out = out + (value,)
    return out


@triton.jit
def _store_sums(
    place, total, real, stride, WIDTH: tl.constexpr, ITEMS: tl.constexpr, LANES: tl.constexpr
):
    """Stores the sums over the lanes of each item.

    One lane of an item stores: if one lane each did for consecutive items, every column would be exchanged between
    lanes, through shared memory where there are several warps.
    """
    M: tl.constexpr = ITEMS * LANES
    real = real & (tl.arange(0, M) % LANES == 0)
    for k in tl.static_range(WIDTH):
        summed = tl.sum(tl.reshape(total[k], [ITEMS, LANES]), 1, keep_dims=True)
        summed = tl.reshape(tl.broadcast_to(summed, [ITEMS, LANES]), [M])
        tl.store(place + _wide(k) * stride, summed, mask=real)


@triton.jit(do_not_specialize=["num_items", "num_places"])
def sum_rows(
    raw,  # (B, n, K) with strides
    order,  # (n,) row of each position, or unused
    weight,  # (n,) by row, or unused
    bias,  # (K,) added to every row, or unused
    starts,  # (items,) first position of each item
    stops,  # (items,) one beyond the last
    places,  # (items,) where its sum goes
    out,  # (B, P + P(P+1)/2, places)
    num_items,
    num_places,
    stride_batch,
    stride_row,
    stride_column,
    P: tl.constexpr,
    R: tl.constexpr,
    KIND: tl.constexpr,
    FORM: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ITEMS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Sums the rows of every item."""
    M: tl.constexpr = ITEMS * LANES
    WIDTH: tl.constexpr = P + P * (P + 1) // 2
    lane = tl.arange(0, M)
    item = tl.program_id(0).to(tl.int64) * ITEMS + lane // LANES
    batch = tl.program_id(1).to(tl.int64)
    start = tl.load(starts + item, mask=item < num_items, other=0)
    stop = tl.load(stops + item, mask=item < num_items, other=0)
    longest = tl.max(stop - start, 0)
    total = _zeros(WIDTH, [M])
    for step in range(0, longest, LANES):
        position = start + step + lane % LANES
        live = position < stop
        row = position
        if HAS_ORDER:
            row = tl.load(order + position, mask=live, other=0)
        base = raw + batch * stride_batch + row * stride_row
        vector = _load(base, live, stride_column, bias, 0, P, HAS_BIAS)
        outputs = _load(base, live, stride_column, bias, P, _width(KIND, P, R), HAS_BIAS)
        entries = _factor(outputs, live, P, R, KIND)
        scaled = vector + entries
        if HAS_WEIGHT:
            scale = tl.load(weight + row, mask=live, other=0.0).to(tl.float32)
            scaled = _scaled(scaled, scale, P + _width(KIND, P, R))
        total = _add_information(total, vector, entries, scaled, P, R, KIND, FORM)
    place = tl.load(places + item, mask=item < num_items, other=0)
    _store_sums(out + batch * WIDTH * num_places + place, total, item < num_items, num_places, WIDTH, ITEMS, LANES)


@triton.jit
def _slope(entry):
    """Slope of softplus where it is ``entry``: 1 - exp(-entry), by its series where that would lose digits."""
    series = entry * (1.0 - entry * (0.5 - entry * 0.16666667))
    return tl.where(entry < 0.02, series, 1.0 - tl.exp(-entry))


@triton.jit(do_not_specialize=["num_items", "num_groups"])
def add_parts(
    parts,  # (B, W, items) sums of the items beyond each group's first
    heavy,  # (h,) groups that have such items
    bounds,  # (h + 1,) items of each
    out,  # (B, W, num_groups), added to
    num_items,
    num_groups,
    num_columns,  # B W
    LANES: tl.constexpr,
):
    """Adds the sums of items to their groups, in order."""
    group = tl.program_id(0) // num_columns
    column = (tl.program_id(0) % num_columns).to(tl.int64)  # batch and column together
    start = tl.load(bounds + group)
    stop = tl.load(bounds + group + 1)
    total = tl.zeros([LANES], tl.float32)
    for step in range(start, stop, LANES):
        place = step + tl.arange(0, LANES)
        total += tl.load(parts + column * num_items + place, mask=place < stop, other=0.0)
    target = out + column * num_groups + tl.load(heavy + group)
    tl.store(target, tl.load(target) + tl.sum(total, 0))


@triton.jit(do_not_specialize=["num_groups", "num_rows"])
def rows_backward(
    grad,  # (B, num_groups, P + P(P+1)/2)
    raw,  # (B, n, K) with strides
    weight,  # (n,), or unused
    owners,  # (n,) group of each row
    grad_raw,  # (B, n, K) with strides
    grad_weight,  # (B, n), or unused
    num_groups,
    num_rows,
    stride_batch,
    stride_row,
    stride_column,
    grad_stride_batch,
    grad_stride_row,
    grad_stride_column,
    P: tl.constexpr,
    R: tl.constexpr,
    KIND: tl.constexpr,
    FORM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEED_WEIGHT: tl.constexpr,
    LANES: tl.constexpr,
):
    """Gradients of rows, a lane for each, in any order: groups of any size are alike."""
    WIDTH: tl.constexpr = P + P * (P + 1) // 2
    batch = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    live = row < num_rows
    owner = tl.load(owners + row, mask=live, other=0)
    base = raw + batch * stride_batch + row * stride_row
    vector = _load(base, live, stride_column, 0, 0, P, False)
    outputs = _load(base, live, stride_column, 0, P, _width(KIND, P, R), False)
    entries = _factor(outputs, live, P, R, KIND)
    upstream = grad + (batch * num_groups + owner) * WIDTH
    g = _load(upstream, live, 1, 0, 0, P, False)  # of the score
    G = _load(upstream, live, 1, 0, P, WIDTH - P, False)  # of the packed Fisher matrix
    target = grad_raw + batch * grad_stride_batch + row * grad_stride_row
    scale = 1.0
    if HAS_WEIGHT:
        scale = tl.load(weight + row, mask=live, other=0.0).to(tl.float32)
    if NEED_WEIGHT:
        values = _add_information(_zeros(WIDTH, [LANES]), vector, entries, vector + entries, P, R, KIND, FORM)
        total = tl.zeros([LANES], tl.float32)
        for k in tl.static_range(P):
            total += g[k] * values[k]
        for k in tl.static_range(WIDTH - P):
            total += G[k] * values[P + k]
        tl.store(grad_weight + batch * num_rows + row, total, mask=live)
    back = g  # L^T g, where it is needed
    if FORM > 0:
        back = _transposed_times(entries, g, P, R, KIND)
    ahead = vector  # what multiplies g in the gradient of the factor
    if FORM == 2:
        ahead = _transposed_times(entries, vector, P, R, KIND)
    towards = g
    if FORM == 1:
        towards = back
    if FORM == 2:
        towards = _times(entries, back, P, R, KIND)
    for k in tl.static_range(P):
        spot = target + _wide(k) * grad_stride_column
        tl.store(spot, (scale * towards[k]).to(grad_raw.dtype.element_ty), mask=live)
    for i in tl.static_range(P):
        for k in tl.static_range(R):
            if _exists(KIND, i, k):
                total = tl.zeros([LANES], tl.float32)
                for j in tl.static_range(P):
                    if _exists(KIND, j, k):
                        total += (2.0 if i == j else 1.0) * G[_packed(i, j)] * entries[_at(KIND, R, j, k)]
                if FORM > 0:
                    total += g[i] * ahead[k]
                if FORM == 2:
                    total += vector[i] * back[k]
                if KIND < 2 and i == k:
                    total = total * tl.sigmoid(outputs[_at(KIND, R, i, k)])
                spot = target + _wide(P + _at(KIND, R, i, k)) * grad_stride_column
                tl.store(spot, (scale * total).to(grad_raw.dtype.element_ty), mask=live)
