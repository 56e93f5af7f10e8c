"""The kernels of the CPU: messages in, sums of information or gradients out, with a linear layer inside.

A thread copies a tile of messages and multiplies it by the layer's weights; both stay in the cache of its core, where
the blocks of ``segment_information`` read outputs and write their gradients. From these and the messages, which are
still there, come the gradients of messages and of weights. Tiles do not end where groups do: a sum goes on in the next.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fishnets.ops.estimate_messages.products_numba import ROWS, padded, product_kernel
from fishnets.ops.segment_information.kernels_numba import emit_finish, emit_pull, emit_sum, intrinsic, place_rows
from fishnets.ops.segment_information.registers_numba import LANES, Block, Case

__all__ = ["TILE", "pull_kernel", "sum_kernel"]

TILE = 32 * ROWS  # messages of a tile: with outputs and the gradients of both, a fifth of a megabyte


@cache
def sum_kernel(case: Case) -> Any:
    """Compiles the sum of information over each of the chunks ``first`` to ``last``, the last excluded."""
    import numba

    add_block, finish, place = intrinsic(emit_sum, case), intrinsic(emit_finish, case), numba.njit(place_rows)
    multiply, aligned, fetch = product_kernel(case.dtype, add=False), numba.njit(_aligned), numba.njit(_fetch)
    number, width, look = np.dtype(case.dtype).type, case.width, _look(case)

    def kernel(
        bounds: Any,  # (c + 1,)
        order: Any,  # (n,) or (0,)
        weight: Any,  # (n,) or (0,)
        bias: Any,  # (K,)
        x: Any,  # (n, C)
        turned: Any,  # (C, K and padding)
        part: Any,  # (1, c, K)
        first: int,
        last: int,
    ) -> None:
        rows, scale, sums = np.empty((2, LANES), np.int64), np.empty(LANES, number), np.empty((width, LANES), number)
        tile, raw = aligned(number, TILE, x.shape[1]), aligned(number, TILE, turned.shape[1])
        scales, outputs, none = np.ones(TILE, number), raw.reshape(1, *raw.shape), np.empty(0, np.int64)
        begin = end = bounds[first]
        for chunk in range(first, last):
            sums[:] = 0
            start = bounds[chunk]
            while start < bounds[chunk + 1]:
                if start == end:
                    begin, end = end, min(end + TILE, bounds[last])
                    fetch(x, order, weight, begin, end, tile, scales)
                    multiply(tile, turned, raw, end - begin, x.shape[1])
                stop = min(bounds[chunk + 1], end)
                for at in range(start - begin, stop - begin, LANES):
                    place(rows, scale, at, stop - begin, none, scales, 0)
                    add_block((rows, scale, bias, outputs, 0, sums))
                    look(x, order, end + at, min(end + min(at + LANES, stop - begin), bounds[last]))
                start = stop
            finish((sums, part, 0, chunk))

    f, i = numba.from_dtype(np.dtype(case.dtype)), numba.int64
    signature = (i[:], i[:], f[:], f[:], f[:, ::1], f[:, :], f[:, :, :], i, i)
    return numba.njit(signature, nogil=True)(kernel)


@cache
def pull_kernel(case: Case) -> Any:
    """Compiles the gradients of the messages of chunks ``first`` to ``last``, the last excluded.

    The kernel returns these messages' shares of the gradients of weights (K, C) and bias (K,), with padding.
    """
    import numba

    pull_block, place, number = intrinsic(emit_pull, case), numba.njit(place_rows), np.dtype(case.dtype).type
    multiply, multiply_and_add = product_kernel(case.dtype, add=False), product_kernel(case.dtype, add=True)
    aligned, fetch, num_outputs = numba.njit(_aligned), numba.njit(_fetch), case.width
    num_rows, need_weight, look = padded(case.width, ROWS), case.need_weight, _look(case)

    def kernel(
        bounds: Any,  # (c + 1,)
        order: Any,  # (n,) or (0,)
        weight: Any,  # (n,) or (0,)
        bias: Any,  # (K,)
        x: Any,  # (n, C)
        turned: Any,  # (C, K and padding)
        lin: Any,  # (K, C and padding)
        upstream: Any,  # (1, c, K)
        grad: Any,  # (n, C)
        grad_weight: Any,  # (n,) or (0,)
        first: int,
        last: int,
    ) -> Any:
        rows, scale, none = np.empty((2, LANES), np.int64), np.empty(LANES, number), np.empty(0, np.int64)
        tile, raw = aligned(number, TILE, lin.shape[1]), aligned(number, TILE, turned.shape[1])
        back, ahead = aligned(number, TILE, lin.shape[1]), aligned(number, TILE, num_rows)
        scales, shares = np.ones(TILE, number), np.empty((1, TILE), number)
        outputs, slopes = raw.reshape(1, *raw.shape), ahead.reshape(1, *ahead.shape)
        grad_lin, grad_bias = aligned(number, num_rows, lin.shape[1]), np.zeros(num_outputs, number)
        chunk = first
        for begin in range(bounds[first], bounds[last], TILE):
            end = min(begin + TILE, bounds[last])
            fetch(x, order, weight, begin, end, tile, scales)
            multiply(tile, turned, raw, end - begin, x.shape[1])
            start = begin
            while start < end:
                while bounds[chunk + 1] <= start:
                    chunk += 1
                stop = min(bounds[chunk + 1], end)
                for at in range(start - begin, stop - begin, LANES):
                    place(rows, scale, at, stop - begin, none, scales, 1)
                    pull_block((rows, scale, bias, outputs, 0, upstream, chunk, slopes, shares))
                    look(x, order, end + at, min(end + min(at + LANES, stop - begin), bounds[last]))
                    if len(order):
                        look(grad, order, begin + at, begin + min(at + LANES, stop - begin))
                start = stop
            multiply(ahead, lin, back, end - begin, num_outputs)
            multiply_and_add(ahead.T, tile, grad_lin, num_outputs, end - begin)
            for at in range(end - begin):
                row = order[begin + at] if len(order) else begin + at
                for channel in range(x.shape[1]):  # loops, because slices take longer
                    grad[row, channel] = back[at, channel]
                for n in range(num_outputs):
                    grad_bias[n] += ahead[at, n]
                if need_weight:
                    grad_weight[row] = shares[0, at]
        return grad_lin, grad_bias

    f, i = numba.from_dtype(np.dtype(case.dtype)), numba.int64
    signature = (i[:], i[:], f[:], f[:], f[:, ::1], f[:, :], f[:, :], f[:, :, :], f[:, ::1], f[:], i, i)
    return numba.njit(signature, nogil=True)(kernel)


def _aligned(number: Any, num_rows: int, num_columns: int) -> Any:
    """Zeros that start where a line of the cache does: a vector that lies in two of them is read twice."""
    room = np.zeros(num_rows * num_columns + 64, number)
    skip = -room.ctypes.data % 64 // room.itemsize
    return room[skip : skip + num_rows * num_columns].reshape(num_rows, num_columns)


def _fetch(x: Any, order: Any, weight: Any, begin: int, end: int, tile: Any, scales: Any) -> None:
    """Copies messages and their weights."""
    for at in range(end - begin):
        row = order[begin + at] if len(order) else begin + at
        for channel in range(x.shape[1]):
            tile[at, channel] = x[row, channel]
        if len(weight):
            scales[at] = weight[row]


def _look(case: Case) -> Any:
    """Asks for messages of the next tile while blocks of this one are computed."""
    import numba

    ask, line = intrinsic(_emit_prefetch, case), 64 // np.dtype(case.dtype).itemsize

    def look(array: Any, order: Any, start: int, stop: int) -> None:
        for position in range(start, stop):
            row = order[position] if len(order) else position
            for channel in range(0, array.shape[1], line):
                ask((array, row, channel))

    return numba.njit(look)


def _emit_prefetch(block: Block, array: Any, row: Any, channel: Any) -> None:
    block.fetch(block.address(array, row, channel))
