"""Summed scores and packed precisions in, estimates and log-determinants out: many small systems at once."""

from __future__ import annotations

from torch import Tensor

from fishnets.algebra.packing import packed_size
from fishnets.errors import ShapeError, expect_last_dim
from fishnets.ops.dispatch import choose_backend
from fishnets.ops.solve_information import fused, reference

__all__ = ["solve_information", "solve_information_backend"]


def solve_information(score: Tensor, precision: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
    r"""Solves :math:`A z = t` for many small positive-definite :math:`A`.

    Args:
        score: Scores :math:`t`, shape :math:`(*, p)`.
        precision: Packed matrices :math:`A`, prior included, shape :math:`(*, p(p+1)/2)`.
        backend: ``"auto"``, ``"reference"`` or ``"fused"``.

    Returns:
        Estimates :math:`A^{-1} t`, shape :math:`(*, p)`, and :math:`\ln\det A`, shape :math:`(*)`; NaN where a matrix
        is not positive definite.

    Example:
        >>> import torch
        >>> solve_information(torch.tensor([[4.0, 3.0]]), torch.tensor([[4.0, 0.0, 1.0]]))
        (tensor([[1., 3.]]), tensor([1.3863]))
    """
    name, _ = solve_information_backend(score, precision, backend)
    if name == "reference":
        return reference.solve_information(score, precision)
    estimate, log_determinant = fused.solve_systems(
        score.reshape(-1, score.shape[-1]), precision.reshape(-1, precision.shape[-1])
    )
    return estimate.reshape(score.shape), log_determinant.reshape(score.shape[:-1])


def solve_information_backend(score: Tensor, precision: Tensor, backend: str = "auto") -> tuple[str, str]:
    """Tells which backend :func:`solve_information` would use with these arguments, and why.

    Example:
        >>> import torch
        >>> solve_information_backend(torch.zeros(1, 2), torch.ones(1, 3), "reference")
        ('reference', 'it was asked for')
    """
    expect_last_dim("precision", precision, packed_size(score.shape[-1]), "Packed lower triangles.")
    if precision.shape[:-1] != score.shape[:-1]:
        raise ShapeError(f"`score` has shape {tuple(score.shape)} but `precision` {tuple(precision.shape)}.")
    return choose_backend(backend, lambda: fused.obstacle(score))
