r"""Packed triangles: the :math:`p(p+1)/2` numbers that determine a triangular or a symmetric matrix.

One order is used everywhere: row by row through the lower triangle,

.. math:: (0,0),\ (1,0),\ (1,1),\ (2,0),\ (2,1),\ (2,2),\ \dots

A packed *factor* must never be summed; a packed *symmetric matrix* may be, since packing is linear.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fishnets.errors import ShapeError, expect_square

__all__ = ["diagonal_positions", "pack_symmetric", "packed_size", "triangle_from_packed", "unpack_symmetric"]


def packed_size(num_params: int) -> int:
    """Counts the entries of a packed triangle.

    Example:
        >>> packed_size(3)
        6
    """
    return num_params * (num_params + 1) // 2


def num_params_of(width: int) -> int:
    """Inverts :func:`packed_size`, refusing widths that are no triangle."""
    num_params = (math.isqrt(8 * width + 1) - 1) // 2
    if packed_size(num_params) != width:
        raise ShapeError(f"A packed triangle has p(p+1)/2 entries (1, 3, 6, 10, ...) but {width} were given.")
    return num_params


def lower_indices(num_params: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Rows and columns of the packed entries, each of shape (p(p+1)/2,)."""
    rows, cols = torch.tril_indices(num_params, num_params, device=device)
    return rows, cols


def diagonal_positions(num_params: int, device: torch.device | None = None) -> Tensor:
    """Positions of the diagonal within a packed triangle, shape (p,).

    Example:
        >>> diagonal_positions(3)
        tensor([0, 2, 5])
    """
    i = torch.arange(num_params, device=device)
    return i * (i + 3) // 2


def triangle_from_packed(packed: Tensor) -> Tensor:
    """Fills a lower triangle, zero above the diagonal.

    Args:
        packed: Entries in row order, shape (*, p(p+1)/2).

    Returns:
        Lower-triangular matrices, shape (*, p, p).

    Example:
        >>> triangle_from_packed(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[1., 0.],
                [2., 3.]])
    """
    num_params = num_params_of(packed.shape[-1])
    rows, cols = lower_indices(num_params, packed.device)
    square = packed.new_zeros((*packed.shape[:-1], num_params * num_params))
    square = square.index_copy(-1, rows * num_params + cols, packed)
    return square.reshape(*packed.shape[:-1], num_params, num_params)


def unpack_symmetric(packed: Tensor) -> Tensor:
    """Expands a packed symmetric matrix to the full one.

    Args:
        packed: Entries of the lower triangle, shape (*, p(p+1)/2).

    Returns:
        Symmetric matrices, shape (*, p, p).

    Example:
        >>> unpack_symmetric(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[1., 2.],
                [2., 3.]])
    """
    num_params = num_params_of(packed.shape[-1])
    i = torch.arange(num_params, device=packed.device)
    high, low = torch.maximum(i[:, None], i[None, :]), torch.minimum(i[:, None], i[None, :])
    return packed[..., high * (high + 1) // 2 + low]


def pack_symmetric(matrix: Tensor) -> Tensor:
    """Takes the packed lower triangle of a symmetric matrix.

    Args:
        matrix: Symmetric matrices, shape (*, p, p). Only the lower triangle is read.

    Returns:
        Packed entries, shape (*, p(p+1)/2).

    Example:
        >>> pack_symmetric(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
        tensor([1., 2., 3.])
    """
    expect_square("matrix", matrix)
    rows, cols = lower_indices(matrix.shape[-1], matrix.device)
    return matrix[..., rows, cols]
