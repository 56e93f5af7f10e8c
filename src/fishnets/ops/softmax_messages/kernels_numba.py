"""Kernels of the CPU for sums weighted by a softmax, forward and back, for float32.

Groups are gone through one after the other, the channels of a message side by side in registers. Forward a group is
read twice, the second time from the cache: for its largest logits, then for the sums relative to them. The exponential
is a polynomial, because a call to the library's would keep loops from being vectorised.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, call-arg"

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from fishnets.ops.compilation import compiled

__all__ = ["pull_kernel", "sum_kernel"]

F = np.float32
LOWEST = F(-88.0)  # exp of less is no normal number: it gives 0 instead
LOG2_E = F(math.log2(math.e))
LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)  # the first has few bits, so that its multiples are exact
EXP = tuple(F(1 / math.factorial(n)) for n in (6, 5, 4, 3, 2))  # of a number of at most ln 2 / 2: 2e-7 of it are left


@cache
def _exponential() -> Any:
    """exp of a logit relative to the largest one; NaN of NaN."""
    import numba
    from numba.extending import intrinsic

    @intrinsic
    def float_of_bits(_, bits):
        def emit(context, builder, signature, values):
            return builder.bitcast(values[0], context.get_value_type(signature.return_type))

        return numba.float32(numba.int32), emit

    c6, c5, c4, c3, c2 = EXP

    @numba.njit
    def exponential(x: Any) -> Any:
        bounded = x if x > LOWEST else LOWEST
        halvings = np.floor(bounded * LOG2_E + F(0.5))
        rest = (bounded - halvings * LN2_HIGH) - halvings * LN2_LOW
        series = (((c6 * rest + c5) * rest + c4) * rest + c3) * rest + c2
        series = (series * rest + F(1)) * rest + F(1)
        power: Any = float_of_bits((np.int32(halvings) + np.int32(127)) << np.int32(23))
        return series * power + F(0) * x  # the last for NaN, which the bound takes away

    return exponential


@cache
def sum_kernel() -> Any:
    """Compiles the sums of the groups ``first`` to ``last``, the last excluded, with their largest logits and totals.

    Of a group without messages, these are 0 and 1.
    """
    exp = _exponential()

    def kernel(
        ptr,  # (g + 1,)
        order,  # (n,) or (0,)
        x,  # (n, C)
        temperature,  # (1,)
        out,  # (g, C)
        tops,  # (g, C)
        totals,  # (g, C)
        first,
        last,
    ):
        channels, slope = x.shape[1], temperature[0]
        for group in range(first, last):
            start, stop = ptr[group], ptr[group + 1]
            top, total, weighted = tops[group], totals[group], out[group]
            top[:], total[:], weighted[:] = -np.inf, 0, 0
            for position in range(start, stop):
                row = order[position] if len(order) else position
                for c in range(channels):
                    logit = slope * x[row, c]
                    top[c] = logit if logit > top[c] else top[c]
            for position in range(start, stop):
                row = order[position] if len(order) else position
                for c in range(channels):
                    share = exp(slope * x[row, c] - top[c])
                    total[c] += share
                    weighted[c] += share * x[row, c]
            if start == stop:
                top[:], total[:] = 0, 1
            for c in range(channels):
                weighted[c] /= total[c]

    return compiled(kernel, "i1 i1 f2 f1 f2 f2 f2")


@cache
def pull_kernel() -> Any:
    """Compiles the gradients of the messages of groups ``first`` to ``last``, and of the temperature by group."""
    exp = _exponential()

    def kernel(
        ptr,  # (g + 1,)
        order,  # (n,) or (0,)
        x,  # (n, C)
        temperature,  # (1,)
        grad,  # (g, C)
        out,  # (g, C)
        log_total,  # (g, C)
        grad_x,  # (n, C)
        grad_slope,  # (g, C)
        first,
        last,
    ):
        slope = temperature[0]
        for group in range(first, last):
            grad_slope[group, :] = 0
            for position in range(ptr[group], ptr[group + 1]):
                row = order[position] if len(order) else position
                for c in range(x.shape[1]):
                    value, away = x[row, c], x[row, c] - out[group, c]
                    share = grad[group, c] * exp(slope * value - log_total[group, c])
                    grad_x[row, c] = share * (F(1) + slope * away)
                    grad_slope[group, c] += share * value * away

    return compiled(kernel, "i1 i1 f2 f1 f2 f2 f2 f2 f2")
