r"""The sum of information over groups of rows, and its gradient, on the CPU.

A row holds a vector :math:`a` and the raw entries of a factor :math:`L`. Its information is
:math:`[t, \mathrm{pack}(L L^\top)]`, with :math:`t = a` (form ``"score"``), :math:`L a` (``"regression"``) or
:math:`L L^\top a` (``"location"``). Let :math:`[g, G]` be the gradient of a group's sum, and :math:`C` the symmetric
matrix with :math:`C_{ij} = G_{ij}` off the diagonal, where a packed entry stands for both halves, and
:math:`C_{ii} = 2 G_{ii}`. Then, for every row of the group and on the entries that its factor has,

.. math::
    \partial a &= g, \quad L^\top g, \quad L L^\top g \\
    \partial L &= C L + \{0, \quad g a^\top, \quad g (L^\top a)^\top + a (L^\top g)^\top\}

for the three forms in turn. The gradient of a row's weight is its share of the loss, which is
:math:`\partial a \cdot a + \tfrac12 \langle C L, L \rangle`, :math:`t` being linear in :math:`a` and :math:`F`
quadratic in :math:`L`. All of it is computed from the raw row, in registers: the forward pass stores the sums and
nothing else, the backward pass the gradients.

Long groups are cut into chunks, whose sums are added in order. Threads share chunks, so the result is the same to the
last bit for any number of them. The kernels are in :mod:`~fishnets.ops.segment_information.kernels_numba`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.ops.dispatch import HAS_NUMBA
from fishnets.ops.segment_information.kernels_numba import pull_kernel, sum_kernel
from fishnets.ops.segment_information.reference import segment_sum
from fishnets.ops.segment_information.registers_numba import Case
from fishnets.ops.threads import empty_like, run_ranges

__all__ = ["backward", "cut_groups", "forward", "obstacle", "optional"]

CHUNK = 1024  # most rows of a partial sum
MAX_PARAMS = 16  # the code of a kernel grows with the cube of p
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def obstacle(raw: Tensor, num_params: int, kind: str, form: str) -> str | None:
    """Why these kernels cannot run, or None when they can; they can for any kind and form.

    Example:
        >>> obstacle(torch.zeros(1, 4, 170), 17, "full", "score")
        '`num_params` is 17 and the CPU kernels are written out for at most 16'
    """
    if raw.device.type != "cpu":
        return f"`raw` is on {raw.device} and the CPU kernels need it on the CPU"
    if raw.dtype not in DTYPES:
        return f"`raw` is {raw.dtype} and the CPU kernels take float32, float64, bfloat16 and float16"
    if num_params > MAX_PARAMS:
        return f"`num_params` is {num_params} and the CPU kernels are written out for at most {MAX_PARAMS}"
    if not HAS_NUMBA:
        return "Numba is not installed; pip install 'fishnets[fast]'"
    return None


def forward(
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    r"""Sums the information of rows over groups.

    Nothing is checked: bounds or an order that do not fit ``raw`` read memory that is not theirs.

    Args:
        raw: Vectors and raw factor entries, shape :math:`(B, n, p + w)`, of any strides.
        num_params: Number of parameters :math:`p`.
        ptr: Bounds of the groups, int64, shape :math:`(g + 1,)`, rising from 0 to n.
        kind: Kind of factor: ``"full"``, ``"diagonal"`` or ``"rank-r"``.
        form: ``"score"``, ``"location"`` or, where the factor is square, ``"regression"``.
        weight: Scales of the rows, shape :math:`(n,)`.
        order: The row at each position, int64, shape :math:`(n,)`, a permutation; default: as they come.
        bias: Added to every row first, shape :math:`(p + w,)`.

    Returns:
        Score and packed Fisher matrix of each group, shape :math:`(B, g, p + p(p+1)/2)`, in float32 or better.
    """
    source, (bounds, chunks) = _at_least_float32(raw), cut_groups(ptr)
    dense = source.stride(-1) == 1
    flags = (dense, order is not None, bias is not None)
    kernel = sum_kernel(Case(num_params, kind, form, str(source.numpy().dtype), *flags))
    part = source.new_empty(len(raw), len(bounds) - 1, num_params + packed_size(num_params))
    run_ranges(kernel, len(raw), bounds, [*optional(source, weight, order, bias), source, part])
    return part if len(bounds) == len(ptr) else segment_sum(part, chunks)


def backward(
    grad_total: Tensor,
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    bias: Tensor | None = None,
    need_weight: bool = False,
) -> tuple[Tensor, Tensor | None]:
    r"""Pulls the gradient of the sums back to the rows.

    Args:
        grad_total: Gradient of what :func:`forward` returns, shape :math:`(B, g, p + p(p+1)/2)`.
        raw: As in :func:`forward`, like the arguments that follow.
        need_weight: Whether the gradient of the weight is asked for.

    Returns:
        Gradients of ``raw``, in its dtype, and of ``weight``, shape :math:`(n,)`, or None.
    """
    source, (bounds, chunks) = _at_least_float32(raw), cut_groups(ptr)
    grad = empty_like(source)
    dense = source.stride(-1) == grad.stride(-1) == 1
    flags = (dense, order is not None, bias is not None, need_weight)
    kernel = pull_kernel(Case(num_params, kind, form, str(source.numpy().dtype), *flags))
    grad_weight = source.new_empty(len(raw), raw.shape[1] if need_weight else 0)
    upstream = grad_total.detach().to(source.dtype)
    if len(bounds) != len(ptr):
        upstream = upstream.repeat_interleave(chunks.diff(), dim=1)  # (B, c, ...)
    given = optional(source, weight, order, bias)
    run_ranges(kernel, len(raw), bounds, [*given, source, upstream, grad, grad_weight])
    return grad.to(raw.dtype), grad_weight.sum(0) if need_weight else None


def _at_least_float32(raw: Tensor) -> Tensor:
    return raw.detach().to(torch.promote_types(raw.dtype, torch.float32))


def optional(source: Tensor, weight: Tensor | None, order: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """Order, weight and bias for a kernel, to which an empty tensor means none."""
    none = source.new_empty(0)
    numbers = [none if one is None else one.detach().to(source.dtype) for one in (weight, bias)]
    return [none.long() if order is None else order, *numbers]


def cut_groups(ptr: Tensor) -> tuple[Tensor, Tensor]:
    """First position of each chunk, shape (c + 1,), and first chunk of each group, shape (g + 1,), with the ends.

    In NumPy: PyTorch would wake its threads for so little.
    """
    starts = ptr.numpy()
    counts = np.maximum(1, -(-np.diff(starts) // CHUNK))
    chunks = np.concatenate([[0], np.cumsum(counts)])
    group = np.repeat(np.arange(len(counts)), counts)
    bounds = starts[group] + CHUNK * (np.arange(len(group)) - chunks[group])
    return torch.from_numpy(np.append(bounds, starts[-1:])), torch.from_numpy(chunks)
