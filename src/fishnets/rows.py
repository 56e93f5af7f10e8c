"""Rows of sets, read from whatever form they arrive in.

Lists of arrays, blocks, padded blocks, offsets, indices and jagged tensors all become the same two tensors: the rows of
all sets one after another, and the offsets that bound each set. Rows with NaN or infinite values are refused by name,
or left out and counted. :class:`fishnets.Sets` says what each form means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_float, as_integers, as_rows, as_tensor
from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError, describe_rows

__all__ = [
    "NonFinitePolicy",
    "Rows",
    "check_finite",
    "offsets_from_sizes",
    "rows_from_block",
    "rows_from_index",
    "rows_from_jagged",
    "rows_from_list",
    "rows_from_offsets",
    "rows_from_padded",
]

NonFinitePolicy = Literal["raise", "drop"]

# values (num_data, num_features); offsets (num_sets + 1,), int64; rows left out of each set (num_sets,), None for none
Rows = tuple[Tensor, Tensor, Tensor | None]


def rows_from_list(arrays: Sequence[ArrayLike], nonfinite: NonFinitePolicy) -> Rows:
    """Rows of one array per set, shape (n_i, num_features).

    Example:
        >>> rows_from_list([[[1.0], [2.0]], [], [[3.0]]], "raise")[1]
        tensor([0, 2, 2, 3])
    """
    if len(arrays) == 0:
        raise DataError("The list of sets is empty; at least one set was expected (a set may hold no rows).")
    tensors = [as_float(array, f"sets[{i}]") for i, array in enumerate(arrays)]
    widths = [t.shape[1] for t in tensors if t.ndim == 2 and (t.shape[0] > 0 or t.shape[1] > 0)]
    if not widths and all(t.numel() == 0 for t in tensors):
        raise DataError(
            "Every set is empty and none tells the number of features. Give empty sets the shape (0, num_features)."
        )
    width = widths[0] if widths else 1
    rows = [as_rows(t, width, f"sets[{i}]") for i, t in enumerate(tensors)]
    dtype = torch.float64 if any(r.dtype == torch.float64 for r in rows) else torch.float32
    sizes = torch.tensor([len(r) for r in rows], dtype=torch.int64, device=rows[0].device)
    values = torch.cat([r.to(dtype=dtype, device=rows[0].device) for r in rows])
    return _checked(values, offsets_from_sizes(sizes), nonfinite)


def rows_from_padded(values: ArrayLike, mask: ArrayLike, nonfinite: NonFinitePolicy) -> Rows:
    """Rows of a padded block, shape (num_sets, n_max, num_features), where its mask (num_sets, n_max) is true."""
    block = as_float(values, "values")
    chosen = as_tensor(mask, "mask").to(block.device)
    if block.ndim != 3 or chosen.shape != block.shape[:2]:
        raise ShapeError(
            f"`values` has shape {tuple(block.shape)} and `mask` {tuple(chosen.shape)} but (num_sets, n_max, "
            "num_features) and (num_sets, n_max) were expected."
        )
    if chosen.dtype != torch.bool:
        if not bool(((chosen == 0) | (chosen == 1)).all()):
            raise DataError("`mask` holds values other than 0 and 1; give a boolean mask, True where a row is real.")
        chosen = chosen != 0
    return _checked(block[chosen], offsets_from_sizes(chosen.sum(1)), nonfinite)


def rows_from_block(values: ArrayLike, nonfinite: NonFinitePolicy) -> Rows:
    """Rows of sets of one size, shape (num_sets, n, num_features)."""
    block = as_float(values, "values")
    if block.ndim != 3:
        raise ShapeError(f"`values` has shape {tuple(block.shape)} but (num_sets, n, num_features) was expected.")
    offsets = block.shape[1] * torch.arange(block.shape[0] + 1, device=block.device)
    return _checked(block.flatten(0, 1), offsets, nonfinite)


def rows_from_offsets(values: ArrayLike, offsets: ArrayLike, nonfinite: NonFinitePolicy) -> Rows:
    """Rows that lie set after set, shape (num_data, num_features), with their bounds, shape (num_sets + 1,)."""
    rows = as_float(values, "values")
    bounds = as_integers(offsets, "offsets", rows.device)
    if rows.ndim != 2:
        raise ShapeError(f"`values` has shape {tuple(rows.shape)} but (num_data, num_features) was expected.")
    if len(bounds) < 2:
        raise DataError("`offsets` bounds no set; at least [0, num_data] was expected.")
    if int(bounds[0]) != 0 or int(bounds[-1]) != len(rows) or bool((bounds.diff() < 0).any()):
        raise DataError(
            f"`offsets` must rise from 0 to the number of rows, {len(rows)}, but it runs from {int(bounds[0])} to "
            f"{int(bounds[-1])}" + (" and decreases on the way." if bool((bounds.diff() < 0).any()) else ".")
        )
    return _checked(rows, bounds, nonfinite)


def rows_from_index(values: ArrayLike, index: ArrayLike, num_sets: int | None, nonfinite: NonFinitePolicy) -> Rows:
    """Rows in any order, shape (num_data, num_features), each with the number of its set, shape (num_data,)."""
    rows = as_float(values, "values")
    groups = as_integers(index, "index", rows.device)
    if rows.ndim != 2 or len(groups) != len(rows):
        raise ShapeError(
            f"`values` has shape {tuple(rows.shape)} and `index` {tuple(groups.shape)} but (num_data, "
            "num_features) and (num_data,) were expected."
        )
    if num_sets is None:
        if len(groups) == 0:
            raise DataError("There are no rows, so the number of sets is unknown. Give `num_sets`.")
        num_sets = int(groups.max()) + 1
    if len(groups) and (int(groups.min()) < 0 or int(groups.max()) >= num_sets):
        raise DataError(
            f"`index` runs from {int(groups.min())} to {int(groups.max())} but 0 to {num_sets - 1} was expected "
            f"for {num_sets} sets."
        )
    order = torch.argsort(groups, stable=True)
    return _checked(rows[order], offsets_from_sizes(torch.bincount(groups, minlength=num_sets)), nonfinite)


def rows_from_jagged(nested: Tensor, nonfinite: NonFinitePolicy) -> Rows:
    """Rows of a torch nested tensor of jagged layout, shape (num_sets, *, num_features)."""
    if not nested.is_nested or nested.layout != torch.jagged:
        raise DataError(
            "A nested tensor of jagged layout was expected, as made by `torch.nested.nested_tensor(list, "
            "layout=torch.jagged)`."
        )
    return rows_from_list(list(nested.unbind()), nonfinite)


def offsets_from_sizes(sizes: Tensor) -> Tensor:
    """Bounds of sets that lie one after another, shape (num_sets + 1,), from their sizes, shape (num_sets,).

    Example:
        >>> offsets_from_sizes(torch.tensor([2, 0, 1]))
        tensor([0, 2, 2, 3])
    """
    return torch.cat([sizes.new_zeros(1, dtype=torch.int64), sizes.to(torch.int64).cumsum(0)])


def check_finite(values: Tensor, offsets: Tensor) -> None:
    """Raises :class:`NonFiniteError` naming the first NaN or infinite rows by set and row, if there are any."""
    if bool(torch.isfinite(values).all()):
        return
    rows, groups = _bad_rows(values, offsets)
    where = [
        f"set {group} row {row}" for group, row in zip(groups.tolist(), (rows - offsets[groups]).tolist(), strict=True)
    ]
    raise NonFiniteError(
        f"{len(where)} of {len(values)} rows hold NaN or infinite values: {describe_rows(where)}. Clean the data, or "
        'leave such rows out and have them counted with `nonfinite="drop"`.'
    )


def _checked(values: Tensor, offsets: Tensor, nonfinite: NonFinitePolicy) -> Rows:
    """The rows as they are, or without those that are not finite."""
    if nonfinite not in ("raise", "drop"):
        raise ConfigError(f'`nonfinite` is "{nonfinite}" but "raise" or "drop" was expected.')
    if values.shape[1] == 0:
        raise ShapeError("The rows have no features; at least one column was expected.")
    if nonfinite == "raise":
        check_finite(values, offsets)
        return values, offsets, None
    rows, groups = _bad_rows(values, offsets)
    if len(rows) == 0:
        return values, offsets, None
    dropped = torch.bincount(groups, minlength=len(offsets) - 1)
    kept = torch.isfinite(values).all(1)
    return values[kept], offsets_from_sizes(offsets.diff() - dropped), dropped


def _bad_rows(values: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of the rows that are not finite, and of their sets."""
    rows = (~torch.isfinite(values).all(1)).nonzero().flatten()
    return rows, torch.searchsorted(offsets, rows, right=True) - 1
