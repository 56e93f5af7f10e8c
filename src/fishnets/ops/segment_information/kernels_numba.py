"""The kernels of the CPU: rows in, sums or gradients out, with the algebra in registers.

A register holds one column of a block of rows (``registers_numba.py``). The algebra is arithmetic on registers, written
out term by term for the given p, kind and form: an operation on :class:`Lanes` emits an instruction.
The zeros of a factor cost nothing and no matrix is stored. Numba compiles the loops over batches, chunks and blocks
around it. The last block of a chunk repeats its last row, which is added with weight zero and whose gradient is written
again.

Numba and llvmlite, which comes with it, are imported when the first kernel is asked for. A kernel is compiled for
arrays of any strides, and lets go of the interpreter while it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from operator import add
from typing import Any

import numpy as np

from fishnets.ops.segment_information.registers_numba import LANES, Block, Case, Lanes

__all__ = [
    "AHEAD",
    "emit_finish",
    "emit_pull",
    "emit_sum",
    "intrinsic",
    "place_rows",
    "pull_kernel",
    "sum_kernel",
]

AHEAD = 16  # positions between a row and one that is fetched from memory meanwhile, where rows are out of order


@cache
def sum_kernel(case: Case) -> Any:
    """Compiles the sum of information over each of the chunks ``first`` to ``last``, the last excluded."""
    import numba

    add_block, finish, place = intrinsic(emit_sum, case), intrinsic(emit_finish, case), numba.njit(place_rows)
    number, width = np.dtype(case.dtype).type, case.width

    def kernel(
        bounds: Any,  # (c + 1,)
        order: Any,  # (n,) or (0,)
        weight: Any,  # (n,) or (0,)
        bias: Any,  # (p + w,)
        raw: Any,  # (B, n, p + w)
        part: Any,  # (B, c, width)
        first: int,
        last: int,
    ) -> None:
        rows, scale, sums = np.empty((2, LANES), np.int64), np.empty(LANES, number), np.empty((width, LANES), number)
        for batch in range(len(raw)):
            for chunk in range(first, last):
                sums[:] = 0
                for start in range(bounds[chunk], bounds[chunk + 1], LANES):
                    place(rows, scale, start, bounds[chunk + 1], order, weight, 0)
                    add_block((rows, scale, bias, raw, batch, sums))
                finish((sums, part, batch, chunk))

    f, i = numba.from_dtype(np.dtype(case.dtype)), numba.int64
    return numba.njit((i[:], i[:], f[:], f[:], f[:, :, :], f[:, :, :], i, i), nogil=True)(kernel)


@cache
def pull_kernel(case: Case) -> Any:
    """Compiles the gradients of the rows of chunks ``first`` to ``last``, the last excluded."""
    import numba

    pull_block, place, number = intrinsic(emit_pull, case), numba.njit(place_rows), np.dtype(case.dtype).type

    def kernel(
        bounds: Any,  # (c + 1,)
        order: Any,  # (n,) or (0,)
        weight: Any,  # (n,) or (0,)
        bias: Any,  # (p + w,)
        raw: Any,  # (B, n, p + w)
        upstream: Any,  # (B, c, width)
        grad: Any,  # (B, n, p + w)
        grad_weight: Any,  # (B, n) or (B, 0)
        first: int,
        last: int,
    ) -> None:
        rows, scale = np.empty((2, LANES), np.int64), np.empty(LANES, number)
        for batch in range(len(raw)):
            for chunk in range(first, last):
                for start in range(bounds[chunk], bounds[chunk + 1], LANES):
                    place(rows, scale, start, bounds[chunk + 1], order, weight, 1)
                    pull_block((rows, scale, bias, raw, batch, upstream, chunk, grad, grad_weight))

    f, i = numba.from_dtype(np.dtype(case.dtype)), numba.int64
    signature = (i[:], i[:], f[:], f[:], f[:, :, :], f[:, :, :], f[:, :, :], f[:, :], i, i)
    return numba.njit(signature, nogil=True)(kernel)


def place_rows(rows: Any, scale: Any, start: int, end: int, order: Any, weight: Any, repeated: int) -> None:
    """Finds rows of a block, rows ahead and weights; a lane beyond the end has the last row, ``repeated`` times."""
    for lane in range(LANES):
        position = min(start + lane, end - 1)
        row = order[position] if len(order) else position
        rows[0, lane], scale[lane] = row, weight[row] if len(weight) else 1
        rows[1, lane] = order[min(position + AHEAD, len(order) - 1)] if len(order) else row
        if start + lane >= end:
            scale[lane] *= repeated


def intrinsic(emit: Callable[..., None], case: Case) -> Any:
    """A function for Numba, of one tuple of arrays and whole numbers, that emits instructions where it is called."""
    from numba import extending, types

    def definition(_: Any, operands: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [builder.extract_value(args[0], n) for n in range(len(operands))]
            emit(
                Block(builder, case),
                *(
                    context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
                    for kind, value in zip(operands, values, strict=True)
                ),
            )
            return context.get_dummy_value()

        return types.void(operands), generate

    return extending.intrinsic(definition)


def emit_sum(block: Block, rows: Any, scale: Any, bias: Any, raw: Any, batch: Any, sums: Any) -> None:
    """Adds the information of a block to ``sums``, a register per number."""
    case, places = block.case, block.places(rows, 0)
    block.prefetch(raw, batch, block.places(rows, 1))
    weight, columns = block.read(scale), block.biased(block.read_columns(raw, batch, places), bias)
    L, _ = _factor(columns, case)
    for n, value in _information(columns[: case.num_params], L, case.form).items():
        block.write(block.read(sums, n) + value * weight, sums, n)


def emit_finish(block: Block, sums: Any, part: Any, batch: Any, chunk: Any) -> None:
    """Writes the sum of each register, by halves."""
    for n in range(block.case.width):
        total, step = block.read(sums, n), LANES // 2
        while step:
            total, step = total + block.turned(total, step), step // 2
        block.scatter(total, [block.address(part, batch, chunk, n)])


def emit_pull(
    block: Block,
    rows: Any,
    scale: Any,
    bias: Any,
    raw: Any,
    batch: Any,
    upstream: Any,
    chunk: Any,
    grad: Any,
    grad_weight: Any,
) -> None:
    """Writes the gradients of a block."""
    case, places = block.case, block.places(rows, 0)
    for array in (raw, grad):
        block.prefetch(array, batch, block.places(rows, 1))
    weight, columns = block.read(scale), block.biased(block.read_columns(raw, batch, places), bias)
    L, slopes = _factor(columns, case)
    spread = [block.gather([block.address(upstream, batch, chunk, n)] * LANES) for n in range(case.width)]
    da, dL, share = _gradient(spread, columns[: case.num_params], L, case.form)
    dL |= {entry: dL[entry] * slope for entry, slope in slopes.items()}
    block.write_columns([lanes * weight for lanes in (*da, *dL.values())], grad, batch, places)
    if case.need_weight:
        block.scatter(share, [block.address(grad_weight, batch, place) for place in places])


Factor = dict[tuple[int, int], Lanes]  # the entries that are not always zero


def _total(terms: Iterable[Lanes]) -> Lanes:
    return reduce(add, terms)


def _polynomial(x: Lanes, coefficients: Sequence[float]) -> Lanes:
    """Horner's scheme; the coefficients rise from the constant."""
    value = x * coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        value = (value + coefficient) * x
    return value + coefficients[0]


