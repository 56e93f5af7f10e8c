"""The kernels of the CPU for small systems: plain loops over packed triangles, one system after the other.

A call to LAPACK for each matrix costs more than its arithmetic. Numba is imported when a kernel is first asked for.
A matrix that is not positive definite makes its own system NaN and no other.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

__all__ = ["backward_kernel", "solve_kernel"]


@cache
def solve_kernel() -> Any:
    """Compiles the solution and log-determinant of every system."""
    import numba

    factorise, substitute = numba.njit(_factorise, error_model="numpy"), numba.njit(_substitute, error_model="numpy")

    def kernel(
        score: Any,  # (n, p)
        precision: Any,  # (n, p(p+1)/2)
        estimate: Any,  # (n, p)
        log_determinant: Any,  # (n,)
    ) -> None:
        p = score.shape[1]
        L, inverse = np.empty(precision.shape[1], precision.dtype), np.empty(p, precision.dtype)
        for n in range(len(score)):
            factorise(precision[n], L, inverse)
            substitute(L, inverse, score[n], estimate[n])
            log_determinant[n] = -2 * np.log(inverse).sum()

    return numba.njit(kernel, nogil=True, error_model="numpy")


@cache
def backward_kernel() -> Any:
    """Compiles the gradients of every score and packed precision, as derived in ``fused.py``."""
    import numba

    factorise, substitute = numba.njit(_factorise, error_model="numpy"), numba.njit(_substitute, error_model="numpy")

    def kernel(
        grad_estimate: Any,  # (n, p)
        grad_log_determinant: Any,  # (n,), or (0,)
        precision: Any,  # (n, p(p+1)/2)
        estimate: Any,  # (n, p)
        grad_score: Any,  # (n, p)
        grad_precision: Any,  # (n, p(p+1)/2)
    ) -> None:
        p = estimate.shape[1]
        L, inverse = np.empty(precision.shape[1], precision.dtype), np.empty(p, precision.dtype)
        unit, column = np.zeros(p, precision.dtype), np.empty(p, precision.dtype)
        for n in range(len(estimate)):
            factorise(precision[n], L, inverse)
            towards, z, grad = grad_score[n], estimate[n], grad_precision[n]
            substitute(L, inverse, grad_estimate[n], towards)
            for i in range(p):
                for j in range(i):  # a packed entry off the diagonal stands for both halves
                    grad[i * (i + 1) // 2 + j] = -towards[i] * z[j] - towards[j] * z[i]
                grad[i * (i + 1) // 2 + i] = -towards[i] * z[i]
            if len(grad_log_determinant):
                for j in range(p):
                    unit[j] = 1
                    substitute(L, inverse, unit, column)
                    unit[j] = 0
                    for i in range(j, p):
                        grad[i * (i + 1) // 2 + j] += (1 if i == j else 2) * grad_log_determinant[n] * column[i]

    return numba.njit(kernel, nogil=True, error_model="numpy")


def _factorise(matrix: Any, L: Any, inverse: Any) -> None:
    """Packed Cholesky factor below its diagonal, and the reciprocals of the diagonal."""
    for i in range(len(inverse)):
        at_i = i * (i + 1) // 2
        for j in range(i + 1):
            at_j, value = j * (j + 1) // 2, matrix[at_i + j]
            for k in range(j):
                value -= L[at_i + k] * L[at_j + k]
            if i == j:
                inverse[i] = 1 / np.sqrt(value)
            else:
                L[at_i + j] = value * inverse[j]


def _substitute(L: Any, inverse: Any, vector: Any, x: Any) -> None:
    """Solves L L^T x = v."""
    p = len(inverse)
    for i in range(p):
        value = vector[i]
        for k in range(i):
            value -= L[i * (i + 1) // 2 + k] * x[k]
        x[i] = value * inverse[i]
    for back in range(p):
        i = p - 1 - back
        value = x[i]
        for k in range(i + 1, p):
            value -= L[k * (k + 1) // 2 + i] * x[k]
        x[i] = value * inverse[i]
