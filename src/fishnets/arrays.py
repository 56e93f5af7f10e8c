"""What users hand us, as torch has it: arrays in any layout or byte order, nested lists, names of devices; a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fishnets.errors import BackendUnavailableError, ConfigError, DataError, ShapeError

__all__ = ["ArrayLike", "as_float", "as_integers", "as_rows", "as_tensor", "available_device", "fingerprint"]

ArrayLike = Tensor | np.ndarray[Any, Any] | Sequence[Any]


def as_tensor(array: ArrayLike, name: str) -> Tensor:
    """Reads an array of numbers, sharing its memory where torch can.

    Args:
        array: A tensor, a NumPy array, or nested lists of numbers or of NumPy arrays.
        name: What an error calls it.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> as_tensor(np.arange(6, dtype=">i4")[::-2], "values")
        tensor([5, 3, 1], dtype=torch.int32)
    """
    try:
        if isinstance(array, list | tuple) and array and isinstance(array[0], np.ndarray):
            array = np.stack(array)
        return torch.as_tensor(_shareable(array) if isinstance(array, np.ndarray) else array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"`{name}` cannot be read as an array of numbers: {error}") from error


def as_float(array: ArrayLike, name: str) -> Tensor:
    """Reads real numbers: float64 stays, all else becomes float32.

    Args:
        array: As in :func:`as_tensor`; complex numbers are refused.
        name: What an error calls it.

    Returns:
        A tensor of the same shape, float32 or float64.

    Example:
        >>> as_float([1, 2], "values")
        tensor([1., 2.])
    """
    tensor = as_tensor(array, name)
    if tensor.is_complex():
        raise DataError(f"`{name}` is complex; give real and imaginary parts as two features.")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def as_integers(array: ArrayLike, name: str, device: torch.device) -> Tensor:
    """Reads a vector of integers.

    Args:
        array: As in :func:`as_tensor`, shape (n,); an empty list is a vector of none.
        name: What an error calls it.
        device: Where to put it.

    Returns:
        A contiguous tensor, int64, shape (n,).

    Example:
        >>> as_integers([], "index", torch.device("cpu"))
        tensor([], dtype=torch.int64)
    """
    tensor = as_tensor(array, name).to(device)
    if tensor.shape == (0,):  # an empty list has no integer type of its own
        tensor = tensor.to(torch.int64)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise DataError(
            f"`{name}` has shape {tuple(tensor.shape)} and dtype {tensor.dtype} but a vector of integers was expected."
        )
    return tensor.to(torch.int64).contiguous()


def as_rows(tensor: Tensor, width: int, name: str) -> Tensor:
    """Takes the rows of one set, which may be empty and then need not know its width.

    Args:
        tensor: Rows, shape (n, width); or none, shape (0,), (0, 0) or (0, width).
        width: Number of features of the first set.
        name: What an error calls the set.

    Returns:
        The rows, shape (n, width).

    Example:
        >>> as_rows(torch.zeros(0), 3, "sets[1]").shape
        torch.Size([0, 3])
    """
    if tensor.numel() == 0 and tensor.ndim <= 2 and (tensor.ndim == 1 or tensor.shape[0] == 0):
        if tensor.ndim == 2 and tensor.shape[1] not in (0, width):
            raise ShapeError(f"`{name}` has {tensor.shape[1]} features but the first set has {width}.")
        return tensor.new_zeros((0, width))
    if tensor.ndim != 2:
        raise ShapeError(
            f"`{name}` has shape {tuple(tensor.shape)} but (n, num_features) was expected. For one feature, give "
            "shape (n, 1)."
        )
    if tensor.shape[1] != width:
        raise ShapeError(f"`{name}` has {tensor.shape[1]} features but the first set has {width}.")
    return tensor


def _shareable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies what torch cannot share memory with: read-only, reversed, or in the other byte order (FITS)."""
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C")


def available_device(name: torch.device | str) -> torch.device:
    """Reads the name of a device, refusing one that is not there.

    Example:
        >>> available_device("cpu")
        device(type='cpu')
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f'`device` is "{name}" but "cpu", "cuda" or "cuda:1" and the like were expected.') from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(f'`device` is "{name}" but torch sees no GPU; use "cpu".')
    return device


def fingerprint(**tensors: Tensor | None) -> str:
    """A hash of tensors, their names, kinds and shapes.

    Example:
        >>> fingerprint(x=torch.zeros(2)) == fingerprint(x=torch.zeros(2, 1))
        False
    """
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if tensor is not None:
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            held = tensor.detach().cpu().contiguous().flatten()
            total.update(held.view(torch.uint8).numpy().tobytes())  # of every kind, which NumPy has not
    return total.hexdigest()
