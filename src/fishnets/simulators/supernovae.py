r"""Type Ia supernovae: distance moduli of a flat universe, each with its own redshift and error.

.. math::
    \mu_i \sim \mathcal N(\mu(z_i; \theta), \sigma_i^2), \quad
    \mu(z) = 5 \log_{10} \frac{d_L(z; \Omega_m, w)}{10\,\mathrm{pc}} + \delta,

where the offset :math:`\delta` stands for the errors of the Hubble constant and of the absolute magnitude; distances
are those of :mod:`fishnets.simulators.cosmology`, posteriors of :mod:`fishnets.simulators.supernova_posterior`.
Redshifts and errors are given, not inferred: at :math:`\theta` a datum has the Jacobian
:math:`J_i = \nabla_\theta \mu(z_i; \theta)`, and

.. math::
    t = \sum_i J_i \frac{\mu_i - \mu(z_i; \theta)}{\sigma_i^2}, \qquad F = \sum_i \frac{J_i J_i^T}{\sigma_i^2} .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_float
from fishnets.errors import DataError, ShapeError, describe_rows, expect_batch, expect_last_dim
from fishnets.ops.segment_information import segment_sum
from fishnets.priors import Box
from fishnets.ragged import Sets
from fishnets.simulators.cosmology import MAGNITUDES, REFERENCE, DistancePath, reference_modulus
from fishnets.simulators.grid import GridPosterior
from fishnets.simulators.supernova_posterior import SupernovaPosterior, posterior_of_pairs, posterior_of_triples

__all__ = ["Supernovae"]

Z_RANGE, NEARBY_Z, SIGMA_RANGE = (0.01, 2.0), 0.1, (0.05, 1.5)
# what differs from survey to survey: depth, power with which redshifts crowd towards zero, typical error at z = 0;
LOG_UNIFORM = ((0.3, 2.0), (0.5, 2.0), (0.08, 0.5))
# share of a nearby sample, power of (1 + z) with which errors grow, scatter of their logarithm
UNIFORM = ((0.0, 0.6), (-0.5, 1.5), (0.1, 0.6))


@dataclass(frozen=True)
class Supernovae:
    r"""The simulator and its exact answers.

    A datum has three features, :math:`(\mu - \mu_{\rm ref}(z), \ln z, \ln\sigma)`, where :math:`\mu_{\rm ref}` is the
    modulus for :math:`\Omega_m = 0.3, w = -1, \delta = 0`: computed from the table alone, of order one, and without the
    thirteen magnitudes by which far supernovae are fainter than near ones in every universe.

    Args:
        dark_energy: Whether w is a parameter, :math:`\theta = (\Omega_m, w, \delta)`; else it is -1 and
            :math:`\theta = (\Omega_m, \delta)`.

    Example:
        >>> simulator = Supernovae()
        >>> theta = torch.tensor([[0.3, 0.0]])
        >>> sets = simulator(theta, torch.tensor([1000]), torch.Generator().manual_seed(0))
        >>> sets
        Sets(num_sets=1, num_data=1000, num_features=3)
        >>> simulator.posterior(sets).mean.round(decimals=2)
        tensor([0.3100, 0.0000], dtype=torch.float64)
    """

    dark_energy: bool = False

    @property
    def num_features(self) -> int:
        """Width of a datum."""
        return 3

    @property
    def num_params(self) -> int:
        """Number of parameters, p."""
        return 3 if self.dark_energy else 2

    @property
    def prior(self) -> Box:
        """Uniform: matter density from 0 to 1, equation of state from -2 to -0.4, offset within 0.5 magnitudes."""
        return Box([0.0, -2.0, -0.5], [1.0, -0.4, 0.5]) if self.dark_energy else Box([0.0, -0.5], [1.0, 0.5])

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws one survey per row of ``theta``, each with its own depth, nearby sample and error model.

        Args:
            theta: Parameters, shape (B, p); its dtype and device are those of the result.
            size: Number of supernovae of each set, int64, shape (B,).
            generator: Source of the randomness, on the device of ``theta``.

        Returns:
            B sets.
        """
        expect_batch(theta, size, self.num_params)
        offsets = torch.cat([size.new_zeros(1), size.cumsum(0)])
        # one wait for the device answers both questions
        num_data, num_bad = torch.stack([offsets[-1], _impossible(theta).sum()]).tolist()
        if num_bad:
            _refuse(theta)
        survey = torch.rand((len(theta), 6), generator=generator, dtype=theta.dtype, device=theta.device)
        rows = torch.repeat_interleave(torch.cat([theta, survey], dim=1), size, dim=0, output_size=num_data)
        z, sigma = _covariates(rows[:, -6:], generator)
        return Sets(self._observe(rows[:, :-6], z.log(), sigma.log(), generator), offsets)

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator | None = None) -> Sets:
        """Draws new moduli at each row's own redshift and error, for parameters ``theta`` (B, p)."""
        self._expect_one_each(sets, theta)
        rows = theta.to(sets.values)[sets.index]
        return Sets(self._observe(rows, sets.values[:, 1], sets.values[:, 2], generator), sets.offsets)

    def modulus(self, z: Tensor, theta: Tensor) -> Tensor:
        """Distance moduli mu(z; theta) in magnitudes, shape (*), of redshifts (*) and parameters (*, p) or (p,).

        Example:
            >>> Supernovae().modulus(torch.tensor([0.5, 1.0]), torch.tensor([0.3, 0.0])).round(decimals=2)
            tensor([42.2600, 44.1000])
        """
        expect_last_dim("theta", theta, self.num_params)
        return reference_modulus(z) + self._shift(z, theta)

    def pack(self, z: ArrayLike, mu: ArrayLike, sigma: ArrayLike) -> Tensor:
        """Turns columns of a table, each of shape (n,), into the rows of a set, shape (n, 3).

        Example:
            >>> Supernovae().pack([0.5], [42.3611], [0.2]).round(decimals=3)
            tensor([[ 0.1000, -0.6930, -1.6090]])
        """
        names = ("z", "mu", "sigma")
        columns = [as_float(column, name) for column, name in zip((z, mu, sigma), names, strict=True)]
        if any(column.ndim != 1 or column.shape != columns[0].shape for column in columns):
            shapes = ", ".join(f"`{name}` {tuple(c.shape)}" for name, c in zip(names, columns, strict=True))
            raise ShapeError(f"The columns have shapes {shapes} but one and the same (n,) was expected.")
        _expect_table(*columns)
        return torch.stack([columns[1] - reference_modulus(columns[0]), columns[0].log(), columns[2].log()], dim=1)

    def columns(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reads z, mu and sigma back from the features, each of shape (n,)."""
        expect_last_dim("values", values, 3)
        z = values[:, 1].exp()
        return z, values[:, 0] + reference_modulus(z), values[:, 2].exp()

    def log_likelihood(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact log-likelihood of each set at its own parameters (B, p), shape (B,), float64."""
        self._expect_one_each(sets, theta)
        y, log_z, log_sigma = sets.values.to(torch.float64).unbind(1)
        white = (y - self._shift(log_z.exp(), theta.to(y)[sets.index])) / log_sigma.exp()
        log_density = -0.5 * white.square() - log_sigma - 0.5 * math.log(2 * math.pi)
        return segment_sum(log_density.unsqueeze(1), sets.offsets).squeeze(1)

    def score(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact score of each set at its own parameters (B, p), shape (B, p), float64."""
        residual, jacobian, weight = self._linearised(sets, theta)
        return segment_sum(jacobian * (weight * residual).unsqueeze(1), sets.offsets)

    def fisher(self, sets: Sets, theta: Tensor) -> Tensor:
        """Exact expected Fisher matrix at each set's own redshifts, errors and parameters, (B, p, p), float64."""
        _, jacobian, weight = self._linearised(sets, theta)
        outer = (weight.unsqueeze(1) * jacobian).unsqueeze(2) * jacobian.unsqueeze(1)  # (n, p, p)
        return segment_sum(outer.flatten(1), sets.offsets).reshape(-1, self.num_params, self.num_params)

    def posterior(self, sets: Sets, points: int = 81) -> GridPosterior | SupernovaPosterior:
        """The exact posterior of a single set, on a grid of ``points`` squared that adapts to it.

        With two parameters the grid holds both; with three it holds the first two, and the offset, in which the modulus
        is linear, is integrated out at each of its points.
        """
        if len(sets) != 1:
            raise ShapeError(f"One set was expected but {len(sets)} were given; take them one by one: `sets[i]`.")
        expect_last_dim("values", sets.values, 3)
        low, high = (bound.to(sets.device) for bound in (self.prior.low, self.prior.high))
        posterior_of = posterior_of_triples if self.dark_energy else posterior_of_pairs
        return posterior_of(sets.values.to(torch.float64), self._shift, low, high, points)

    def _shift(self, z: Tensor, theta: Tensor) -> Tensor:
        """Modulus minus that of the reference, shape (*), at redshifts (*) and parameters (*, p)."""
        path = DistancePath.until(z)
        ratio = path.distance(*self._universe(theta)) / path.distance(REFERENCE)
        return MAGNITUDES * ratio.log() + theta[..., -1]

    def _universe(self, theta: Tensor) -> tuple[Tensor, Tensor | None]:
        """Matter density and, if it is free, equation of state, (*, 1) each."""
        return theta[..., :1], theta[..., 1:2] if self.dark_energy else None

    def _observe(self, theta: Tensor, log_z: Tensor, log_sigma: Tensor, generator: torch.Generator | None) -> Tensor:
        """Rows (n, 3) with drawn moduli, for one row of parameters each (n, p)."""
        noise = torch.randn(len(log_z), generator=generator, dtype=log_z.dtype, device=log_z.device)
        residual = self._shift(log_z.exp(), theta) + log_sigma.exp() * noise
        return torch.stack([residual, log_z, log_sigma], dim=1)

    def _linearised(self, sets: Sets, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Residual (n,), Jacobian of the modulus (n, p) and inverse variance (n,) of every row, in float64."""
        self._expect_one_each(sets, theta)
        y, log_z, log_sigma = sets.values.to(torch.float64).unbind(1)
        rows, path = theta.to(y)[sets.index], DistancePath.until(log_z.exp())
        universe = self._universe(rows)
        relative = path.slopes(*universe) / path.distance(*universe).unsqueeze(1)
        jacobian = torch.cat([MAGNITUDES * relative, torch.ones_like(relative[:, :1])], dim=1)
        return y - self._shift(log_z.exp(), rows), jacobian, torch.exp(-2 * log_sigma)

    def _expect_one_each(self, sets: Sets, theta: Tensor) -> None:
        expect_last_dim("values", sets.values, 3)
        if theta.shape != (shape := (len(sets), self.num_params)):
            raise ShapeError(f"`theta` has shape {tuple(theta.shape)} but one row per set, {shape}, was expected.")
        if bool(_impossible(theta).any()):
            _refuse(theta)


def _covariates(survey: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Redshifts and errors (n,), given six numbers between 0 and 1 that each shares with its survey, (n, 6)."""
    unit = survey.unbind(1)
    depth, crowding, typical = (low * (high / low) ** x for x, (low, high) in zip(unit[:3], LOG_UNIFORM, strict=True))
    nearby, growth, scatter = (low + (high - low) * x for x, (low, high) in zip(unit[3:], UNIFORM, strict=True))
    place, part = torch.rand((2, len(survey)), generator=generator, dtype=survey.dtype, device=survey.device)
    lowest, highest = Z_RANGE
    far = lowest + (depth - lowest) * place**crowding
    near = lowest * (NEARBY_Z / lowest) ** place
    z = torch.where(part < nearby, near, far).clamp(lowest, highest)
    noise = torch.randn(len(survey), generator=generator, dtype=survey.dtype, device=survey.device)
    sigma = typical * (1 + z) ** growth * torch.exp(scatter * noise)
    return z, sigma.clamp(*SIGMA_RANGE)


def _expect_table(z: Tensor, mu: Tensor, sigma: Tensor) -> None:
    bad = ~((z > 0) & (sigma > 0) & torch.isfinite(z + mu + sigma))
    if bool(bad.any()):
        rows = bad.nonzero().flatten().tolist()
        first = ", ".join(f"{float(column[rows[0]]):.3g}" for column in (z, mu, sigma))
        raise DataError(
            f"{len(rows)} of {len(z)} supernovae are impossible: rows {describe_rows(rows)}; row {rows[0]} has (z, mu, "
            f"sigma) = ({first}), and finite numbers with positive z and sigma were expected. Leave such rows out."
        )


def _impossible(theta: Tensor) -> Tensor:
    """Rows of parameters (B, p) for which there is no expanding universe, or which are not finite."""
    return ~((theta[:, 0] >= 0) & torch.isfinite(theta).all(1))


def _refuse(theta: Tensor) -> None:
    rows = _impossible(theta).nonzero().flatten().tolist()
    raise DataError(
        f"The matter density, `theta[:, 0]`, must not be negative, and all must be finite, but rows "
        f"{describe_rows(rows)} are not so; row {rows[0]} is {theta[rows[0]].tolist()}. Keep to the prior."
    )
