"""Kernels of the CPU for messages along edges, forward and back, for float32: each reads and writes a row once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fishnets.ops.compilation import compiled

__all__ = ["pull_kernel", "send_kernel"]

ZERO = np.float32(0)


@cache
def send_kernel() -> Any:
    """Compiles the messages of the edges of the chunks ``first`` to ``last``, the last excluded."""

    def kernel(
        bounds,  # (chunks + 1,)
        source,  # (E,)
        x,  # (N, C)
        edge,  # (E, C)
        offset,  # (1,)
        out,  # (E, C)
        first,
        last,
    ):
        constant = offset[0]
        for e in range(bounds[first], bounds[last]):
            node = source[e]
            for c in range(x.shape[1]):
                value = x[node, c] + edge[e, c]
                out[e, c] = (ZERO if value < ZERO else value) + constant  # what is not a number stays so

    return compiled(kernel, "i1 i1 f2 f2 f1 f2")


@cache
def pull_kernel() -> Any:
    """Compiles the gradients of the blocks ``first`` to ``last`` of the channels, the last excluded."""

    def kernel(
        bounds,  # (blocks + 1,)
        source,  # (E,)
        x,  # (N, C)
        edge,  # (E, C)
        grad,  # (E, C)
        grad_x,  # (N, C), of zeros
        grad_edge,  # (E, C)
        first,
        last,
    ):
        start, stop = np.uint64(bounds[first]), np.uint64(bounds[last])  # signed places may count from the end
        for e in range(len(source)):
            node = np.uint64(source[e])
            for c in range(start, stop):
                grad_edge[e, c] = ZERO if x[node, c] + edge[e, c] <= ZERO else grad[e, c]
            for c in range(start, stop):  # apart: a loop that writes two arrays is not vectorised
                grad_x[node, c] += grad_edge[e, c]

    return compiled(kernel, "i1 i1 f2 f2 f2 f2 f2")
