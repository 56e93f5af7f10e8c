"""Our exceptions, and the shape checks that every layer shares.

An error says what was given, what was expected and how to fix it. Every exception of this library derives from
:class:`FishnetsError` and from the built-in type a caller would expect, so both ``except`` clauses work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "BackendUnavailableError",
    "CheckpointError",
    "CheckpointWarning",
    "ConfigError",
    "ConvergenceWarning",
    "DataError",
    "FileFormatError",
    "FishnetsError",
    "IncompatibleInformationError",
    "MissingExtraError",
    "NonFiniteError",
    "NonFiniteLossError",
    "NotPositiveDefiniteError",
    "ShapeError",
    "SupportError",
    "describe_rows",
    "expect_batch",
    "expect_finite",
    "expect_last_dim",
    "expect_positive",
    "expect_square",
]


class FishnetsError(Exception):
    """Base of every error this library raises."""


class ShapeError(FishnetsError, ValueError):
    """A tensor has the wrong shape or width."""


class DataError(FishnetsError, ValueError):
    """Data that cannot be understood: empty lists, wrong offsets, a mask of the wrong kind."""


class NonFiniteError(DataError):
    """Data hold NaN or infinite rows."""


class SupportError(DataError):
    """Parameters lie outside the support of the prior."""


class ConfigError(FishnetsError, ValueError):
    """A setting is misspelt or out of range."""


class NotPositiveDefiniteError(FishnetsError, ValueError):
    """A matrix that must be positive definite is not."""


class IncompatibleInformationError(FishnetsError, ValueError):
    """Two states of information cannot be merged."""


class NonFiniteLossError(FishnetsError, ArithmeticError):
    """Training met a loss that is NaN or infinite."""


class FileFormatError(FishnetsError, ValueError):
    """A file is truncated, changed, too new, or not one of ours."""


class CheckpointError(FishnetsError, ValueError):
    """A checkpoint does not belong to the run that wants to resume from it."""


class BackendUnavailableError(FishnetsError, RuntimeError):
    """A named implementation cannot run here."""


class MissingExtraError(FishnetsError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs `{package}`, which is not installed. Install it with `pip install 'fishnets[{extra}]'`."
        )


class CheckpointWarning(UserWarning):
    """A checkpoint was begun with other initial weights than were given now."""


class ConvergenceWarning(UserWarning):
    """Markov chains have not converged, or diverged on the way; their draws are not yet a posterior."""


def describe_rows(rows: Sequence[Any], limit: int = 5) -> str:
    """Lists the first few offending items of a longer sequence.

    Example:
        >>> describe_rows([3, 4, 9], limit=2)
        '3, 4 and 1 more'
    """
    shown = ", ".join(str(row) for row in rows[:limit])
    return shown if len(rows) <= limit else f"{shown} and {len(rows) - limit} more"


def expect_finite(name: str, rows: Any) -> None:
    """Raises :class:`DataError` unless all rows (*, n, c) of a tensor are finite, and names the first that is not.

    Example:
        >>> import torch
        >>> expect_finite("Messages", torch.tensor([[0.0], [float("nan")]]))
        Traceback (most recent call last):
        fishnets.errors.DataError: Messages are not finite at 1; the first is 1, which holds nan.
    """
    bad = ~rows.isfinite().all(-1)
    if bool(bad.any()):
        places = [tuple(place) if len(place) > 1 else place[0] for place in bad.nonzero().tolist()]
        first = rows[places[0]]
        held = float(first[~first.isfinite()][0])
        where = describe_rows(places)
        raise DataError(f"{name} are not finite at {where}; the first is {places[0]}, which holds {held}.")


def expect_batch(theta: Any, size: Any, num_params: int) -> None:
    """Raises :class:`ShapeError` unless there is a row of parameters (B, p) and a size (B,) for every set to draw."""
    expect_last_dim("theta", theta, num_params)
    if theta.ndim != 2 or size.shape != theta.shape[:1]:
        raise ShapeError(
            f"`theta` has shape {tuple(theta.shape)} and `size` {tuple(size.shape)} but (B, {num_params}) and (B,) "
            "were expected."
        )


def expect_last_dim(name: str, tensor: Any, size: int, hint: str = "") -> None:
    """Raises :class:`ShapeError` unless the last dimension of ``tensor`` has ``size`` entries."""
    if tensor.ndim == 0 or tensor.shape[-1] != size:
        raise ShapeError(f"`{name}` has shape {tuple(tensor.shape)} but (..., {size}) was expected. {hint}".rstrip())


def expect_positive(**given: Any) -> None:
    """Raises :class:`ConfigError` unless every number is whole and at least one."""
    for name, number in given.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"`{name}` is {number!r} but a positive whole number was expected.")


def expect_square(name: str, tensor: Any, size: int | None = None, hint: str = "") -> None:
    """Raises :class:`ShapeError` unless the last two dimensions are equal (to ``size`` when given)."""
    shape = tuple(tensor.shape)
    wanted = size if size is not None else (shape[-1] if shape else "p")
    if tensor.ndim < 2 or shape[-1] != shape[-2] or (size is not None and shape[-1] != size):
        raise ShapeError(f"`{name}` has shape {shape} but (..., {wanted}, {wanted}) was expected. {hint}".rstrip())
