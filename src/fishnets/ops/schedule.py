"""How groups of very different sizes are cut into items of work for a GPU.

The first positions of every group are one item; what a larger group has beyond is cut into further items, whose sums
are added in order afterwards. So a group with all rows does not serialise the GPU, nothing is added atomically, and
results are the same from run to run. Items of about the same size come together, the largest first: those that run side
by side end together. A schedule is made once for given bounds, and remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.ops.memory import remembered

__all__ = ["Items", "Schedule", "owners", "schedule"]

REST = 2048  # positions of an item beyond a group's first


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


def schedule(ptr: Tensor, first: int, grain: int) -> Schedule:
    """Cuts the groups with these bounds into items.

    Args:
        ptr: Bounds of the groups, int64, shape (g + 1,).
        first: Most positions of a group's first item.
        grain: Sizes whose quotients by it are equal count as the same, and keep the order of the groups.

    Example:
        >>> found = schedule(torch.tensor([0, 1, 5000]), 256, 1)
        >>> found.first.place.tolist(), found.first.stops.tolist()
        ([1, 0], [257, 1])
        >>> found.rest.stops.tolist(), found.heavy.tolist(), found.bounds.tolist()
        ([2305, 4353, 5000], [1], [0, 3])
    """
    return remembered(ptr, ("schedule", first, grain), lambda: _schedule(ptr, first, grain))


def owners(ptr: Tensor, num_rows: int) -> Tensor:
    """The group of each position (n,), int32.

    Example:
        >>> owners(torch.tensor([0, 1, 3]), 3)
        tensor([0, 1, 1], dtype=torch.int32)
    """

    def find() -> Tensor:
        groups = torch.arange(len(ptr) - 1, device=ptr.device, dtype=torch.int32)
        return torch.repeat_interleave(groups, ptr.diff(), output_size=num_rows)

    return remembered(ptr, ("owners", num_rows), find)


def _schedule(ptr: Tensor, first: int, grain: int) -> Schedule:
    starts, stops = ptr[:-1], ptr[1:]
    sizes = stops - starts
    order = torch.argsort(sizes.clamp(max=first).div(grain, rounding_mode="floor"), descending=True, stable=True)
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
