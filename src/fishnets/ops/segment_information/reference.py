r"""The definition of the aggregation, in plain PyTorch.

For the rows :math:`i` of group :math:`g`, with raw outputs split into a score :math:`t_i` and the entries of a factor
:math:`L_i`,

.. math:: t_g = \sum_{i \in g} t_i, \qquad F_g = \sum_{i \in g} L_i L_i^\top .

Only :math:`p + p(p+1)/2` numbers per row are ever written; sums are taken in a fixed order, without atomics, so they
are the same from run to run.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fishnets.algebra.cholesky import factor_width, fisher_packed_from_raw
from fishnets.errors import DataError, describe_rows, expect_last_dim

__all__ = ["segment_information", "segment_sum"]


def segment_information(
    score: Tensor,
    raw_factor: Tensor,
    ptr: Tensor,
    kind: str = "full",
    dtype: torch.dtype | None = None,
    common_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Sums score and Fisher matrix over each group of rows.

    Args:
        score: Per-row scores, shape :math:`(*, n, p)`.
        raw_factor: Per-row unconstrained factor entries, shape :math:`(*, n, w)`.
        ptr: Bounds of the groups, int64, shape :math:`(g + 1,)`, from 0 to n.
        kind: Kind of factor: ``"full"``, ``"diagonal"`` or ``"rank-r"``.
        dtype: Precision of the sums; default: that of the input.
        common_size: The size of every group, where the caller knows that they are equal; ``ptr`` is then not looked at.

    Returns:
        Summed scores :math:`(*, g, p)` and packed Fisher matrices :math:`(*, g, p(p+1)/2)`; zero for empty groups.

    Example:
        >>> score, raw = torch.ones(3, 1), torch.zeros(3, 1)
        >>> segment_information(score, raw, torch.tensor([0, 2, 2, 3]), "rank-1")
        (tensor([[2.],
                [0.],
                [1.]]), tensor([[0.],
                [0.],
                [0.]]))
    """
    num_params = score.shape[-1]
    expect_last_dim("raw_factor", raw_factor, factor_width(kind, num_params))
    if dtype is not None:
        score, raw_factor = score.to(dtype), raw_factor.to(dtype)
    rows = torch.cat([score, fisher_packed_from_raw(raw_factor, num_params, kind)], dim=-1)
    total = segment_sum(rows, ptr) if common_size is None else _equal_sum(rows, len(ptr) - 1, common_size)
    return total[..., :num_params], total[..., num_params:]


def segment_sum(rows: Tensor, ptr: Tensor) -> Tensor:
    """Sums consecutive rows group by group.

    Groups of one common size are reshaped and summed. Others are summed in two levels of at most about sqrt(n) rows
    each, so that one long group does not serialise a parallel device.

    Args:
        rows: Values, shape (*, n, c).
        ptr: Bounds of the groups, int64, shape (g + 1,), from 0 to n.

    Returns:
        Sums, shape (*, g, c).

    Example:
        >>> segment_sum(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 1, 3]))
        tensor([[1.],
                [6.]])
    """
    num_groups, num_rows = len(ptr) - 1, rows.shape[-2]
    if num_rows == 0 or num_groups == 0:
        return rows.new_zeros((*rows.shape[:-2], num_groups, rows.shape[-1])) + 0 * rows.sum()
    sizes = ptr.diff()
    first, last, shortest, longest = torch.stack([ptr[0], ptr[-1], sizes.min(), sizes.max()]).tolist()
    if first != 0 or last != num_rows or shortest < 0:  # torch.segment_reduce would read beyond the rows
        raise DataError(
            f"`ptr` must rise from 0 to the number of rows, {num_rows}, but it is {describe_rows(ptr.tolist())}."
        )
    if longest * num_groups == num_rows:
        return _equal_sum(rows, num_groups, longest)
    flat = rows.movedim(-2, 0).flatten(1)
    block = max(32, math.isqrt(longest))
    if longest > 4 * block:
        blocks = (sizes + block - 1).div(block, rounding_mode="floor")
        flat = _sum(flat, _split(ptr, blocks, block))
        ptr = torch.cat([ptr[:1], blocks.cumsum(0)])
    total = _sum(flat, ptr)
    return total.reshape(num_groups, *rows.shape[:-2], rows.shape[-1]).movedim(0, -2)


def _equal_sum(rows: Tensor, num_groups: int, size: int) -> Tensor:
    return rows.reshape(*rows.shape[:-2], num_groups, size, rows.shape[-1]).sum(-2)


def _split(ptr: Tensor, blocks: Tensor, block: int) -> Tensor:
    """Bounds of the groups cut into pieces of ``block`` rows, ``blocks`` pieces each."""
    first = torch.cat([blocks.new_zeros(1), blocks.cumsum(0)])
    group = torch.repeat_interleave(torch.arange(len(blocks), device=ptr.device), blocks)
    within = torch.arange(len(group), device=ptr.device) - first[group]
    return torch.cat([ptr[group] + within * block, ptr[-1:]])


def _sum(rows: Tensor, ptr: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(rows, ptr)  # type: ignore[no-untyped-call]
    return total


class _Sum(torch.autograd.Function):
    """Sum of consecutive rows; its gradient copies each group's to its rows."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor, ptr: Tensor) -> Tensor:
        ctx.save_for_backward(ptr)
        ctx.num_rows = len(rows)  # type: ignore[attr-defined]
        return torch.segment_reduce(rows.contiguous(), "sum", offsets=ptr, axis=0, initial=0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        (ptr,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return torch.repeat_interleave(grad, ptr.diff(), dim=0, output_size=ctx.num_rows), None  # type: ignore[attr-defined]
