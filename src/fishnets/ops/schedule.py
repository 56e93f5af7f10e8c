"""How groups of very different sizes are cut into items of work for a GPU.

The first positions of every group are one item; what a larger group has beyond is cut into further items, whose sums
are added in order afterwards. So a group with all rows does not serialise the GPU, nothing is added atomically, and
results are the same from run to run. Items of about the same size come together, the largest first: those that run side
by side end together. Among items of about the same size, neighbours stay near each other: what they read and write is
shared. A schedule is made once for given bounds, and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.ops.memory import remembered

__all__ = ["Items", "Schedule", "owners", "schedule"]

REST = 2048  # positions of an item beyond a group's first
GRAIN = 64  # positions: sizes that differ by less are about the same


@dataclass(frozen=True, eq=False)
class Items:
    """Runs of positions from ``starts`` to ``stops`` and the ``place`` of each one's sum; all (items,), int64."""

    starts: Tensor
    stops: Tensor
    place: Tensor


@dataclass(frozen=True, eq=False)
class Schedule:
    """The first item of every group, the items beyond, the groups (h,) that have those, and their bounds (h + 1,)."""

    first: Items
    rest: Items | None
    heavy: Tensor
    bounds: Tensor


def schedule(ptr: Tensor, first: int, window: int) -> Schedule:
    """Cuts the groups with these bounds into items.

    Args:
        ptr: Bounds of the groups, int64, shape (g + 1,).
        first: Most positions of a group's first item.
        window: How many neighbours are ordered by size, where sizes are about the same.

    Example:
        >>> found = schedule(torch.tensor([0, 1, 5000]), 256, 1)
        >>> found.first.place.tolist(), found.first.stops.tolist()
        ([1, 0], [257, 1])
        >>> found.rest.stops.tolist(), found.heavy.tolist(), found.bounds.tolist()
        ([2305, 4353, 5000], [1], [0, 3])
    """
    return remembered(ptr, ("schedule", first, window), lambda: _schedule(ptr, first, window))


def owners(ptr: Tensor, num_rows: int, order: Tensor | None = None) -> Tensor:
    """The group of each row (n,), int32; ``order`` has the row at each position, where they differ.

    Example:
        >>> owners(torch.tensor([0, 1, 3]), 3)
        tensor([0, 1, 1], dtype=torch.int32)
        >>> owners(torch.tensor([0, 1, 3]), 3, torch.tensor([2, 0, 1]))
        tensor([1, 1, 0], dtype=torch.int32)
    """

    def by_position() -> Tensor:
        groups = torch.arange(len(ptr) - 1, device=ptr.device, dtype=torch.int32)
        return torch.repeat_interleave(groups, ptr.diff(), output_size=num_rows)

    found = remembered(ptr, ("owners", num_rows), by_position)
    if order is None:
        return found
    rows = order

    def by_row() -> tuple[Tensor, Tensor]:  # `found` beside it: while that is kept, no other tensor has its identity
        return found, torch.zeros_like(found).scatter_(0, rows, found)

    return remembered(rows, ("owners", id(found)), by_row)[1]


def _schedule(ptr: Tensor, first: int, window: int) -> Schedule:
    starts, stops = ptr[:-1], ptr[1:]
    sizes = stops - starts
    missing = first - sizes.clamp(max=first)
    near = torch.arange(len(sizes), device=ptr.device).div(window, rounding_mode="floor")
    about = missing.div(GRAIN, rounding_mode="floor") * (len(sizes) + 1) + near
    order = torch.argsort(about * (first + 1) + missing, stable=True)
    light = Items(starts[order], torch.minimum(stops, starts + first)[order], order)
    heavy = (sizes > first).nonzero().flatten()
    pieces = (sizes[heavy] - first + REST - 1).div(REST, rounding_mode="floor")
    bounds = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    if len(heavy) == 0:
        return Schedule(light, None, heavy, bounds)
    count = int(bounds[-1])
    owner = torch.repeat_interleave(torch.arange(len(heavy), device=ptr.device), pieces, output_size=count)
    item = torch.arange(count, device=ptr.device)
    begin = starts[heavy][owner] + first + (item - bounds[owner]) * REST
    rest = Items(begin, torch.minimum(begin + REST, stops[heavy][owner]), item)
    return Schedule(light, rest, heavy, bounds)
