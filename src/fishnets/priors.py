"""Priors: what theta is drawn from in training, and what a posterior is multiplied by.

A prior is anything with ``sample(num_samples, generator)``, ``log_prob(theta)``, ``mean`` and ``covariance``; the
Gaussian algebra uses its two moments.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fishnets.algebra.cholesky import cholesky
from fishnets.algebra.gaussian import Gaussian
from fishnets.arrays import ArrayLike
from fishnets.errors import ConfigError, DataError, ShapeError, expect_last_dim, expect_square

__all__ = ["Box", "Moments", "Normal", "Prior", "prior_from_dict", "prior_to_dict"]


@runtime_checkable
class Prior(Protocol):
    """What this library asks of a prior."""

    @property
    def mean(self) -> Tensor: ...

    @property
    def covariance(self) -> Tensor: ...

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor: ...

    def log_prob(self, theta: Tensor) -> Tensor: ...


class Normal:
    r"""The Gaussian prior :math:`\mathcal N(\mu_p, C_p)`.

    Args:
        mean: Mean :math:`\mu_p`, shape (p,).
        covariance: Covariance :math:`C_p`, shape (p, p), or variances, shape (p,).

    Example:
        >>> Normal([0.0, 0.0], [1.0, 4.0]).covariance.diagonal()
        tensor([1., 4.], dtype=torch.float64)
    """

    def __init__(self, mean: ArrayLike, covariance: ArrayLike) -> None:
        self.mean = _vector("mean", mean)
        matrix = torch.as_tensor(covariance, dtype=torch.float64)
        self.covariance = torch.diag(matrix) if matrix.ndim == 1 else matrix
        expect_square("covariance", self.covariance, len(self.mean))
        if not torch.allclose(self.covariance, self.covariance.mT, equal_nan=True):
            raise ConfigError(f"`covariance` is {self.covariance.tolist()} but a symmetric matrix was expected.")
        self._factor = cholesky(self.covariance, "covariance")

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws parameters, shape (num_samples, p), float64, on the generator's device."""
        device = generator.device if generator is not None else torch.device("cpu")
        noise = torch.randn(
            (num_samples, len(self.mean)), generator=generator, dtype=torch.float64, device=device
        )
        return self.mean.to(device) + noise @ self._factor.mT.to(device)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density, shape (*), of parameters of shape (*, p)."""
        expect_last_dim("theta", theta, len(self.mean))
        gaussian = Gaussian(self.mean.to(theta.device), torch.cholesky_inverse(self._factor).to(theta.device))
        return gaussian.log_prob(theta.to(torch.float64))

    def __repr__(self) -> str:
        return f"Normal(mean={self.mean.tolist()}, covariance={self.covariance.tolist()})"


class Box:
    """The uniform prior on a box.

    Args:
        low: Lower corner, shape (p,).
        high: Upper corner, shape (p,).

    Example:
        >>> Box([0.0], [12.0]).mean, Box([0.0], [12.0]).covariance
        (tensor([6.], dtype=torch.float64), tensor([[12.]], dtype=torch.float64))
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low, self.high = _vector("low", low), _vector("high", high)
        if self.low.shape != self.high.shape:
            raise ShapeError(f"`low` has {len(self.low)} entries but `high` has {len(self.high)}; they must agree.")
        if not bool((self.low < self.high).all()):
            raise ConfigError(
                f"`low` {self.low.tolist()} must lie below `high` {self.high.tolist()} in every parameter."
            )

    @property
    def mean(self) -> Tensor:
        """Centre of the box, shape (p,)."""
        return 0.5 * (self.low + self.high)

    @property
    def covariance(self) -> Tensor:
        """Variances width²/12 on the diagonal, shape (p, p)."""
        return torch.diag((self.high - self.low).square() / 12)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws parameters, shape (num_samples, p), float64, on the generator's device."""
        device = generator.device if generator is not None else torch.device("cpu")
        uniform = torch.rand((num_samples, len(self.low)), generator=generator, dtype=torch.float64, device=device)
        return self.low.to(device) + uniform * (self.high - self.low).to(device)

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log-density, -inf outside, shape (*), of parameters of shape (*, p)."""
        expect_last_dim("theta", theta, len(self.low))
        low, high = self.low.to(theta.device), self.high.to(theta.device)
        inside = ((theta >= low) & (theta <= high)).all(-1)
        level = -(high - low).log().sum()
        return torch.where(inside, level, level.new_full((), -torch.inf))

    def __repr__(self) -> str:
        return f"Box(low={self.low.tolist()}, high={self.high.tolist()})"


class Moments:
    """The two moments of a prior whose class is not ours, as a model file remembers it.

    It serves wherever only moments are used (estimates, posteriors). Sampling and densities need the prior itself.
    """

    def __init__(self, mean: ArrayLike, covariance: ArrayLike, source: str) -> None:
        self.mean = _vector("mean", mean)
        self.covariance = torch.as_tensor(covariance, dtype=torch.float64)
        self.source = source
        expect_square("covariance", self.covariance, len(self.mean))

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Refuses: only the moments are known."""
        raise DataError(self._refusal("sampled"))

    def log_prob(self, theta: Tensor) -> Tensor:
        """Refuses: only the moments are known."""
        raise DataError(self._refusal("evaluated"))

    def _refusal(self, what: str) -> str:
        return (
            f"The file keeps only the mean and covariance of the prior `{self.source}`, so it cannot be {what}. "
            "Give the prior itself: `fishnets.load(path, prior=...)`."
        )

    def __repr__(self) -> str:
        return f"Moments(mean={self.mean.tolist()}, covariance={self.covariance.tolist()}, source={self.source!r})"


def prior_to_dict(prior: Prior) -> dict[str, Any]:
    """Describes a prior in plain JSON values; one of a foreign class by its moments.

    Example:
        >>> prior_to_dict(Box([0.0], [1.0]))
        {'kind': 'Box', 'low': [0.0], 'high': [1.0]}
    """
    if type(prior) is Box:  # a subclass may have other moments, which the file must keep
        return {"kind": "Box", "low": prior.low.tolist(), "high": prior.high.tolist()}
    moments = {"mean": prior.mean.tolist(), "covariance": prior.covariance.tolist()}
    if type(prior) is Normal:
        return {"kind": "Normal", **moments}
    source = prior.source if isinstance(prior, Moments) else f"{type(prior).__module__}.{type(prior).__qualname__}"
    return {"kind": "Moments", **moments, "source": source}


def prior_from_dict(fields: dict[str, Any]) -> Prior:
    """Rebuilds a prior from :func:`prior_to_dict`.

    Example:
        >>> prior_from_dict({"kind": "Box", "low": [0.0], "high": [1.0]})
        Box(low=[0.0], high=[1.0])
    """
    kinds: dict[str, type[Any]] = {"Normal": Normal, "Box": Box, "Moments": Moments}
    fields = dict(fields)
    kind = fields.pop("kind", None)
    if kind not in kinds:
        raise ConfigError(f"Unknown prior kind {kind!r}; expected one of {sorted(kinds)}.")
    prior: Prior = kinds[kind](**fields)
    return prior


def _vector(name: str, value: ArrayLike) -> Tensor:
    vector = torch.as_tensor(value, dtype=torch.float64)
    if vector.ndim != 1 or len(vector) == 0:
        raise ShapeError(f"`{name}` has shape {tuple(vector.shape)} but one value per parameter, (p,), was expected.")
    if not bool(torch.isfinite(vector).all()):
        raise ConfigError(f"`{name}` is {vector.tolist()} but finite values were expected.")
    return vector
