"""Registers of the CPU: blocks of rows, read and written column by column, with arithmetic that emits instructions.

A block is :data:`LANES` rows of one group, and a register holds one column of it. llvmlite, which comes with Numba, is
imported when the first block is written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from fishnets.algebra.cholesky import factor_rank
from fishnets.algebra.packing import packed_size

__all__ = ["LANES", "Block", "Case", "Lanes"]

LANES = 8  # a power of two; 16 take longer, for want of registers


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


class Block:
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

    def load(self, address: Any, kind: Any) -> Any:
        """What lies at an address, a number or numbers side by side."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=self.size)

    def store(self, value: Any, address: Any) -> None:
        """Writes it there."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=self.size)

    def _shuffle(self, one: Any, other: Any, picks: Iterable[int]) -> Any:
        return self.builder.shuffle_vector(one, other, self.ir.VectorType(self.ir.IntType(32), LANES)(list(picks)))

    def places(self, rows: Any, which: int) -> list[Any]:
        """The rows of a block, or those ahead."""
        return [self.load(self.address(rows, which, lane), self.whole) for lane in range(LANES)]

    def read(self, array: Any, *index: Any) -> Lanes:
        """The LANES numbers of an array that lie side by side from an index on."""
        return Lanes(self.builder, self.load(self.address(array, *index), self.vector))

    def write(self, lanes: Lanes, array: Any, *index: Any) -> None:
        self.store(lanes.value, self.address(array, *index))

    def gather(self, addresses: Sequence[Any]) -> Lanes:
        """The number at the address of each lane."""
        value = self.vector([0.0] * LANES)
        for lane, address in enumerate(addresses):
            value = self.builder.insert_element(value, self.load(address, self.number), self.whole(lane))
        return Lanes(self.builder, value)

    def scatter(self, lanes: Lanes, addresses: Sequence[Any]) -> None:
        """Writes the first lanes, one to each address."""
        for lane, address in enumerate(addresses):
            self.store(self.builder.extract_element(lanes.value, self.whole(lane)), address)

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

    def fetch(self, address: Any) -> None:
        """Asks for a line of the cache, which is 64 bytes."""
        flag, byte = self.ir.IntType(32), self.ir.IntType(8).as_pointer()
        kind = self.ir.FunctionType(self.ir.VoidType(), [byte, flag, flag, flag])
        intrinsic = self.builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        self.builder.call(intrinsic, [self.builder.inttoptr(address, byte), flag(0), flag(3), flag(1)])

    def prefetch(self, array: Any, batch: Any, places: Sequence[Any]) -> None:
        """Asks for rows that are needed soon; without an order, memory is read ahead by itself."""
        columns = [*range(0, self.num_columns, 64 // self.size), self.num_columns - 1]
        for place, column in product(places, columns) if self.case.ordered else ():
            self.fetch(self.address(array, batch, place, column))
