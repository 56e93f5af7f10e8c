r"""The Gaussian that information and a prior make, and the loss that trains networks to provide it.

With total score :math:`t` and Fisher matrix :math:`F` at the fiducial :math:`\theta_*`, and a prior of mean
:math:`\mu_p` and covariance :math:`C_p`,

.. math::
    P = F + C_p^{-1}, \qquad
    \hat\theta = \theta_* + P^{-1}\left[t - C_p^{-1}(\theta_* - \mu_p)\right].

The minus sign pulls the estimate *towards* the prior mean. The paper prints a plus, which would reflect the mean to
:math:`2\theta_* - \mu_p`; the two agree only where :math:`\theta_* = \mu_p`. A non-Gaussian prior enters by its first
two moments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fishnets.algebra.cholesky import cholesky
from fishnets.algebra.packing import packed_size
from fishnets.errors import expect_last_dim, expect_square

__all__ = ["Gaussian", "MomentPrior", "gaussian_loss", "gaussian_loss_packed"]


class MomentPrior(Protocol):
    """What the algebra needs of a prior: its mean (p,) and covariance (p, p)."""

    @property
    def mean(self) -> Tensor: ...

    @property
    def covariance(self) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Gaussian:
    r"""A batch of Gaussian distributions :math:`\mathcal N(\mu, P^{-1})` given by mean and precision.

    Args:
        mean: Means :math:`\mu`, shape :math:`(*, p)`.
        precision: Precisions :math:`P`, positive definite, shape :math:`(*, p, p)`.

    Example:
        >>> g = Gaussian(torch.tensor([1.0]), torch.tensor([[4.0]]))
        >>> g.covariance
        tensor([[0.2500]])
    """

    mean: Tensor
    precision: Tensor

    def __post_init__(self) -> None:
        expect_square("precision", self.precision, self.mean.shape[-1] if self.mean.ndim else 0)

    @property
    def covariance(self) -> Tensor:
        """Inverse of the precision, shape (*, p, p)."""
        return torch.cholesky_inverse(cholesky(self.precision, "precision"))

    @property
    def standard_deviation(self) -> Tensor:
        """Marginal standard deviations, shape (*, p)."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).sqrt()

    def log_prob(self, theta: Tensor) -> Tensor:
        r"""Evaluates the log-density.

        .. math:: \tfrac12 \ln\det P - \tfrac12 (\theta-\mu)^\top P\,(\theta-\mu) - \tfrac p2 \ln 2\pi

        Args:
            theta: Parameters, shape :math:`(*, p)`, broadcast against the mean.

        Returns:
            Log-densities, shape :math:`(*)`.

        Example:
            >>> Gaussian(torch.zeros(1), torch.eye(1)).log_prob(torch.zeros(1))
            tensor(-0.9189)
        """
        expect_last_dim("theta", theta, self.mean.shape[-1])
        factor = cholesky(self.precision, "precision")
        white = (factor.mT @ (theta.to(self.mean) - self.mean).unsqueeze(-1)).squeeze(-1)  # Aᵀ(θ − μ)
        half_log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return half_log_det - 0.5 * white.square().sum(-1) - 0.5 * white.shape[-1] * math.log(2 * math.pi)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws samples, shape (num_samples, *, p).

        Example:
            >>> g = Gaussian(torch.zeros(2), torch.eye(2))
            >>> g.sample(5, torch.Generator().manual_seed(0)).shape
            torch.Size([5, 2])
        """
        factor = cholesky(self.precision, "precision")
        noise = torch.randn(
            (num_samples, *self.mean.shape), generator=generator, dtype=self.mean.dtype, device=self.mean.device
        )
        step: Tensor = torch.linalg.solve_triangular(factor.mT, noise.unsqueeze(-1), upper=True)  # A⁻ᵀ z ~ N(0, P⁻¹)
        return self.mean + step.squeeze(-1)


def gaussian_loss(score: Tensor, precision: Tensor, offset: Tensor) -> Tensor:
    r"""The training loss: the negative log-posterior of the truth, without its constant.

    .. math:: \ell = \tfrac12 (\theta - \hat\theta)^\top P (\theta - \hat\theta) - \tfrac12 \ln\det P

    computed without an inverse and without :math:`\hat\theta`. With :math:`P = A A^\top` and
    :math:`u = A^{-1}(P(\theta-\theta_*) - t)`,

    .. math:: \ell = \tfrac12 \lVert u \rVert^2 - \sum_j \ln A_{jj}.

    A matrix that is not positive definite gives NaN here instead of an error: a training step looks at its loss anyway.

    Args:
        score: Total score :math:`t`, the prior's pull included, shape :math:`(*, p)`.
        precision: Total precision :math:`P`, the prior's included, shape :math:`(*, p, p)`.
        offset: True parameters from the expansion point, :math:`\theta - \theta_*`, shape :math:`(*, p)`.

    Returns:
        Losses, shape :math:`(*)`.

    Example:
        >>> gaussian_loss(torch.tensor([2.0]), torch.tensor([[4.0]]), torch.tensor([0.5]))
        tensor(-0.6931)
    """
    expect_last_dim("score", score, precision.shape[-1])
    expect_last_dim("offset", offset, precision.shape[-1])
    factor: Tensor = torch.linalg.cholesky_ex(precision)[0]
    residual = (precision @ offset.unsqueeze(-1)) - score.unsqueeze(-1)
    white: Tensor = torch.linalg.solve_triangular(factor, residual, upper=False).squeeze(-1)
    return 0.5 * white.square().sum(-1) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def gaussian_loss_packed(score: Tensor, precision_packed: Tensor, offset: Tensor) -> Tensor:
    r"""The same as :func:`gaussian_loss`, with the factorisation written out entry by entry.

    Every operation is elementwise over the batch: for few parameters and many sets this beats a batched library call,
    and nothing in it waits for a device.

    Args:
        score: Total score :math:`t`, the prior's pull included, shape :math:`(*, p)`.
        precision_packed: Packed total precision, shape :math:`(*, p(p+1)/2)`.
        offset: True parameters from the expansion point, shape :math:`(*, p)`.

    Returns:
        Losses, shape :math:`(*)`; NaN where the precision is not positive definite.

    Example:
        >>> gaussian_loss_packed(torch.tensor([2.0]), torch.tensor([4.0]), torch.tensor([0.5]))
        tensor(-0.6931)
    """
    num_params = score.shape[-1]
    expect_last_dim("precision_packed", precision_packed, packed_size(num_params))
    expect_last_dim("offset", offset, num_params)
    entry, t, d = precision_packed.unbind(-1), score.unbind(-1), offset.unbind(-1)
    order = range(num_params)
    P = [[entry[max(i, j) * (max(i, j) + 1) // 2 + min(i, j)] for j in order] for i in order]
    A: list[list[Tensor]] = [[] for _ in order]
    white: list[Tensor] = []
    for i in order:
        residual = P[i][0] * d[0] - t[i]
        for j in order[1:]:
            residual = residual + P[i][j] * d[j]
        for j in range(i + 1):
            rest = P[i][j]
            for k in range(j):
                rest = rest - A[i][k] * A[j][k]
            A[i].append(rest.sqrt() if i == j else rest / A[j][j])
        for k in range(i):
            residual = residual - A[i][k] * white[k]
        white.append(residual / A[i][i])
    log_det = torch.stack([A[i][i] for i in order]).log().sum(0)
    return 0.5 * torch.stack(white).square().sum(0) - log_det
