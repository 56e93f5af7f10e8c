"""Triton kernels that solve many small positive-definite systems: a lane owns a system and holds it in registers.

Matrices are packed lower triangles and lie column by column, (p(p+1)/2, n) in memory, so that loads are coalesced. All
loops over entries are unrolled at compile time.
"""

# Kernels are typed by Triton when they are launched, not by annotations.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment, attr-defined"

import triton
import triton.language as tl

from fishnets.ops.segment_information.kernels_triton import _packed, _wide

__all__ = ["solve", "solve_backward"]


@triton.jit
def _load(base, place, real, stride, COUNT: tl.constexpr, OTHER: tl.constexpr):
    columns = ()
    for k in tl.static_range(COUNT):
        columns = columns + (tl.load(base + place + _wide(k) * stride, mask=real, other=OTHER),)
    return columns


@triton.jit
def _cholesky(matrix, P: tl.constexpr):
    """Packed lower factor below its diagonal, and the reciprocals of the diagonal."""
    lower = ()
    inverse = ()
    for i in tl.static_range(P):
        for j in tl.static_range(i + 1):
            value = matrix[_packed(i, j)]
            for k in tl.static_range(j):
                value -= lower[_packed(i, k)] * lower[_packed(j, k)]
            if j < i:
                lower = lower + (value * inverse[j],)
            else:
                inverse = inverse + (tl.div_rn(1.0, tl.sqrt_rn(value)),)
                lower = lower + (value,)  # never read: keeps the places of a packed triangle
    return lower, inverse


@triton.jit
def _substitute(lower, inverse, vector, P: tl.constexpr):
    """Solves L L^T x = v."""
    ahead = ()
    for i in tl.static_range(P):
        value = vector[i]
        for k in tl.static_range(i):
            value -= lower[_packed(i, k)] * ahead[k]
        ahead = ahead + (value * inverse[i],)
    solution = ()
    for back in tl.static_range(P):
        value = ahead[P - 1 - back]
        for k in tl.static_range(back):  # solution holds the unknowns P - back, ..., P - 1
            value -= lower[_packed(P - back + k, P - 1 - back)] * solution[k]
        solution = (value * inverse[P - 1 - back],) + solution
    return solution


@triton.jit
def _inverse(lower, inverse, P: tl.constexpr):
    """Packed inverse of L L^T, by way of that of L."""
    M = ()
    for i in tl.static_range(P):
        for j in tl.static_range(i):
            value = lower[_packed(i, j)] * inverse[j]
            for k in tl.static_range(i):
                if k > j:
                    value += lower[_packed(i, k)] * M[_packed(k, j)]
            M = M + (-value * inverse[i],)
        M = M + (inverse[i],)
    out = ()
    for i in tl.static_range(P):
        for j in tl.static_range(i + 1):
            value = M[_packed(i, i)] * M[_packed(i, j)]
            for k in tl.static_range(P):
                if k > i:
                    value += M[_packed(k, i)] * M[_packed(k, j)]
            out = out + (value,)
    return out


@triton.jit
def solve(
    score,  # (p, n)
    precision,  # (p(p+1)/2, n)
    estimate,  # (p, n)
    log_determinant,  # (n,)
    num_systems,
    P: tl.constexpr,
    LANES: tl.constexpr,
):
    """Solution and log-determinant of every system."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = place < num_systems
    lower, inverse = _cholesky(_load(precision, place, real, num_systems, P * (P + 1) // 2, 1.0), P)
    solution = _substitute(lower, inverse, _load(score, place, real, num_systems, P, 0.0), P)
    total = tl.zeros([LANES], tl.float32)
    for i in tl.static_range(P):
        tl.store(estimate + _wide(i) * num_systems + place, solution[i], mask=real)
        total -= 2.0 * tl.log(inverse[i])
    tl.store(log_determinant + place, total, mask=real)


@triton.jit
def solve_backward(
    grad_estimate,  # (p, n)
    grad_log_determinant,  # (n,), or unused
    precision,  # (p(p+1)/2, n)
    estimate,  # (p, n)
    grad_score,  # (p, n)
    grad_precision,  # (p(p+1)/2, n)
    num_systems,
    P: tl.constexpr,
    LANES: tl.constexpr,
    NEED_LOG: tl.constexpr,
):
    """Gradients of score and packed precision: lambda = A^-1 g, -(lambda z^T + z lambda^T), and A^-1."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    real = place < num_systems
    lower, inverse = _cholesky(_load(precision, place, real, num_systems, P * (P + 1) // 2, 1.0), P)
    z = _load(estimate, place, real, num_systems, P, 0.0)
    towards = _substitute(lower, inverse, _load(grad_estimate, place, real, num_systems, P, 0.0), P)
    for i in tl.static_range(P):
        tl.store(grad_score + _wide(i) * num_systems + place, towards[i], mask=real)
    for i in tl.static_range(P):
        for j in tl.static_range(i + 1):
            value = -towards[i] * z[j]
            if i > j:
                value -= towards[j] * z[i]
            tl.store(grad_precision + _wide(_packed(i, j)) * num_systems + place, value, mask=real)
    if NEED_LOG:
        scale = tl.load(grad_log_determinant + place, mask=real, other=0.0)
        whole = _inverse(lower, inverse, P)
        for i in tl.static_range(P):
            for j in tl.static_range(i + 1):
                spot = grad_precision + _wide(_packed(i, j)) * num_systems + place
                value = (1.0 if i == j else 2.0) * scale * whole[_packed(i, j)]
                tl.store(spot, tl.load(spot, mask=real, other=0.0) + value, mask=real)
