r"""The MCMC posterior to compare with: Hamiltonian Monte Carlo over parameters and every latent variable, by NumPyro.

The gamma population (section 4.3 of the paper) is the example. Member i decays with its own time :math:`\gamma_i` and
is counted once, at time :math:`\tau_i`,

.. math::
    \mu \sim \mathcal U(0.5, 10), \quad \Theta \sim \mathcal U(0.1, 1.5), \quad
    \gamma_i \sim \mathrm{Gamma}(\mu/\Theta, 1/\Theta), \quad s_i \sim \mathrm{Poisson}(A e^{-\tau_i/\gamma_i}),

so a set of n members has a posterior of n + 2 dimensions. They are sampled in :math:`\ln\gamma_i`, centred: counts fix
most members far better than the population does (where they do not, the law of :math:`\ln\gamma_i` has an exponential
tail of rate :math:`\mu/\Theta`, which is harmless), so parameters and members are nearly independent and a step of NUTS
takes tens of gradients even in thousands of dimensions. Chains start apart, around crude decay times
:math:`\tau / \ln(A/s)`.

Everything is computed in float64, switched on for the call alone: on a CPU it costs no more than float32, and the
potential energy of thousands of members keeps its differences.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fishnets.arrays import ArrayLike, as_tensor
from fishnets.errors import ConfigError, ConvergenceWarning, DataError, MissingExtraError, ShapeError

__all__ = ["RHAT_LIMIT", "Chains", "HierarchicalModel", "gamma_population_model", "hmc"]

RHAT_LIMIT = 1.01  # Vehtari et al. 2021

Start = Callable[[np.random.Generator], Mapping[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class HierarchicalModel:
    """A NumPyro model and what helps to sample it.

    Args:
        sample: The NumPyro model, a function without arguments.
        sites: Names of the parameters of interest, whose draws are kept and judged; None keeps every site.
        start: Draws a starting point, a value per site, from a NumPy generator; it is called once per chain.
    """

    sample: Callable[[], None]
    sites: tuple[str, ...] | None = None
    start: Start | None = None


@dataclass(frozen=True, eq=False)
class Chains:
    """Draws of several chains and how far they can be trusted.

    Args:
        samples: Draws of each site, float64, shape (chains, draws, ...).
        rhat: Split R-hat of each site, the largest over its entries; near 1 when the chains agree.
        ess: Effective number of independent draws of each site, the smallest over its entries: what its mean rests on.
        ess_squares: The same of squared deviations, what its variance rests on. Alternating chains, which NUTS makes,
            have a large ``ess`` and a much smaller one of squares.
        divergences: Draws whose trajectory diverged.
        num_steps: Gradients taken while sampling, over all chains.
        warmup_seconds: Time of compiling and warming up.
        sampling_seconds: Time of sampling.
    """

    samples: Mapping[str, Tensor]
    rhat: Mapping[str, float]
    ess: Mapping[str, float]
    ess_squares: Mapping[str, float]
    divergences: int
    num_steps: int
    warmup_seconds: float
    sampling_seconds: float

    @property
    def converged(self) -> bool:
        """Whether every R-hat is at most 1.01."""
        return all(value <= RHAT_LIMIT for value in self.rhat.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the chains, one sentence each; empty when nothing is."""
        found = []
        if not self.converged:
            worst = {k: v for k, v in self.rhat.items() if not v <= RHAT_LIMIT}
            values = ", ".join(f"{name} {value:.3f} (ess {self.ess[name]:.0f})" for name, value in worst.items())
            found.append(
                f"The chains have not converged: R-hat is above {RHAT_LIMIT} for {values}. Raise `num_warmup` and "
                "`num_samples`."
            )
        if self.divergences:
            total = math.prod(next(iter(self.samples.values())).shape[:2])
            found.append(
                f"{self.divergences} of {total} draws diverged, so a part of the posterior may be missing. Raise "
                "`target_accept`, or sample in other coordinates."
            )
        return tuple(found)

    @property
    def seconds(self) -> float:
        """Time of everything: compiling, warming up and sampling."""
        return self.warmup_seconds + self.sampling_seconds

    def stacked(self, names: Sequence[str] | None = None) -> Tensor:
        """Draws of scalar sites side by side, all chains after one another, shape (chains * draws, sites)."""
        chosen = tuple(self.samples) if names is None else names
        return torch.stack([self.samples[name].flatten() for name in chosen], dim=-1)

    def __str__(self) -> str:
        rows = [f"{'site':<12}{'mean':>11}{'sd':>11}{'R-hat':>9}{'ess':>9}"]
        for name, draws in self.samples.items():
            numbers = f"{float(draws.mean()):11.4f}{float(draws.std()):11.4f}" if draws.ndim == 2 else " " * 22
            rows.append(f"{name:<12}{numbers}{self.rhat[name]:9.4f}{self.ess[name]:9.0f}")
        rows.append(f"{self.divergences} divergences, {self.num_steps} gradients, {self.seconds:.1f} s")
        return "\n".join([*rows, *self.warnings])


