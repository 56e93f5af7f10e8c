r"""The gamma population: decay times seen through counts, the paper's hierarchical example (section 4.3 and Fig. 4).

.. math::
    \mu \sim \mathcal U(0.5, 10), \quad \Theta \sim \mathcal U(0.1, 1.5), \quad
    \gamma_i \sim \mathrm{Gamma}(\mu/\Theta, 1/\Theta), \quad \tau_i \sim \mathcal U(0, 10), \quad
    s_i \sim \mathrm{Poisson}(A e^{-\tau_i/\gamma_i}), \quad A = 500 .

:math:`\gamma_i` is the decay *time* of member i (mean :math:`\mu`, variance :math:`\mu\Theta`), :math:`\tau_i` the time
of its measurement and :math:`s_i` its count; :math:`\theta = (\mu, \Theta)` is to be inferred. With a threshold a
member is redrawn until its count reaches it (the paper's censoring, threshold 25): every member of a set is an
independent draw of the accepted population. The exact likelihood, score, Fisher matrix and posterior come from
:class:`fishnets.simulators.gamma_quadrature.GammaQuadrature`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, ShapeError, describe_rows, expect_batch, expect_last_dim
from fishnets.priors import Box
from fishnets.ragged import Sets
from fishnets.simulators.gamma_quadrature import GammaQuadrature
from fishnets.simulators.grid import GridPosterior, adaptive_grid

__all__ = ["GammaFeatures", "GammaPopulation"]

GammaFeatures = Literal["paper", "log"]


@dataclass(frozen=True)
class GammaPopulation:
    r"""The simulator and its exact answers.

    Args:
        threshold: Smallest count that is kept; None keeps all. The paper's censored case has 25.
        features: Columns of a datum. ``"paper"``: :math:`(\tau/10, s/500)`; ``"log"``: :math:`(\tau/10, \sqrt{s/500},
            \ln\hat\gamma)`, where :math:`\hat\gamma = \tau/\ln(A/s)`, softened, is the decay time a count points to.
        amplitude: Mean count at time zero, A.
        time_max: Upper end of the measurement times.

    Example:
        >>> simulator = GammaPopulation(threshold=25)
        >>> theta = torch.tensor([[5.1, 0.82]])
        >>> sets = simulator(theta, torch.tensor([500]), torch.Generator().manual_seed(0))
        >>> sets
        Sets(num_sets=1, num_data=500, num_features=2)
        >>> simulator.posterior(sets).mean.round(decimals=1)
        tensor([5.3000, 0.8000], dtype=torch.float64)
    """

    threshold: int | None = None
    features: GammaFeatures = "paper"
    amplitude: float = 500.0
    time_max: float = 10.0

    def __post_init__(self) -> None:
        if self.features not in ("paper", "log"):
            raise ConfigError(f'`features` is "{self.features}" but "paper" or "log" was expected.')
        if not (self.amplitude > 0 and self.time_max > 0):
            raise ConfigError(
                f"`amplitude` is {self.amplitude} and `time_max` {self.time_max}; both must be positive."
            )
        if self.threshold is not None and not 1 <= self.threshold < self.amplitude:
            raise ConfigError(f"`threshold` is {self.threshold} but 1 to {self.amplitude}, or None, was expected.")

    @property
    def num_features(self) -> int:
        """Width of a datum."""
        return 2 if self.features == "paper" else 3

    @property
    def prior(self) -> Box:
        """The paper's prior."""
        return Box([0.5, 0.1], [10.0, 1.5])

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws one set per row of ``theta``.

        Args:
            theta: Means and scales of the decay times, shape (B, 2); its dtype and device are those of the result.
            size: Number of data of each set, int64, shape (B,).
            generator: Source of the randomness, on the device of ``theta``.

        Returns:
            B sets.
        """
        _check(theta, size)
        offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
        rows = torch.repeat_interleave(theta, size, dim=0, output_size=int(offsets[-1]))
        time, count = self._draw(rows, generator)
        return Sets(self._columns(time, count), offsets)

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws new data for parameters ``theta`` (B, 2) under the same conditions.

        Without a threshold the measurement times are given and stay; with one, which times are seen depends on theta,
        so they are drawn anew.
        """
        if theta.shape != (len(sets), 2):
            raise ShapeError(
                f"`theta` has shape {tuple(theta.shape)} but one row per set, ({len(sets)}, 2), was expected."
            )
        rows = theta[sets.index].to(sets.values)
        time = self.columns(sets.values)[0] if self.threshold is None else None
        return Sets(self._columns(*self._draw(rows, generator, time)), sets.offsets)

    def columns(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Reads times and counts back from the features, each of shape (n,)."""
        expect_last_dim("values", values, self.num_features)
        share = values[:, 1] if self.features == "paper" else values[:, 1].square()
        return self.time_max * values[:, 0], (self.amplitude * share).round()

    def log_likelihood(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact log-likelihood of each set at its own parameters (B, 2), shape (B,), float64."""
        per_set = zip(self._split(sets), theta.to(torch.float64).split(1), strict=True)
        quadrature = self.quadrature(sets.device)
        return torch.cat([quadrature.log_likelihood(time, count, point) for (time, count), point in per_set])

    def per_datum(self, values: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Exact log-likelihood (n,) and score (n, 2) of each row at one point (2,), in float64."""
        time, count = self._exact_columns(values)
        return self.quadrature(values.device).sites(time, count, theta.to(time))

    def score(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact score of each set at its own parameters (B, 2), shape (B, 2), float64."""
        quadrature = self.quadrature(sets.device)
        pairs = zip(self._split(sets), theta.to(torch.float64), strict=True)
        return torch.stack([quadrature.sites(time, count, point)[1].sum(0) for (time, count), point in pairs])

    def fisher_per_datum(self, theta: Tensor) -> Tensor:
        r"""The expected Fisher matrix of one (kept) datum, :math:`F_1(\theta)`: (2,) to (2, 2), (K, 2) to (K, 2, 2).

        Example:
            >>> (500 * GammaPopulation().fisher_per_datum(torch.tensor([5.1, 0.82]))).round(decimals=1)
            tensor([[117.0000, -66.3000],
                    [-66.3000, 323.8000]], dtype=torch.float64)
        """
        expect_last_dim("theta", theta, 2)
        points = theta.to(torch.float64).reshape(-1, 2)
        return self.quadrature(theta.device).fisher(points).reshape(*theta.shape, 2)

    def acceptance(self, theta: Tensor) -> Tensor:
        """Probability that a member is kept, shape (*), for parameters (*, 2)."""
        points = theta.to(torch.float64).reshape(-1, 2)
        return self.quadrature(theta.device).log_acceptance(points).exp().reshape(theta.shape[:-1])

    def posterior(self, sets: Sets, points: int = 41) -> GridPosterior:
        """The exact posterior of a single set, on a grid of ``points`` squared that adapts to it."""
        if len(sets) != 1:
            raise ShapeError(f"One set was expected but {len(sets)} were given; take them one by one: `sets[i]`.")
        time, count = self._exact_columns(sets.values)
        quadrature = self.quadrature(sets.device)
        low, high = (bound.to(sets.device) for bound in (self.prior.low, self.prior.high))
        return adaptive_grid(lambda pairs: quadrature.log_likelihood(time, count, pairs), low, high, points)

    def quadrature(self, device: torch.device) -> GammaQuadrature:
        """The quadrature behind the exact answers."""
        return GammaQuadrature(self.amplitude, self.time_max, self.threshold, device)

    def _draw(
        self, theta: Tensor, generator: torch.Generator | None, time: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Times and counts (n,), one for each row of parameters (n, 2); rejected ones are drawn anew."""
        time, count = self._attempt(theta, generator, time)
        if self.threshold is None:
            return time, count
        missing, attempts = (count < self.threshold).nonzero().flatten(), 4
        while len(missing):
            # many attempts at once, of which the first accepted is taken (or the first, to be drawn anew), keep the
            # number of rounds small, each of which waits for the device once
            tries = theta[missing].repeat_interleave(attempts, dim=0)
            times, counts = (x.view(-1, attempts) for x in self._attempt(tries, generator))
            kept = counts >= self.threshold
            first = kept.to(torch.int8).argmax(1, keepdim=True)
            time[missing], count[missing] = times.gather(1, first)[:, 0], counts.gather(1, first)[:, 0]
            missing, attempts = missing[~kept.any(1)], min(4 * attempts, 64)
        return time, count

    def _attempt(
        self, theta: Tensor, generator: torch.Generator | None, time: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        mean, scale = theta.unbind(1)
        unit: Tensor = torch._standard_gamma(mean / scale, generator=generator)
        decay = (scale * unit).clamp(min=1e-30)  # a shape of 1/3 now and then underflows float32
        if time is None:
            uniform = torch.rand(len(theta), generator=generator, dtype=theta.dtype, device=theta.device)
            time = self.time_max * uniform
        rate = self.amplitude * torch.exp(-time / decay)
        return time, torch.poisson(rate, generator=generator)

    def _columns(self, time: Tensor, count: Tensor) -> Tensor:
        if self.features == "paper":
            return torch.stack([time / self.time_max, count / self.amplitude], dim=-1)
        ratio = ((self.amplitude + 0.5) / (count + 0.5)).log()  # estimates τ/γ, with an error of 1/√A where s ≈ A
        soft = torch.sqrt(ratio.square() + 1 / self.amplitude)
        decay = (time + 1e-3 * self.time_max).log() - soft.log()
        return torch.stack([time / self.time_max, (count / self.amplitude).sqrt(), decay], dim=-1)

    def _exact_columns(self, values: Tensor) -> tuple[Tensor, Tensor]:
        time, count = (column.to(torch.float64) for column in self.columns(values))
        bad = (count < (self.threshold or 0)) | (time < 0) | ~torch.isfinite(time + count)
        if bool(bad.any()):
            rows = bad.nonzero().flatten().tolist()
            raise DataError(
                f"{len(rows)} of {len(values)} data are impossible here: rows {describe_rows(rows)}; row {rows[0]} has "
                f"time {float(time[rows[0]]):.3g} and count {float(count[rows[0]]):.3g}, and counts of "
                f"{self.threshold or 0} or more at times of 0 or more were expected."
            )
        return time, count

    def _split(self, sets: Sets) -> list[tuple[Tensor, Tensor]]:
        """Times and counts of every set."""
        time, count = self._exact_columns(sets.values)
        sizes = sets.sizes.tolist()
        return list(zip(time.split(sizes), count.split(sizes), strict=True))


def _check(theta: Tensor, size: Tensor) -> None:
    expect_batch(theta, size, 2)
    if not bool((theta > 0).all()):
        rows = (theta <= 0).any(1).nonzero().flatten().tolist()
        raise DataError(f"`theta` must be positive but rows {describe_rows(rows)} are not.")
