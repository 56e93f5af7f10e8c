"""Means and softmax averages over the rows of each set, and linear maps of rows, for stacked members.

Sets of one common size are reshaped, and nothing is read back from the device; others are summed segment by segment.
Both give the same numbers. An empty set pools to zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fishnets.networks.ensemble import BLOCK, in_blocks
from fishnets.ops.segment_information import segment_sum
from fishnets.ragged import Sets

__all__ = ["apply_to_rows", "set_mean", "set_softmax", "set_sum", "with_values"]



def set_sum(rows: Tensor, sets: Sets) -> Tensor:
    """Sums over each set: (K, N, c) to (K, B, c)."""
    if sets.common_size is None:
        return segment_sum(rows, sets.offsets)
    return _by_set(rows, sets).sum(2)


def set_mean(rows: Tensor, sets: Sets) -> Tensor:
    """Means over each set: (K, N, c) to (K, B, c).

    Example:
        >>> sets = Sets.from_offsets(torch.zeros(3, 1), [0, 1, 1, 3])
        >>> set_mean(torch.tensor([[[1.0], [2.0], [4.0]]]), sets).flatten()
        tensor([1., 0., 3.])
    """
    if sets.common_size is None:
        return segment_sum(rows, sets.offsets) / sets.sizes.clamp(min=1).unsqueeze(-1)
    return _by_set(rows, sets).sum(2) / max(1, sets.common_size)


def set_softmax(logits: Tensor, sets: Sets) -> Tensor:
    """Weights of each set's rows that sum to one in every channel: (K, N, c) to (K, N, c).

    Example:
        >>> sets = Sets.from_offsets(torch.zeros(3, 1), [0, 1, 3])
        >>> set_softmax(torch.zeros(1, 3, 1), sets).flatten()
        tensor([1.0000, 0.5000, 0.5000])
    """
    if sets.common_size is not None:
        return torch.softmax(_by_set(logits, sets), dim=2).flatten(1, 2)
    index = sets.index
    peak = logits.new_full((len(logits), len(sets), logits.shape[-1]), -torch.inf)
    peak = peak.scatter_reduce(1, index.unsqueeze(-1).expand_as(logits), logits.detach(), "amax")
    weight = torch.exp(logits - peak[:, index])
    return weight / segment_sum(weight, sets.offsets)[:, index]  # at least one in every set that has rows


def apply_to_rows(layer: nn.Module, rows: Tensor) -> Tensor:
    """Applies stacked linear layers to rows (K or 1, N, c), on a GPU in blocks."""
    if not rows.is_cuda or rows.shape[1] <= BLOCK:
        return layer(rows)  # type: ignore[no-any-return]
    return layer(in_blocks(rows)).flatten(1, 2)[:, : rows.shape[1]]  # type: ignore[no-any-return]


def with_values(sets: Sets, values: Tensor) -> Sets:
    """The same sets with other rows; what is known of their sizes is not asked of the device again."""
    other = Sets(values, sets.offsets)
    other.__dict__["common_size"] = sets.common_size
    return other


def _by_set(rows: Tensor, sets: Sets) -> Tensor:
    """Rows (K, N, c) of sets of one size n as (K, B, n, c)."""
    assert sets.common_size is not None
    return rows.reshape(len(rows), len(sets), sets.common_size, rows.shape[-1])