def hmc(
    model: HierarchicalModel | Callable[[], None],
    num_warmup: int = 1000,
    num_samples: int = 2000,
    num_chains: int = 4,
    seed: int = 0,
    *,
    target_accept: float = 0.8,
    progress: bool | None = None,
) -> Chains:
    """Samples a posterior with NUTS, chains side by side.

    A result that has not converged is reported, not hidden: it comes with a
    :class:`~fishnets.errors.ConvergenceWarning` that gives the numbers, and says so itself (``converged``,
    ``warnings``).

    Args:
        model: The model, as made by :func:`gamma_population_model`, or a plain NumPyro model without arguments.
        num_warmup: Steps of each chain that adapt the sampler and are thrown away.
        num_samples: Draws kept of each chain.
        num_chains: Number of chains.
        seed: Seed of the starting points and of the chains.
        target_accept: Acceptance the step size is adapted to.
        progress: Whether to show a progress bar; by default on a terminal only.

    Returns:
        Draws, R-hat and effective sample sizes.
    """
    for name, number, least in (("num_warmup", num_warmup, 1), ("num_samples", num_samples, 4)):
        if number < least:
            raise ConfigError(f"`{name}` is {number} but at least {least} was expected.")
    if num_chains < 1 or not 0 < target_accept < 1:
        raise ConfigError(
            f"`num_chains` is {num_chains} and `target_accept` {target_accept} but at least 1, and a number between 0 "
            "and 1, were expected."
        )
    _require_numpyro()
    problem = model if isinstance(model, HierarchicalModel) else HierarchicalModel(model)
    bar = sys.stderr.isatty() if progress is None else progress
    chains = _run(problem, num_warmup, num_samples, num_chains, seed, target_accept, bar)
    for text in chains.warnings:
        warnings.warn(text, ConvergenceWarning, stacklevel=2)
    return chains


