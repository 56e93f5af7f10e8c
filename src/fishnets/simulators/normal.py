r"""A normal sample whose mean and variance are both unknown: the smallest problem with more than a mean to learn.

.. math::
    y_i \sim \mathcal N(m, v), \quad \theta = (m, v), \qquad
    t_i = \left( \frac{r_i}{v},\; \frac{r_i^2 - v}{2 v^2} \right), \quad r_i = y_i - m, \qquad
    F_1 = \mathrm{diag}\left( \frac{1}{v},\; \frac{1}{2 v^2} \right) .

The score is quadratic in the data and the Fisher matrix depends on :math:`\theta`, which no weighted mean of the data
can follow; count, mean and sum of squares are sufficient, so every answer is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.errors import DataError, ShapeError, describe_rows, expect_batch, expect_last_dim
from fishnets.ops.segment_information import segment_sum
from fishnets.priors import Box
from fishnets.ragged import Sets
from fishnets.simulators.grid import GridPosterior, adaptive_grid

__all__ = ["NormalSample"]


@dataclass(frozen=True)
class NormalSample:
    """The simulator and its exact answers. A datum has one feature, y.

    Example:
        >>> simulator = NormalSample()
        >>> theta = torch.tensor([[1.0, 2.0]])
        >>> sets = simulator(theta, torch.tensor([10_000]), torch.Generator().manual_seed(0))
        >>> sets
        Sets(num_sets=1, num_data=10000, num_features=1)
        >>> simulator.posterior(sets).mean.round(decimals=1)
        tensor([1., 2.], dtype=torch.float64)
    """

    @property
    def num_features(self) -> int:
        """Width of a datum."""
        return 1

    @property
    def prior(self) -> Box:
        """Uniform: mean from -2 to 2, variance from 1/4 to 4."""
        return Box([-2.0, 0.25], [2.0, 4.0])

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws one set per row of ``theta``.

        Args:
            theta: Means and variances, shape (B, 2); its dtype and device are those of the result.
            size: Number of data of each set, int64, shape (B,).
            generator: Source of the randomness, on the device of ``theta``.

        Returns:
            B sets.
        """
        expect_batch(theta, size, 2)
        offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
        # one wait for the device answers both questions
        num_data, num_bad = torch.stack([offsets[-1], (~(theta[:, 1] > 0)).sum()]).tolist()
        if num_bad:
            _refuse(theta)
        mean, variance = torch.repeat_interleave(theta, size, dim=0, output_size=num_data).unbind(1)
        noise = torch.randn(num_data, generator=generator, dtype=theta.dtype, device=theta.device)
        return Sets((mean + variance.sqrt() * noise).unsqueeze(1), offsets)

    def log_likelihood(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact log-likelihood of each set at its own parameters (B, 2), shape (B,), float64."""
        residual, variance = self._residuals(sets, theta)
        log_density = -0.5 * (residual.square() / variance + (2 * math.pi * variance).log())
        return segment_sum(log_density.unsqueeze(1), sets.offsets).squeeze(1)

    def score(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact score of each set at its own parameters (B, 2), shape (B, 2), float64.

        Example:
            >>> NormalSample().score(Sets.from_list([[[1.0], [3.0]]]), torch.tensor([[1.0, 2.0]]))
            tensor([[1., 0.]], dtype=torch.float64)
        """
        residual, variance = self._residuals(sets, theta)
        by_variance = 0.5 * (residual.square() - variance) / variance.square()
        return segment_sum(torch.stack([residual / variance, by_variance], dim=1), sets.offsets)

    def fisher_per_datum(self, theta: Tensor) -> Tensor:
        r"""The expected Fisher matrix of one datum, :math:`F_1(\theta)`: (2,) to (2, 2), (K, 2) to (K, 2, 2).

        Example:
            >>> NormalSample().fisher_per_datum(torch.tensor([0.0, 2.0]))
            tensor([[0.5000, 0.0000],
                    [0.0000, 0.1250]], dtype=torch.float64)
        """
        expect_last_dim("theta", theta, 2)
        _expect_positive(theta.reshape(-1, 2))
        variance = theta[..., 1].to(torch.float64)
        return torch.diag_embed(torch.stack([1 / variance, 0.5 / variance.square()], dim=-1))

    def posterior(self, sets: Sets, points: int = 41) -> GridPosterior:
        """The exact posterior of a single set, on a grid of ``points`` squared that adapts to it."""
        if len(sets) != 1:
            raise ShapeError(f"One set was expected but {len(sets)} were given; take them one by one: `sets[i]`.")
        expect_last_dim("values", sets.values, 1)
        y = sets.values[:, 0].to(torch.float64)
        number, centre = len(y), y.sum() / max(1, len(y))
        squares = (y - centre).square().sum()

        def log_likelihood(pairs: Tensor) -> Tensor:
            mean, variance = pairs.unbind(1)
            return -0.5 * ((squares + number * (centre - mean).square()) / variance + number * variance.log())

        low, high = (bound.to(sets.device) for bound in (self.prior.low, self.prior.high))
        return adaptive_grid(log_likelihood, low, high, points)

    def _residuals(self, sets: Sets, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Distance from the mean, and variance, of every row (n,), in float64."""
        expect_last_dim("values", sets.values, 1)
        if theta.shape != (len(sets), 2):
            raise ShapeError(
                f"`theta` has shape {tuple(theta.shape)} but one row per set, ({len(sets)}, 2), was expected."
            )
        _expect_positive(theta)
        mean, variance = theta.to(device=sets.device, dtype=torch.float64)[sets.index].unbind(1)
        return sets.values[:, 0].to(torch.float64) - mean, variance


def _expect_positive(theta: Tensor) -> None:
    if not bool((theta[:, 1] > 0).all()):
        _refuse(theta)


def _refuse(theta: Tensor) -> None:
    rows = (~(theta[:, 1] > 0)).nonzero().flatten().tolist()
    raise DataError(
        f"The variance, `theta[:, 1]`, must be positive but rows {describe_rows(rows)} are not; row {rows[0]} has "
        f"{float(theta[rows[0], 1]):.3g}. If these are standard deviations or logarithms, convert them first."
    )
