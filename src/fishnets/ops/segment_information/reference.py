r"""The definition of the aggregation, in plain PyTorch.

The raw outputs of row :math:`i` are a vector :math:`a_i` and the entries of a factor :math:`L_i`. With the score
:math:`t_i` that the form makes of them,

.. math:: t_g = \sum_{i \in g} w_i t_i, \qquad F_g = \sum_{i \in g} w_i L_i L_i^\top, \qquad
          t_i = \begin{cases} a_i & \text{score} \\ L_i a_i & \text{regression} \\
          L_i L_i^\top a_i & \text{location.} \end{cases}

Sums are taken in a fixed order, without atomics, so they are the same from run to run.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fishnets.algebra.cholesky import factor_from_raw, fisher_packed_from_raw
from fishnets.algebra.packing import pack_symmetric
from fishnets.errors import DataError, describe_rows
from fishnets.ops.dispatch import transforms_active

__all__ = ["gradients", "information_rows", "segment_sum", "sum_information"]

NARROW = 3  # up to as many parameters, packed columns are faster than products of small matrices


def sum_information(
    raw: Tensor,
    num_params: int,
    ptr: Tensor,
    kind: str,
    form: str,
    weight: Tensor | None = None,
    order: Tensor | None = None,
    common_size: int | None = None,
) -> Tensor:
    """Sums (*, g, p + p(p+1)/2) over groups of raw outputs (*, n, p + w)."""
    if raw.dtype in (torch.float16, torch.bfloat16):
        raw = raw.float()  # sums need more
    rows = information_rows(raw, num_params, kind, form)
    if weight is not None:
        rows = rows * weight.to(rows).unsqueeze(-1)
    if order is not None:
        rows = rows.index_select(-2, order)
    return segment_sum(rows, ptr) if common_size is None else _equal_sum(rows, len(ptr) - 1, common_size)


def information_rows(raw: Tensor, num_params: int, kind: str = "full", form: str = "score") -> Tensor:
    """Score and packed Fisher matrix of each row, (*, p + p(p+1)/2), of raw outputs (*, p + w)."""
    vector, entries = raw[..., :num_params], raw[..., num_params:]
    if form == "score" and num_params <= NARROW:
        return torch.cat([vector, fisher_packed_from_raw(entries, num_params, kind)], dim=-1)
    factor = factor_from_raw(entries, num_params, kind)
    score = vector.unsqueeze(-1)
    if form == "location":
        score = factor.mT @ score
    if form != "score":
        score = factor @ score
    return torch.cat([score.squeeze(-1), pack_symmetric(factor @ factor.mT)], dim=-1)


def gradients(
    grad: Tensor,
    raw: Tensor,
    ptr: Tensor,
    weight: Tensor | None,
    order: Tensor | None,
    num_params: int,
    kind: str,
    form: str,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of outputs and weights that can be differentiated again."""
    total = sum_information(raw, num_params, ptr, kind, form, weight, order)
    inputs = [raw, weight] if need_weight and weight is not None else [raw]
    found = torch.autograd.grad(total, inputs, grad, create_graph=True)
    return found[0], found[-1]


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
    num_groups, num_rows = ptr.numel() - 1, rows.shape[-2]
    if torch.compiler.is_compiling() or rows.is_meta or transforms_active():
        index = torch.repeat_interleave(torch.arange(num_groups, device=ptr.device), ptr.diff(), output_size=num_rows)
        return rows.new_zeros((*rows.shape[:-2], num_groups, rows.shape[-1])).index_add(-2, index, rows)
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
