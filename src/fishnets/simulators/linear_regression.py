r"""Linear regression with unequal noise: the paper's validation experiment (section 4.1), where all is known.

.. math::
    y_i = m x_i + c + \sigma_i \epsilon_i, \quad \epsilon_i \sim \mathcal N(0, 1), \quad
    x_i \sim \mathcal U(0, 10), \quad \sigma_i \sim \mathcal U(1, 10),

with :math:`\theta = (m, c)` and :math:`\sigma` a standard deviation. At the fiducial :math:`\theta_*` a datum has score
and Fisher matrix

.. math::
    t_i = \frac{r_i}{\sigma_i^2} \begin{pmatrix} x_i \\ 1 \end{pmatrix}, \quad
    r_i = y_i - m_* x_i - c_*, \qquad
    F_i = \frac{1}{\sigma_i^2} \begin{pmatrix} x_i^2 & x_i \\ x_i & 1 \end{pmatrix},

so the posterior under a Gaussian prior is exact in one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian, MomentPrior
from fishnets.algebra.information import Information
from fishnets.errors import ConfigError, ShapeError, expect_batch, expect_last_dim
from fishnets.ops.segment_information import segment_sum
from fishnets.priors import Normal
from fishnets.ragged import Sets

__all__ = ["Features", "LinearRegression"]

Features = Literal["paper", "log", "authors"]


@dataclass(frozen=True)
class LinearRegression:
    r"""The simulator and its exact answers.

    Args:
        features: Columns of a datum. ``"paper"``: :math:`(y, x, \sigma^2)`; ``"log"``: :math:`(y, x, \ln\sigma)`;
            ``"authors"``: :math:`(y, x, \sigma^{-2}, x\sigma^{-2}, y\sigma^{-2})`, which the authors' code feeds.
        x_range: Bounds of the uniform law of x.
        sigma_range: Bounds of the law of the noise's standard deviation, which is uniform between them.
        sigma_decay: With it the law is exponential instead: :math:`\sigma` exceeds the lower bound by an exponential of
            this mean, cut off at the upper bound.

    Example:
        >>> simulator = LinearRegression()
        >>> generator = torch.Generator().manual_seed(0)
        >>> sets = simulator(torch.zeros(2, 2), torch.tensor([3, 500]), generator)
        >>> sets
        Sets(num_sets=2, num_data=503, num_features=3)
    """

    features: Features = "paper"
    x_range: tuple[float, float] = (0.0, 10.0)
    sigma_range: tuple[float, float] = (1.0, 10.0)
    sigma_decay: float | None = None

    def __post_init__(self) -> None:
        if self.sigma_decay is not None and not self.sigma_decay > 0:
            raise ConfigError(f"`sigma_decay` is {self.sigma_decay} but a positive mean, or None, was expected.")
        if self.features not in ("paper", "log", "authors"):
            raise ConfigError(f'`features` is "{self.features}" but "paper", "log" or "authors" was expected.')

    @property
    def num_features(self) -> int:
        """Width of a datum."""
        return 5 if self.features == "authors" else 3

    @property
    def prior(self) -> Normal:
        """The paper's prior: both parameters standard normal."""
        return Normal([0.0, 0.0], [1.0, 1.0])

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws one set per row of ``theta``.

        Args:
            theta: Slopes and intercepts, shape (B, 2); its dtype and device are those of the result.
            size: Number of data of each set, int64, shape (B,).
            generator: Source of the randomness, on the device of ``theta``.

        Returns:
            B sets.
        """
        expect_batch(theta, size, 2)
        offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
        num_data = int(offsets[-1])
        x_unit, sigma_unit = (
            torch.rand(num_data, generator=generator, dtype=theta.dtype, device=theta.device) for _ in range(2)
        )
        x = self.x_range[0] + (self.x_range[1] - self.x_range[0]) * x_unit
        sigma = self._sigma_at(sigma_unit)
        rows = torch.repeat_interleave(theta, size, dim=0, output_size=num_data)
        return Sets(self._observe(rows, x, sigma, generator), offsets)

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws new responses y at each row's own x and sigma, for parameters ``theta`` (B, 2)."""
        if theta.shape != (len(sets), 2):
            raise ShapeError(
                f"`theta` has shape {tuple(theta.shape)} but one row per set, ({len(sets)}, 2), was expected."
            )
        _, x, sigma = self.columns(sets.values)
        return Sets(self._observe(theta[sets.index], x, sigma, generator), sets.offsets)

    def columns(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reads y, x and sigma back from the features, each of shape (n,)."""
        expect_last_dim("values", values, self.num_features)
        y, x, third = values[:, 0], values[:, 1], values[:, 2]
        sigma = {"paper": torch.sqrt, "log": torch.exp, "authors": torch.rsqrt}[self.features](third)
        return y, x, sigma

    def sites(self, values: Tensor, fiducial: Tensor) -> tuple[Tensor, Tensor]:
        """Exact score (n, 2) and packed Fisher matrix (n, 3) of each row at the fiducial (2,), in float64."""
        y, x, sigma = (column.to(torch.float64) for column in self.columns(values))
        weight = sigma.square().reciprocal()
        residual = y - fiducial[0] * x - fiducial[1]
        score = torch.stack([x * residual * weight, residual * weight], dim=-1)
        return score, torch.stack([x.square() * weight, x * weight, weight], dim=-1)

    def information(self, sets: Sets, fiducial: Tensor | None = None) -> Information:
        """The exact information of each set, at the fiducial (2,), by default the origin."""
        point = torch.zeros(2, dtype=torch.float64) if fiducial is None else fiducial
        point = point.to(device=sets.device, dtype=torch.float64)
        score, fisher_packed = self.sites(sets.values, point)
        fisher = segment_sum(fisher_packed, sets.offsets)[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
        return Information(segment_sum(score, sets.offsets), fisher, point, sets.sizes)

    def posterior(self, sets: Sets, prior: MomentPrior | None = None) -> Gaussian:
        """The exact posterior of each set; the paper's prior by default."""
        return self.information(sets).posterior(self.prior if prior is None else prior)

    def fisher_per_datum(self, theta: Tensor | None = None) -> Tensor:
        r"""The expected Fisher matrix of one datum, :math:`F_1`, shape (2, 2); here it does not depend on theta."""
        a, b = self.x_range
        nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(200))
        mean_weight = float(0.5 * weights @ self._sigma_at(0.5 * (nodes + 1)).pow(-2))
        mean_x, mean_x2 = (a + b) / 2, (a * a + a * b + b * b) / 3
        return mean_weight * torch.tensor([[mean_x2, mean_x], [mean_x, 1.0]], dtype=torch.float64)

    def _sigma_at(self, share: Tensor) -> Tensor:
        """Quantiles of the law of sigma at shares in (0, 1)."""
        low, high = self.sigma_range
        if self.sigma_decay is None:
            return low + (high - low) * share
        kept = -math.expm1(-(high - low) / self.sigma_decay)  # the part of the exponential below the cut
        return low - self.sigma_decay * torch.log1p(-kept * share)

    def _observe(self, theta: Tensor, x: Tensor, sigma: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = torch.randn(len(x), generator=generator, dtype=x.dtype, device=x.device)
        y = theta[:, 0] * x + theta[:, 1] + sigma * noise
        if self.features == "authors":
            weight = sigma.square().reciprocal()
            return torch.stack([y, x, weight, x * weight, y * weight], dim=-1)
        return torch.stack([y, x, sigma.square() if self.features == "paper" else sigma.log()], dim=-1)
