"""Groups: rows that belong together, as bounds of consecutive positions and the row at each position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fishnets.errors import DataError, ShapeError, describe_rows
from fishnets.ops.memory import remembered

__all__ = ["Groups", "expect_bounds", "expect_order", "expect_rows", "group_rows"]


class Groups(NamedTuple):
    """Bounds of the groups (g + 1,), int64, and the row at each position (n,); None where rows are in order already."""

    ptr: Tensor
    order: Tensor | None


def group_rows(index: Tensor, num_groups: int) -> Groups:
    """Groups rows by the group of each, in any order; within a group, rows keep theirs.

    An index is sorted once, and its groups are remembered.

    Args:
        index: Group of each row, from 0 to ``num_groups`` - 1, int64, shape (n,).
        num_groups: Number of groups.

    Example:
        >>> group_rows(torch.tensor([1, 0, 1]), 2)
        Groups(ptr=tensor([0, 1, 3]), order=tensor([1, 0, 2]))
    """
    if torch.compiler.is_compiling() or index.is_meta:
        return _sorted(index, num_groups)[0]
    return remembered(index, ("groups", num_groups), lambda: _checked(index, num_groups))


def expect_bounds(ptr: Tensor, num_rows: int) -> None:
    """Raises unless bounds rise from 0 to the number of rows; they are looked at once, and never while compiling.

    Example:
        >>> expect_bounds(torch.tensor([0, 1, 3]), 3)
    """
    if ptr.ndim != 1 or ptr.numel() == 0 or ptr.dtype != torch.int64:
        raise ShapeError(f"`ptr` is {ptr.dtype} of shape {tuple(ptr.shape)} but int64 of shape (g + 1,) was expected.")
    if not torch.compiler.is_compiling() and not ptr.is_meta:
        remembered(ptr, ("bounds", num_rows), lambda: _expect_bounds(ptr, num_rows))


def expect_order(order: Tensor | None, num_rows: int) -> None:
    """Raises unless there is a row for each position; on a GPU, and while compiling, rows are not looked at.

    They are looked at every time: kernels read and write the memory that they name.

    Example:
        >>> expect_order(torch.tensor([1, 0]), 2)
    """
    if order is None:
        return
    if order.shape != (num_rows,) or order.dtype != torch.int64:
        raise ShapeError(
            f"`order` is {order.dtype} of shape {tuple(order.shape)} but int64 of shape ({num_rows},) was expected, "
            "the row at each position."
        )
    expect_rows("`order`", order, num_rows)


def expect_rows(name: str, rows: Tensor, num_rows: int) -> None:
    """Raises unless numbers of rows are of rows that there are; those on a CPU are looked at, outside of the compiler.

    Example:
        >>> expect_rows("`order`", torch.tensor([1, 0]), 2)
    """
    if rows.device.type != "cpu" or not rows.numel() or torch.compiler.is_compiling():
        return
    first, last = (int(one) for one in rows.aminmax())
    if first < 0 or last >= num_rows:
        raise DataError(f"{name} runs from {first} to {last} but there are {num_rows} rows, 0 to {num_rows - 1}.")


def _expect_bounds(ptr: Tensor, num_rows: int) -> None:
    lowest = ptr.diff().min() if len(ptr) > 1 else ptr.new_zeros(())
    first, last, lowest = torch.stack([ptr[0], ptr[-1], lowest]).tolist()
    if first != 0 or last != num_rows or lowest < 0:
        raise DataError(
            f"`ptr` must rise from 0 to the number of rows, {num_rows}, but it is {describe_rows(ptr.tolist())}."
        )


def _checked(index: Tensor, num_groups: int) -> Groups:
    found, (first, last) = _sorted(index, num_groups)
    if len(index) and not (int(first) >= 0 and int(last) < num_groups):
        raise DataError(
            f"`index` runs from {int(first)} to {int(last)} but there are {num_groups} groups, 0 to {num_groups - 1}."
        )
    assert found.order is not None
    in_order = bool((found.order.diff() > 0).all())
    return Groups(found.ptr, None) if in_order else found


def _sorted(index: Tensor, num_groups: int) -> tuple[Groups, tuple[Tensor, Tensor]]:
    ordered, order = torch.sort(index, stable=True)
    ptr = torch.searchsorted(ordered, torch.arange(num_groups + 1, device=index.device, dtype=index.dtype))
    ends = (ordered[0], ordered[-1]) if len(index) else (ordered.sum(), ordered.sum())
    return Groups(ptr, order), ends
