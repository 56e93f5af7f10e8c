"""Groups: rows that belong together, as bounds of consecutive positions and the row at each position.

Grouping rows by an index takes a sort. The same index serves every layer and every epoch of a graph network, so the
groups of the last few indices are remembered, for as long as their tensors live and are not changed.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fishnets.errors import DataError

__all__ = ["Groups", "group_rows"]

REMEMBERED = 8


class Groups(NamedTuple):
    """Bounds of the groups (g + 1,), int64, and the row at each position (n,); None where rows are in order already."""

    ptr: Tensor
    order: Tensor | None


def group_rows(index: Tensor, num_groups: int) -> Groups:
    """Groups rows by the group of each, in any order; within a group, rows keep theirs.

    Args:
        index: Group of each row, from 0 to ``num_groups`` - 1, int64, shape (n,).
        num_groups: Number of groups.

    Example:
        >>> group_rows(torch.tensor([1, 0, 1]), 2)
        Groups(ptr=tensor([0, 1, 3]), order=tensor([1, 0, 2]))
    """
    if torch.compiler.is_compiling() or index.is_meta:
        return _sorted(index, num_groups)[0]
    key = _key(index, num_groups)
    if key is None:
        return _checked(index, num_groups)
    known = _MEMORY.get(key)
    if known is None or known[0]() is None:
        owner = index if index._base is None else index._base
        forget = partial(_forget, key)
        known = (weakref.ref(owner, forget), _checked(index, num_groups))
        while len(_MEMORY) >= REMEMBERED:
            _MEMORY.pop(next(iter(_MEMORY)))
        _MEMORY[key] = known
    return known[1]


_MEMORY: dict[tuple[object, ...], tuple[weakref.ref[Tensor], Groups]] = {}


def _forget(key: tuple[object, ...], _: object) -> None:
    _MEMORY.pop(key, None)


def _key(index: Tensor, num_groups: int) -> tuple[object, ...] | None:
    """What identifies an index: the tensor that owns its memory, its version, and which part of it this is."""
    if index.is_inference():
        return None  # has no version
    owner = index if index._base is None else index._base
    part = (index.storage_offset(), index.stride(), len(index))
    return id(owner), owner.data_ptr(), owner._version, part, num_groups


def _checked(index: Tensor, num_groups: int) -> Groups:
    found, (first, last) = _sorted(index, num_groups)
    if len(index) and not (int(first) >= 0 and int(last) < num_groups):
        raise DataError(
            f"`index` runs from {int(first)} to {int(last)} but there are {num_groups} groups, 0 to {num_groups - 1}."
        )
    assert found.order is not None
    in_order = bool((found.order.diff() > 0).all())  # once for an index: its groups are remembered
    return Groups(found.ptr, None) if in_order else found


def _sorted(index: Tensor, num_groups: int) -> tuple[Groups, tuple[Tensor, Tensor]]:
    ordered, order = torch.sort(index, stable=True)
    ptr = torch.searchsorted(ordered, torch.arange(num_groups + 1, device=index.device, dtype=index.dtype))
    ends = (ordered[0], ordered[-1]) if len(index) else (ordered.sum(), ordered.sum())
    return Groups(ptr, order), ends
