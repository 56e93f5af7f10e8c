"""Sets of unequal size, as one tensor of rows and the offsets that bound each set.

Nothing is padded inside: the rows of all sets lie one after another, and set ``i`` holds rows
``offsets[i]:offsets[i + 1]``. Whatever form data arrive in, they become this one, and results do not depend on
padding, order, batch-mates or chunking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fishnets.arrays import ArrayLike
from fishnets.errors import ConfigError, DataError, ShapeError, describe_rows
from fishnets.rows import (
    NonFinitePolicy,
    check_finite,
    offsets_from_sizes,
    rows_from_block,
    rows_from_index,
    rows_from_jagged,
    rows_from_list,
    rows_from_offsets,
    rows_from_padded,
)

__all__ = ["NonFinitePolicy", "Sets"]


@dataclass(frozen=True, eq=False)
class Sets:
    """A batch of sets: rows and offsets.

    Build one with :meth:`from_list`, :meth:`from_padded`, :meth:`from_block`, :meth:`from_offsets`, :meth:`from_index`
    or :meth:`from_jagged`, which check the data. Integers and half precision become float32; float64 stays, and is then
    computed with throughout.

    Args:
        values: Rows of all sets, shape (num_data, num_features), floating point.
        offsets: Bounds of the sets, int64, shape (num_sets + 1,), from 0 to num_data.
        dropped: Rows left out of each set because they were not finite, int64, shape (num_sets,).

    Example:
        >>> sets = Sets.from_list([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]])
        >>> sets.sizes, sets.num_features
        (tensor([1, 0, 2]), 2)
    """

    values: Tensor
    offsets: Tensor
    dropped: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise ShapeError(
                f"`values` has shape {tuple(self.values.shape)} but (num_data, num_features) was expected."
            )
        if not self.values.is_floating_point():
            raise DataError(
                f"`values` has dtype {self.values.dtype} but a floating-point one was expected; `Sets.from_offsets` "
                "and its like convert."
            )
        if self.offsets.ndim != 1 or len(self.offsets) < 1 or self.offsets.dtype != torch.int64:
            raise ShapeError(
                f"`offsets` has shape {tuple(self.offsets.shape)} and dtype {self.offsets.dtype} but (num_sets + 1,) "
                "and torch.int64 were expected."
            )

    @staticmethod
    def from_list(arrays: Sequence[ArrayLike], nonfinite: NonFinitePolicy = "raise") -> Sets:
        """Takes one array per set.

        Args:
            arrays: Arrays of shape (n_i, num_features), tensors, NumPy arrays or nested lists; n_i = 0 and 1 are fine.
            nonfinite: ``"raise"`` names the rows with NaN or infinite values, ``"drop"`` leaves them out and counts
                them.

        Returns:
            The sets in the given order.

        Example:
            >>> Sets.from_list([np.zeros((2, 3)), np.zeros((5, 3))])
            Sets(num_sets=2, num_data=7, num_features=3)
        """
        return Sets(*rows_from_list(arrays, nonfinite))

    @staticmethod
    def from_padded(values: ArrayLike, mask: ArrayLike, nonfinite: NonFinitePolicy = "raise") -> Sets:
        """Takes a padded block and the mask of its real rows; what the padding holds, NaN included, is never read.

        Args:
            values: Padded rows, shape (num_sets, n_max, num_features).
            mask: True (or 1) where a row is real, shape (num_sets, n_max).
            nonfinite: As in :meth:`from_list`.

        Example:
            >>> Sets.from_padded(torch.zeros(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1]])).sizes
            tensor([2, 3])
        """
        return Sets(*rows_from_padded(values, mask, nonfinite))

    @staticmethod
    def from_block(values: ArrayLike, nonfinite: NonFinitePolicy = "raise") -> Sets:
        """Takes sets of one size, shape (num_sets, n, num_features).

        Example:
            >>> Sets.from_block(torch.zeros(2, 4, 3)).sizes
            tensor([4, 4])
        """
        return Sets(*rows_from_block(values, nonfinite))

    @staticmethod
    def from_offsets(values: ArrayLike, offsets: ArrayLike, nonfinite: NonFinitePolicy = "raise") -> Sets:
        """Takes rows that already lie set after set.

        Args:
            values: Rows, shape (num_data, num_features).
            offsets: Bounds, shape (num_sets + 1,): 0 first, num_data last, never decreasing.
            nonfinite: As in :meth:`from_list`.

        Example:
            >>> Sets.from_offsets(torch.zeros(7, 3), [0, 2, 7]).sizes
            tensor([2, 5])
        """
        return Sets(*rows_from_offsets(values, offsets, nonfinite))

    @staticmethod
    def from_index(
        values: ArrayLike, index: ArrayLike, num_sets: int | None = None, nonfinite: NonFinitePolicy = "raise"
    ) -> Sets:
        """Takes rows in any order, each with the number of its set.

        Args:
            values: Rows, shape (num_data, num_features).
            index: Set of each row, shape (num_data,), from 0.
            num_sets: Number of sets; sets that no row names are empty. Default: the largest index plus one.
            nonfinite: As in :meth:`from_list`.

        Example:
            >>> Sets.from_index(torch.tensor([[1.0], [2.0], [3.0]]), [2, 0, 2]).sizes
            tensor([1, 0, 2])
        """
        return Sets(*rows_from_index(values, index, num_sets, nonfinite))

    @staticmethod
    def from_jagged(nested: Tensor, nonfinite: NonFinitePolicy = "raise") -> Sets:
        """Takes a torch nested tensor of jagged layout, shape (num_sets, *, num_features)."""
        return Sets(*rows_from_jagged(nested, nonfinite))

    @staticmethod
    def concatenate(parts: Sequence[Sets]) -> Sets:
        """Puts the sets of several batches one after another.

        Example:
            >>> a = Sets.from_offsets(torch.zeros(3, 1), [0, 3])
            >>> Sets.concatenate([a, a]).sizes
            tensor([3, 3])
        """
        if not parts:
            raise DataError("There are no batches of sets to concatenate.")
        widths = [part.num_features for part in parts]
        if len(set(widths)) > 1:
            raise ShapeError(f"The batches have {describe_rows(widths)} features; they must agree.")
        values = torch.cat([part.values for part in parts])
        offsets = offsets_from_sizes(torch.cat([part.sizes for part in parts]))
        return Sets(values, offsets, torch.cat([part._dropped for part in parts]))

    def union(self, other: Sets) -> Sets:
        """Joins two batches set by set: set i of the result holds the rows of both.

        Example:
            >>> a, b = Sets.from_offsets(torch.zeros(3, 1), [0, 3]), Sets.from_offsets(torch.ones(2, 1), [0, 2])
            >>> a.union(b).sizes
            tensor([5])
        """
        if len(self) != len(other) or self.num_features != other.num_features:
            raise ShapeError(
                f"Cannot join {len(self)} sets of width {self.num_features} with {len(other)} of width "
                f"{other.num_features}; both numbers must agree."
            )
        order = torch.argsort(torch.cat([self.index, other.index]), stable=True)
        values = torch.cat([self.values, other.values])[order]
        return Sets(values, self.offsets + other.offsets, self._dropped + other._dropped)

    @property
    def num_sets(self) -> int:
        """Number of sets."""
        return len(self.offsets) - 1

    @property
    def num_data(self) -> int:
        """Number of rows of all sets together."""
        return len(self.values)

    @property
    def num_features(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    @property
    def sizes(self) -> Tensor:
        """Number of rows of each set, shape (num_sets,)."""
        return self.offsets.diff()

    @cached_property
    def common_size(self) -> int | None:
        """The size of every set, or None when sizes differ or there are no sets."""
        if self.num_sets == 0:
            return None
        shortest, longest = torch.stack(self.sizes.aminmax()).tolist()
        return int(longest) if shortest == longest else None

    @property
    def index(self) -> Tensor:
        """Set of each row, shape (num_data,)."""
        sets = torch.arange(self.num_sets, device=self.values.device)
        return torch.repeat_interleave(sets, self.sizes, output_size=self.num_data)

    @property
    def _dropped(self) -> Tensor:
        return torch.zeros_like(self.sizes) if self.dropped is None else self.dropped

    @property
    def device(self) -> torch.device:
        """Device of the rows."""
        return self.values.device

    def __len__(self) -> int:
        return self.num_sets

    def __getitem__(self, key: int | slice | Tensor) -> Sets:
        """Selects sets: by number, slice, or tensor of numbers in any order."""
        if isinstance(key, slice):
            low, high, step = key.indices(len(self))
            if step == 1:
                high = max(low, high)
                bounds = self.offsets[low : high + 1]
                first = int(bounds[0])
                dropped = None if self.dropped is None else self.dropped[low:high]
                return Sets(self.values[first : int(bounds[-1])], bounds - first, dropped)
            key = torch.arange(low, high, step, device=self.device)
        elif isinstance(key, int | np.integer) or (isinstance(key, Tensor) and key.ndim == 0):
            key = int(key)
            if not -len(self) <= key < len(self):
                raise IndexError(f"Set {key} was asked for but there are {len(self)}.")
            key = torch.tensor([key % len(self)], device=self.device)
        if self.common_size is not None and self.dropped is None:
            block = self.values.reshape(len(self), self.common_size, self.num_features)[key]
            return _equal_sets(block.flatten(0, 1), len(block), self.common_size)
        sizes = self.sizes[key]
        offsets = offsets_from_sizes(sizes)
        shift = torch.repeat_interleave(self.offsets[:-1][key] - offsets[:-1], sizes)
        values = self.values[shift + torch.arange(len(shift), device=self.device)]
        return Sets(values, offsets, None if self.dropped is None else self.dropped[key])

    def to_list(self) -> list[Tensor]:
        """The rows of each set, views of shape (n_i, num_features)."""
        return list(torch.split(self.values, self.sizes.tolist()))

    def chunks(self, max_data: int) -> Iterator[tuple[int, Sets]]:
        """Cuts the rows into pieces of at most ``max_data``, through the middle of a set where need be.

        Yields:
            The number of the first set a piece touches, and the piece as sets: those it touches, in order.

        Example:
            >>> sets = Sets.from_offsets(torch.zeros(5, 1), [0, 1, 5])
            >>> [(first, piece.sizes.tolist()) for first, piece in sets.chunks(3)]
            [(0, [1, 2]), (1, [2])]
        """
        if max_data < 1:
            raise ConfigError(f"`max_data` is {max_data} but at least 1 was expected.")
        for low in range(0, self.num_data, max_data):
            high = min(low + max_data, self.num_data)
            first = int(torch.searchsorted(self.offsets, low, right=True)) - 1
            last = int(torch.searchsorted(self.offsets, high, right=False))
            bounds = self.offsets[first : last + 1].clamp(low, high) - low
            yield first, Sets(self.values[low:high], bounds)

    def thinned(self, max_size: int) -> Sets:
        """At most ``max_size`` rows of each set, evenly spaced through it.

        Example:
            >>> Sets.from_offsets(torch.arange(6.0).unsqueeze(1), [0, 4, 6]).thinned(2).values.flatten()
            tensor([1., 3., 4., 5.])
        """
        if max_size < 1:
            raise ConfigError(f"`max_size` is {max_size} but at least 1 was expected.")
        kept = self.sizes.clamp(max=max_size)
        offsets = offsets_from_sizes(kept)
        index = torch.repeat_interleave(torch.arange(len(self), device=self.device), kept)
        place = torch.arange(len(index), device=self.device) - offsets[index]
        row = self.offsets[index] + (2 * place + 1) * self.sizes[index] // (2 * kept[index])
        return Sets(self.values[row], offsets)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Sets:
        """Copies to a device or dtype."""
        dropped = None if self.dropped is None else self.dropped.to(device=device)
        return Sets(self.values.to(device=device, dtype=dtype), self.offsets.to(device=device), dropped)

    def check_finite(self) -> Sets:
        """Returns itself, or raises :class:`NonFiniteError` naming the first NaN or infinite rows by set and row."""
        check_finite(self.values, self.offsets)
        return self

    def __repr__(self) -> str:
        dropped = 0 if self.dropped is None else int(self.dropped.sum())
        note = f", dropped={dropped}" if dropped else ""
        return f"Sets(num_sets={self.num_sets}, num_data={self.num_data}, num_features={self.num_features}{note})"


def _equal_sets(values: Tensor, num_sets: int, size: int) -> Sets:
    """Sets known to be of one size, which need not be looked for again."""
    sets = Sets(values, size * torch.arange(num_sets + 1, device=values.device))
    sets.__dict__["common_size"] = size if num_sets else None
    return sets
