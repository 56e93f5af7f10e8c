r"""The definition of the solve, in plain PyTorch.

With the packed precision :math:`A` and the score :math:`t` of a group,

.. math:: z = A^{-1} t, \qquad \ell = \ln\det A .
"""

from __future__ import annotations

import torch
from torch import Tensor

from fishnets.algebra.packing import unpack_symmetric

__all__ = ["solve_information"]


def solve_information(score: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Estimates (*, p) and log-determinants (*); NaN where a matrix is not positive definite."""
    factor, status = torch.linalg.cholesky_ex(unpack_symmetric(precision))  # never raises, nor waits for a GPU
    factor = torch.where((status == 0)[..., None, None], factor, torch.nan)
    estimate = torch.cholesky_solve(score.unsqueeze(-1), factor).squeeze(-1)
    return estimate, 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