def _exp_of_negative(x: Lanes, dtype: str) -> Lanes:
    """exp(x) = 2^n exp(x - n ln 2) for x <= 0, with n the nearest whole number, by Taylor's series."""
    from llvmlite import ir

    bits, mantissa, least, degree = (32, 23, -87.0, 7) if dtype == "float32" else (64, 52, -708.0, 13)
    whole, builder = ir.VectorType(ir.IntType(bits), LANES), x.builder
    x = x.where(">", least, x, least)
    power = builder.fptosi((x * math.log2(math.e) - 0.5).value, whole)
    n = Lanes(builder, builder.sitofp(power, x.value.type))
    high = round(math.log(2) * 4096) / 4096  # few digits, so that n times it is exact
    rest = x - n * high - n * (math.log(2) - high)
    exponent = builder.add(power, whole([2 ** (bits - mantissa - 2) - 1] * LANES))
    scale = builder.bitcast(builder.shl(exponent, whole([mantissa] * LANES)), x.value.type)
    return _polynomial(rest, [1 / math.factorial(k) for k in range(degree + 1)]) * Lanes(builder, scale)


def _softplus(x: Lanes, dtype: str) -> tuple[Lanes, Lanes]:
    """Softplus, which is max(x, 0) + ln(1 + e) with e the exponential of minus the size of x, and its slope."""
    e = _exp_of_negative(x.where("<", 0.0, x, x * -1.0), dtype)
    degree = 8 if dtype == "float32" else 18
    fit = np.polynomial.Chebyshev.interpolate(lambda e: np.log1p(e) / e, degree, domain=[0, 1])
    logarithm = e * _polynomial(e, fit.convert(kind=np.polynomial.Polynomial).coef.tolist())
    return x.where("<=", 0.0, 0.0, x) + logarithm, x.where("<", 0.0, e, 1.0) / (e + 1.0)


