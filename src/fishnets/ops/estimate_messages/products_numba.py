"""Products of matrices that fit into the cache of a core, for the kernels of the CPU.

A product is made in patches of :data:`ROWS` rows and a few vectors, which stay in registers while the depth is gone
through: a vector of the second factor is read once for all rows, a number of the first once for all vectors. With 24
accumulators of 512 bits a core of an EPYC does 105 GFLOP/s.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from fishnets.ops.segment_information.kernels_numba import intrinsic
from fishnets.ops.segment_information.registers_numba import Block, Case

__all__ = ["ROWS", "padded", "product_kernel", "vector_size"]

ROWS = 6


@cache
def _vectors() -> tuple[int, int]:
    """Bytes of a vector, and most vectors of a patch: as many as there are registers for."""
    from llvmlite import binding

    return (64, 4) if binding.get_host_cpu_features().get("avx512f") else (32, 2)


def vector_size(dtype: str) -> int:
    """Numbers of a vector."""
    return int(_vectors()[0] // np.dtype(dtype).itemsize)


def padded(count: int, step: int) -> int:
    """The multiple of a step that is not less than a count.

    Example:
        >>> padded(44, 16)
        48
    """
    return -(-count // step) * step


@cache
def product_kernel(dtype: str, add: bool) -> Any:
    """Compiles the product of two matrices, which is written to a third, or added to it.

    Their numbers lie side by side along a row, except for the first factor. The columns are a multiple of a vector, and
    the rows one of :data:`ROWS` where there is room: more of them than asked for are read and written.
    """
    import numba

    lanes, most = vector_size(dtype), _vectors()[1]
    case = Case(1, "full", "score", dtype, dense=True, ordered=False)
    one, two, three, four = (intrinsic(partial(_emit_patch, lanes, min(n, most), add), case) for n in (1, 2, 3, 4))

    def kernel(
        left: Any,  # (rows, depth)
        right: Any,  # (depth, columns)
        out: Any,  # (rows, columns)
        rows: int,
        depth: int,
    ) -> None:
        for column in range(0, out.shape[1], most * lanes):
            vectors = min(most, (out.shape[1] - column) // lanes)
            for row in range(0, rows, ROWS):
                if vectors == 4:
                    four((left, right, out, row, column, depth))
                elif vectors == 3:
                    three((left, right, out, row, column, depth))
                elif vectors == 2:
                    two((left, right, out, row, column, depth))
                else:
                    one((left, right, out, row, column, depth))

    f, i = numba.from_dtype(np.dtype(dtype)), numba.int64
    return numba.njit((f[:, :], f[:, :], f[:, :], i, i), nogil=True)(kernel)


def _emit_patch(
    lanes: int,
    vectors: int,
    add: bool,
    block: Block,
    left: Any,
    right: Any,
    out: Any,
    row: Any,
    column: Any,
    depth: Any,
) -> None:
    """Emits a loop over the depth, of which there is at least one, whose accumulators are ROWS times ``vectors``."""
    builder, whole, kind = block.builder, block.whole, block.ir.VectorType(block.number, lanes)
    rows = [builder.add(row, whole(n)) for n in range(ROWS)]
    steps, patch = [whole(n * lanes * block.size) for n in range(vectors)], list(product(range(ROWS), range(vectors)))
    starts, targets = [block.address(left, n) for n in rows], [block.address(out, n, column) for n in rows]
    places = {(n, v): builder.add(targets[n], steps[v]) for n, v in patch}
    before = {at: block.load(places[at], kind) if add else kind([0.0] * lanes) for at in patch}

    entry, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    first = block.address(right, 0, column)
    builder.branch(loop)
    builder.position_at_end(loop)
    count, skip, source = builder.phi(whole), builder.phi(whole), builder.phi(whole)
    sums = {at: builder.phi(kind) for at in patch}
    columns = [block.load(builder.add(source, step), kind) for step in steps]
    numbers = [_spread(block, block.load(builder.add(start, skip), block.number), kind) for start in starts]
    terms = {(n, v): builder.fmul(numbers[n], columns[v], flags=("contract",)) for n, v in patch}
    found = {at: builder.fadd(sums[at], terms[at], flags=("contract",)) for at in patch}
    following = builder.add(count, whole(1))
    moved = builder.add(skip, builder.extract_value(left.strides, 1))
    turns = [(count, whole(0), following), (skip, whole(0), moved)]
    turns += [(source, first, builder.add(source, builder.extract_value(right.strides, 0)))]
    for phi, initial, later in turns + [(sums[at], before[at], found[at]) for at in patch]:
        phi.add_incoming(initial, entry)
        phi.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)

    builder.position_at_end(after)
    for at in patch:
        block.store(found[at], places[at])


def _spread(block: Block, number: Any, kind: Any) -> Any:
    """A vector that is filled with a number."""
    none, index = kind(block.ir.Undefined), block.ir.IntType(32)
    one = block.builder.insert_element(none, number, index(0))
    return block.builder.shuffle_vector(one, none, block.ir.VectorType(index, kind.count)([0] * kind.count))
