"""The kernels of the CPU: rows in, sums or gradients out, with the algebra in registers.

A block is :data:`LANES` rows of one group, and a register holds one column of it. The algebra is arithmetic on
registers, written out term by term for the given p, kind and form: an operation on :class:`Lanes` emits an instruction.
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
from itertools import product
from operator import add
from typing import Any, NamedTuple

import numpy as np

from fishnets.algebra.cholesky import factor_rank
from fishnets.algebra.packing import packed_size

__all__ = ["AHEAD", "LANES", "Case", "pull_kernel", "sum_kernel"]

LANES = 8  # a power of two; 16 take longer, for want of registers
AHEAD = 16  # positions between a row and one that is fetched from memory meanwhile, where rows are out of order


class Case(NamedTuple):
    """What a kernel is written out for."""

    num_params: int
    kind: str
    form: str
    dtype: str  # "float32" or "float64"
    dense: bool  # whether the columns of a row lie side by side, in ``raw`` and in its gradient
    ordered: bool  # whether there is an order
    biased: bool = False  # whether a bias is added to every row
    need_weight: bool = False  # whether the gradient of the weight is asked for

    @property
    def width(self) -> int:
        """Numbers of a row of information."""
        return self.num_params + packed_size(self.num_params)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """Row and column of the entries of the factor, in the order of the raw ones."""
        pairs = product(range(self.num_params), range(factor_rank(self.kind, self.num_params)))
        return [(i, k) for i, k in pairs if k == i or (self.kind != "diagonal" and (k < i or self.kind != "full"))]


@cache
def sum_kernel(case: Case) -> Any:
    """Compiles the sum of information over each of the chunks ``first`` to ``last``, the last excluded."""
    import numba

    add_block, finish, place = _intrinsic(_emit_sum, case), _intrinsic(_emit_finish, case), numba.njit(_place)
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

    pull_block, place, number = _intrinsic(_emit_pull, case), numba.njit(_place), np.dtype(case.dtype).type

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


def _place(rows: Any, scale: Any, start: int, end: int, order: Any, weight: Any, repeated: int) -> None:
    """Finds rows of a block, rows ahead and weights; a lane beyond the end has the last row, ``repeated`` times."""
    for lane in range(LANES):
        position = min(start + lane, end - 1)
        row = order[position] if len(order) else position
        rows[0, lane], scale[lane] = row, weight[row] if len(weight) else 1
        rows[1, lane] = order[min(position + AHEAD, len(order) - 1)] if len(order) else row
        if start + lane >= end:
            scale[lane] *= repeated


def _intrinsic(emit: Callable[..., None], case: Case) -> Any:
    """A function for Numba, of one tuple of arrays and whole numbers, that emits instructions where it is called."""
    from numba import types
    from numba.extending import intrinsic

    def definition(_: Any, operands: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            values = [builder.extract_value(args[0], n) for n in range(len(operands))]
            emit(
                _Block(builder, case),
                *(
                    context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
                    for kind, value in zip(operands, values, strict=True)
                ),
            )
            return context.get_dummy_value()

        return types.void(operands), generate

    return intrinsic(definition)


def _emit_sum(block: _Block, rows: Any, scale: Any, bias: Any, raw: Any, batch: Any, sums: Any) -> None:
    """Adds the information of a block to ``sums``, a register per number."""
    case, places = block.case, block.places(rows, 0)
    block.prefetch(raw, batch, block.places(rows, 1))
    weight, columns = block.read(scale), block.biased(block.read_columns(raw, batch, places), bias)
    L, _ = _factor(columns, case)
    for n, value in _information(columns[: case.num_params], L, case.form).items():
        block.write(block.read(sums, n) + value * weight, sums, n)


def _emit_finish(block: _Block, sums: Any, part: Any, batch: Any, chunk: Any) -> None:
    """Writes the sum of each register, by halves."""
    for n in range(block.case.width):
        total, step = block.read(sums, n), LANES // 2
        while step:
            total, step = total + block.turned(total, step), step // 2
        block.scatter(total, [block.address(part, batch, chunk, n)])


def _emit_pull(
    block: _Block,
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


def _operator(instruction: str) -> Callable[[Lanes, Lanes | float], Lanes]:
    def apply(left: Lanes, right: Lanes | float) -> Lanes:
        emit = getattr(left.builder, instruction)
        return Lanes(left.builder, emit(left.value, left.operand(right), flags=("contract",)))

    return apply


class Lanes:
    """A register with one number per row of a block; arithmetic on it emits instructions."""

    __add__, __sub__ = _operator("fadd"), _operator("fsub")
    __mul__, __truediv__ = _operator("fmul"), _operator("fdiv")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def operand(self, other: Lanes | float) -> Any:
        """The register of another, or one that is filled with a number."""
        return other.value if isinstance(other, Lanes) else self.value.type([other] * LANES)

    def where(self, relation: str, bound: float, yes: Lanes | float, no: Lanes | float) -> Lanes:
        """``yes`` in the lanes for which the relation to the bound holds, ``no`` in others and those of NaN."""
        condition = self.builder.fcmp_ordered(relation, self.value, self.operand(bound))
        return Lanes(self.builder, self.builder.select(condition, self.operand(yes), self.operand(no)))


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


class _Block:
    """Emits the reads and writes of a block of rows. Arrays are Numba's; addresses and indices are whole numbers."""

    def __init__(self, builder: Any, case: Case) -> None:
        from llvmlite import ir

        self.builder, self.case, self.size, self.ir = builder, case, np.dtype(case.dtype).itemsize, ir
        self.whole, self.number = ir.IntType(64), ir.FloatType() if case.dtype == "float32" else ir.DoubleType()
        self.vector, self.num_columns = ir.VectorType(self.number, LANES), case.num_params + len(case.entries)

    def address(self, array: Any, *index: Any) -> Any:
        """Where an element of an array is, or where a part of it starts."""
        at = self.builder.ptrtoint(array.data, self.whole)
        for n, place in enumerate(index):
            place = self.whole(place) if isinstance(place, int) else place
            at = self.builder.add(at, self.builder.mul(place, self.builder.extract_value(array.strides, n)))
        return at

    def _load(self, address: Any, kind: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=self.size)

    def _store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=self.size)

    def _shuffle(self, one: Any, other: Any, picks: Iterable[int]) -> Any:
        return self.builder.shuffle_vector(one, other, self.ir.VectorType(self.ir.IntType(32), LANES)(list(picks)))

    def places(self, rows: Any, which: int) -> list[Any]:
        """The rows of a block, or those ahead."""
        return [self._load(self.address(rows, which, lane), self.whole) for lane in range(LANES)]

    def read(self, array: Any, *index: Any) -> Lanes:
        """The LANES numbers of an array that lie side by side from an index on."""
        return Lanes(self.builder, self._load(self.address(array, *index), self.vector))

    def write(self, lanes: Lanes, array: Any, *index: Any) -> None:
        self._store(lanes.value, self.address(array, *index))

    def gather(self, addresses: Sequence[Any]) -> Lanes:
        """The number at the address of each lane."""
        value = self.vector([0.0] * LANES)
        for lane, address in enumerate(addresses):
            value = self.builder.insert_element(value, self._load(address, self.number), self.whole(lane))
        return Lanes(self.builder, value)

    def scatter(self, lanes: Lanes, addresses: Sequence[Any]) -> None:
        """Writes the first lanes, one to each address."""
        for lane, address in enumerate(addresses):
            self._store(self.builder.extract_element(lanes.value, self.whole(lane)), address)

    def turned(self, lanes: Lanes, step: int) -> Lanes:
        picks = ((lane + step) % LANES for lane in range(LANES))
        return Lanes(self.builder, self._shuffle(lanes.value, lanes.value, picks))

    def transposed(self, tile: Sequence[Lanes]) -> list[Lanes]:
        """Transposes LANES registers by log2(LANES) perfect shuffles, each of which interleaves the two halves."""
        values, half = [lanes.value for lanes in tile], LANES // 2
        for _ in range(half.bit_length()):
            pairs = product(zip(values[:half], values[half:], strict=True), (0, half))
            values = [
                self._shuffle(one, other, (first + n // 2 + LANES * (n % 2) for n in range(LANES)))
                for (one, other), first in pairs
            ]
        return [Lanes(self.builder, value) for value in values]

    def tiles(self) -> list[int]:
        """First columns of square tiles that cover dense rows; the last two may overlap."""
        fit = self.case.dense and self.num_columns >= LANES
        return [*range(0, self.num_columns - LANES, LANES), self.num_columns - LANES] if fit else []

    def read_columns(self, array: Any, batch: Any, places: Sequence[Any]) -> list[Lanes]:
        """A register per column of the rows at the given places."""
        columns: dict[int, Lanes] = {}
        for start in self.tiles():
            columns |= enumerate(self.transposed([self.read(array, batch, place, start) for place in places]), start)
        for n in range(len(columns), self.num_columns):
            columns[n] = self.gather([self.address(array, batch, place, n) for place in places])
        return list(columns.values())

    def biased(self, columns: Sequence[Lanes], bias: Any) -> list[Lanes]:
        """Columns with the bias of each added, where there is one."""
        if not self.case.biased:
            return list(columns)
        return [lanes + self.gather([self.address(bias, n)] * LANES) for n, lanes in enumerate(columns)]

    def write_columns(self, columns: Sequence[Lanes], array: Any, batch: Any, places: Sequence[Any]) -> None:
        for start in self.tiles():
            for place, row in zip(places, self.transposed(columns[start : start + LANES]), strict=True):
                self.write(row, array, batch, place, start)
        for n, lanes in enumerate([] if self.tiles() else columns):
            self.scatter(lanes, [self.address(array, batch, place, n) for place in places])

    def prefetch(self, array: Any, batch: Any, places: Sequence[Any]) -> None:
        """Asks for rows that are needed soon; without an order, memory is read ahead by itself."""
        flag, byte = self.ir.IntType(32), self.ir.IntType(8).as_pointer()
        kind = self.ir.FunctionType(self.ir.VoidType(), [byte, flag, flag, flag])
        fetch = self.builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        columns = [*range(0, self.num_columns, 64 // self.size), self.num_columns - 1]  # a line of cache is 64 bytes
        for place, column in product(places, columns) if self.case.ordered else ():
            address = self.builder.inttoptr(self.address(array, batch, place, column), byte)
            self.builder.call(fetch, [address, flag(0), flag(3), flag(1)])