def _factor(columns: Sequence[Lanes], case: Case) -> tuple[Factor, Factor]:
    """The factor, and the slopes of those entries that softplus has made."""
    L, slopes = dict(zip(case.entries, columns[case.num_params :], strict=True)), {}
    if case.kind in ("full", "diagonal"):
        for i in range(case.num_params):
            L[i, i], slopes[i, i] = _softplus(L[i, i], case.dtype)
    return L, slopes


def _product(L: Factor, x: Sequence[Lanes]) -> list[Lanes]:
    return [_total(entry * x[k] for (i, k), entry in L.items() if i == row) for row in sorted({i for i, _ in L})]


def _transposed(L: Factor) -> Factor:
    return {(k, i): entry for (i, k), entry in L.items()}


def _lower(p: int) -> list[tuple[int, int]]:
    """Row and column of the entries of a packed triangle."""
    return [(i, j) for i in range(p) for j in range(i + 1)]


def _information(a: Sequence[Lanes], L: Factor, form: str) -> dict[int, Lanes]:
    """Score and packed Fisher matrix, by position; what is missing is zero."""
    response = _product(_transposed(L), a) if form == "location" else a
    row = dict(enumerate(a if form == "score" else _product(L, response)))
    for position, (i, j) in enumerate(_lower(len(a)), len(a)):
        terms = [L[i, k] * L[j, k] for k in range(len(a)) if (i, k) in L and (j, k) in L]
        if terms:
            row[position] = _total(terms)
    return row


def _gradient(
    upstream: Sequence[Lanes], a: Sequence[Lanes], L: Factor, form: str
) -> tuple[Sequence[Lanes], Factor, Lanes]:
    """Gradients of the vector, the factor and the weight, as derived in ``fused_cpu.py``, whose letters it uses."""
    p, g, C = len(a), upstream[: len(a)], {}
    for (i, j), entry in zip(_lower(p), upstream[p:], strict=True):
        C[i, j] = C[j, i] = entry + entry if i == j else entry
    dL = {(i, k): _total(C[i, j] * L[j, k] for j in range(p) if (j, k) in L) for i, k in L}
    fisher_share, da = _total(dL[entry] * L[entry] for entry in L) * 0.5, g
    if form == "regression":
        da, dL = _product(_transposed(L), g), {(i, k): dL[i, k] + g[i] * a[k] for i, k in L}
    if form == "location":
        u, v = _product(_transposed(L), a), _product(_transposed(L), g)
        da, dL = _product(L, v), {(i, k): dL[i, k] + g[i] * u[k] + a[i] * v[k] for i, k in L}
    return da, dL, _total([fisher_share, *(d * x for d, x in zip(da, a, strict=True))])