def gamma_population_model(
    tau: ArrayLike,
    s: ArrayLike,
    *,
    amplitude: float = 500.0,
    mu_range: tuple[float, float] = (0.5, 10.0),
    scale_range: tuple[float, float] = (0.1, 1.5),
) -> HierarchicalModel:
    r"""The population of decay times, with sites ``mu`` and ``Theta`` of interest and ``log_gamma`` of every member.

    Every member must have been kept: counts censored below a threshold follow another law, which this model is not.

    Args:
        tau: Times of measurement :math:`\tau_i`, shape (n,), positive.
        s: Counts :math:`s_i`, shape (n,).
        amplitude: Expected count at time zero, A.
        mu_range: Bounds of the uniform prior of :math:`\mu`.
        scale_range: Bounds of the uniform prior of :math:`\Theta`.

    Returns:
        The model, to be given to :func:`hmc`.
    """
    times, counts = (as_tensor(x, name).detach().cpu().double().numpy() for x, name in ((tau, "tau"), (s, "s")))
    _check_counts(times, counts)
    for name, (low, high) in (("mu_range", mu_range), ("scale_range", scale_range)):
        if not 0 < low < high:
            raise ConfigError(f"`{name}` is ({low}, {high}) but 0 < low < high was expected.")
    _require_numpyro()

    def sample() -> None:
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist
        from jax.scipy.special import gammaln

        mu = numpyro.sample("mu", dist.Uniform(*mu_range))
        scale = numpyro.sample("Theta", dist.Uniform(*scale_range))
        log_gamma = numpyro.sample("log_gamma", dist.ImproperUniform(dist.constraints.real, (), (len(counts),)))
        shape = mu / scale
        # the gamma law in its logarithm, and Poisson relative to the best rate, which keeps the numbers small
        members = shape * log_gamma - jnp.exp(log_gamma) / scale - shape * jnp.log(scale) - gammaln(shape)
        decay = times * jnp.exp(-log_gamma)
        best = np.log(amplitude / np.maximum(counts, 1))
        numpyro.factor("population", members.sum())
        numpyro.factor("counts", (counts * (best - decay) + counts - amplitude * jnp.exp(-decay)).sum())

    def start(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return _start(times, counts, amplitude, mu_range, scale_range, rng)

    return HierarchicalModel(sample, ("mu", "Theta"), start)


def _start(
    tau: np.ndarray,
    s: np.ndarray,
    amplitude: float,
    mu_range: tuple[float, float],
    scale_range: tuple[float, float],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Crude decay times, those the counts do not fix pulled to the median of the others, and a random population."""
    decay = np.log((amplitude + 0.5) / np.minimum(s + 0.5, amplitude))
    crude = np.clip(tau / decay, 0.1, 4 * mu_range[1])
    fisher = s * decay**2  # of ln γ, from the counts
    known = crude[fisher > 20]
    typical = float(np.clip(np.median(known) if len(known) else sum(mu_range) / 2, *mu_range))
    weight = fisher / (fisher + 4)
    log_gamma = weight * np.log(crude) + (1 - weight) * np.log(np.minimum(typical, crude))
    inside = [low + np.array([0.02, 0.98]) * (high - low) for low, high in (mu_range, scale_range)]
    return {
        "mu": np.clip(typical * np.exp(0.2 * rng.normal()), *inside[0]),
        "Theta": rng.uniform(*inside[1]),
        "log_gamma": log_gamma + 0.1 * rng.normal(size=len(s)),
    }


def _check_counts(tau: np.ndarray, s: np.ndarray) -> None:
    if tau.ndim != 1 or tau.shape != s.shape or len(s) == 0:
        raise ShapeError(f"`tau` has shape {tau.shape} and `s` {s.shape} but both must be (n,) with n >= 1.")
    if not (np.isfinite(tau).all() and (tau > 0).all()):
        raise DataError(f"`tau` must be finite and positive but runs from {tau.min()} to {tau.max()}.")
    if not (np.isfinite(s).all() and (s >= 0).all() and (s == np.round(s)).all()):
        raise DataError(
            "`s` must hold whole counts, 0 or more. If these are features divided by the amplitude, multiply first."
        )


def _require_numpyro() -> None:
    try:
        import numpyro  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("numpyro", "hmc", "Hamiltonian Monte Carlo") from error


def _double_precision() -> Any:
    """A context in which JAX computes in float64; nothing changes outside it."""
    import jax

    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # type: ignore[attr-defined] # where older releases keep it

    return enable_x64()


def _run(
    model: HierarchicalModel, num_warmup: int, num_samples: int, num_chains: int, seed: int, accept: float, bar: bool
) -> Chains:
    import jax
    from numpyro.infer import MCMC, NUTS

    with _double_precision():
        start = _starting_points(model, num_chains, np.random.default_rng(seed))
        sampler = MCMC(
            NUTS(model.sample, target_accept_prob=accept),
            num_warmup=num_warmup,
            num_samples=num_samples,
            num_chains=num_chains,
            chain_method="vectorized",  # the faster on two CPU cores up to 1000 members, and it compiles once
            progress_bar=bar,
        )
        first, second = jax.random.split(jax.random.PRNGKey(seed))
        fields = ("num_steps", "diverging", *(f"~z.{name}" for name in _unwanted(model, start)))
        began = time.perf_counter()
        sampler.warmup(first, init_params=start, extra_fields=fields)
        np.asarray(sampler.post_warmup_state.potential_energy)  # waits for JAX
        warm = time.perf_counter()
        sampler.run(second, extra_fields=fields)
        draws = {k: np.asarray(v, dtype=np.float64) for k, v in sampler.get_samples(group_by_chain=True).items()}
        done = time.perf_counter()
        extra = {k: np.asarray(v) for k, v in sampler.get_extra_fields().items()}
    samples = {name: draws[name] for name in (draws if model.sites is None else model.sites)}
    return Chains(
        samples={name: torch.from_numpy(value.copy()) for name, value in samples.items()},
        rhat={name: _worst(value, "rhat") for name, value in samples.items()},
        ess={name: _worst(value, "ess") for name, value in samples.items()},
        ess_squares={name: _worst(_squares(value), "ess") for name, value in samples.items()},
        divergences=int(extra["diverging"].sum()),
        num_steps=int(extra["num_steps"].sum()),
        warmup_seconds=warm - began,
        sampling_seconds=done - warm,
    )


def _starting_points(model: HierarchicalModel, num_chains: int, rng: np.random.Generator) -> dict[str, Any] | None:
    """A starting point of each chain in unconstrained coordinates, (chains, ...) per site; None: NumPyro's own."""
    if model.start is None:
        return None
    import jax.numpy as jnp
    from numpyro.infer.util import unconstrain_fn

    points = [unconstrain_fn(model.sample, (), {}, dict(model.start(rng))) for _ in range(num_chains)]
    if num_chains == 1:
        return dict(points[0])
    return {name: jnp.stack([point[name] for point in points]) for name in points[0]}


def _unwanted(model: HierarchicalModel, start: Mapping[str, Any] | None) -> list[str]:
    """Latent sites whose draws need not be stored: with n members and thousands of draws they fill the memory."""
    return [name for name in start or () if model.sites is not None and name not in model.sites]


def _squares(draws: np.ndarray) -> np.ndarray:
    """Squared deviations from the mean over chains and draws."""
    squares: np.ndarray = (draws - draws.mean((0, 1))) ** 2
    return squares


def _worst(draws: np.ndarray, what: str) -> float:
    """Largest split R-hat, or smallest effective sample size, over the entries of a site (chains, draws, ...)."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    if what == "rhat":
        return float(np.max(split_gelman_rubin(draws)))
    return float(np.min(effective_sample_size(draws)))
