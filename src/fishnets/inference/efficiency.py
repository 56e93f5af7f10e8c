r"""How much of the information an estimator keeps, measured against the exact one on the same data.

With :math:`\delta = \hat\theta - \hat\theta_{\rm exact}` and the exact Fisher matrix :math:`n F_1(\theta)` of a set,

.. math::
    \text{excess} = \left\langle \delta^\top [n F_1(\theta)]\, \delta \right\rangle / p, \qquad
    \text{efficiency} = \frac{1}{1 + \text{excess}} .

An efficiency of 0.95 wastes as much as throwing away one datum in twenty. Both estimators see the same sets, so most
of the Monte Carlo noise cancels. There is one definition, here.

Where the exact estimator is not at hand but the exact score :math:`t` at the truth is, the error itself is compared
with what the score allows, :math:`\chi^2_0 = t^\top [n F_1]^{-1} t`, whose mean is exactly p: see :func:`paired_chi2`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.errors import ShapeError

__all__ = ["Measured", "efficiency", "excess", "mean_with_error", "paired_chi2", "ratio_of_means"]


@dataclass(frozen=True)
class Measured:
    """A number and its Monte Carlo error (one standard error).

    Example:
        >>> print(Measured(0.98765, 0.0012))
        0.9877 ± 0.0012
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"


def mean_with_error(samples: Tensor) -> Measured:
    """Mean of independent samples, shape (T,), with its standard error.

    Example:
        >>> print(mean_with_error(torch.tensor([1.0, 3.0])))
        2.0000 ± 1.0000
    """
    count = len(samples)
    spread = float(samples.std()) if count > 1 else math.nan
    return Measured(float(samples.mean()), spread / math.sqrt(count))


def ratio_of_means(numerator: Tensor, denominator: Tensor) -> Measured:
    """Mean of one quantity over that of another, both of the same sets (T,), with the error of paired samples.

    Example:
        >>> print(ratio_of_means(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0])))
        2.0000 ± 0.0000
    """
    ratio, scale = float(numerator.mean() / denominator.mean()), float(denominator.mean())
    return Measured(ratio, mean_with_error(numerator - ratio * denominator).error / scale)


def excess(estimate: Tensor, exact: Tensor, fisher: Tensor) -> Measured:
    """Mean squared distance from the exact estimate, in units of the exact covariance and per parameter.

    Args:
        estimate: Estimates under test, shape (T, p).
        exact: Exact estimates from the same data, shape (T, p).
        fisher: Exact Fisher matrix of a whole set, shape (p, p) or (T, p, p).

    Returns:
        The excess with its Monte Carlo error over the T sets.

    Example:
        >>> excess(torch.ones(4, 1), torch.zeros(4, 1), 0.25 * torch.eye(1)).value
        0.25
    """
    if estimate.shape != exact.shape or estimate.ndim != 2:
        raise ShapeError(
            f"`estimate` has shape {tuple(estimate.shape)} and `exact` {tuple(exact.shape)} but both must be (T, p)."
        )
    delta = (estimate - exact).to(torch.float64).unsqueeze(-1)
    per_set = (delta.mT @ fisher.to(delta) @ delta).flatten() / estimate.shape[1]
    return mean_with_error(per_set)


def efficiency(estimate: Tensor, exact: Tensor, fisher: Tensor) -> Measured:
    """The share of information kept, 1 / (1 + excess); arguments as in :func:`excess`.

    Example:
        >>> efficiency(torch.ones(4, 1), torch.zeros(4, 1), 0.25 * torch.eye(1)).value
        0.8
    """
    wasted = excess(estimate, exact, fisher)
    value = 1 / (1 + wasted.value)
    return Measured(value, wasted.error * value**2)


def paired_chi2(estimate: Tensor, theta: Tensor, score: Tensor, fisher: Tensor) -> Measured:
    r"""Squared error in units of the Cramér-Rao bound and per parameter, less its own Monte Carlo noise.

    .. math:: 1 + \left\langle (\hat\theta-\theta)^\top [n F_1] (\hat\theta-\theta) - t^\top [n F_1]^{-1} t
        \right\rangle / p

    One is the bound at large n; at small n a prior can push it below.

    Args:
        estimate: Estimates, shape (T, p).
        theta: True parameters, shape (T, p).
        score: Exact score of each set at its true parameters, shape (T, p).
        fisher: Exact Fisher matrix of a whole set, shape (p, p) or (T, p, p).

    Returns:
        The paired figure with its Monte Carlo error over the T sets.

    Example:
        >>> score = torch.tensor([[2.0], [-2.0], [1.0]])
        >>> theta, fisher = torch.full((3, 1), 5.0), 4 * torch.eye(1)
        >>> print(paired_chi2(theta + score / 4, theta, score, fisher))  # one exact step from the truth
        1.0000 ± 0.0000
    """
    if not estimate.shape == theta.shape == score.shape or estimate.ndim != 2:
        raise ShapeError(
            f"`estimate` has shape {tuple(estimate.shape)}, `theta` {tuple(theta.shape)} and `score` "
            f"{tuple(score.shape)} but all must be (T, p)."
        )
    matrix = fisher.to(torch.float64)
    error, column = (x.to(torch.float64).unsqueeze(-1) for x in (estimate - theta, score))
    found, bound = error.mT @ matrix @ error, column.mT @ torch.linalg.solve(matrix, column)
    gap = mean_with_error((found - bound).flatten() / estimate.shape[1])
    return Measured(1 + gap.value, gap.error)
