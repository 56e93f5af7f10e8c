"""Hamiltonian Monte Carlo: the posterior on a grid, chains that disagree, and what is refused."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from fishnets.errors import ConfigError, ConvergenceWarning, DataError, MissingExtraError, ShapeError
from fishnets.inference.hmc import Chains, HierarchicalModel, gamma_population_model, hmc

pytest.importorskip("numpyro")

AMPLITUDE = 500.0


def members(mu: float, scale: float, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gamma = rng.gamma(mu / scale, scale, number)
    tau = rng.uniform(0, 10, number)
    return tau, rng.poisson(AMPLITUDE * np.exp(-tau / gamma))


def grid_moments(tau: np.ndarray, s: np.ndarray, mu: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (2,) and covariance (2, 2) of the posterior of (mu, Theta), decay times integrated out one by one.

    The likelihood of a member is a quadrature over ln gamma, and decay times below it leave no count; priors are flat,
    so the grid need only hold the mass.
    """
    log_gamma = torch.linspace(-9, 5, 3001, dtype=torch.float64)
    decay = torch.from_numpy(tau)[:, None] * torch.exp(-log_gamma)
    counts = torch.from_numpy(s).double()[:, None]
    poisson = torch.exp(counts * (np.log(AMPLITUDE) - decay) - AMPLITUDE * torch.exp(-decay) - torch.lgamma(counts + 1))
    points = torch.cartesian_prod(mu, scale)
    shape = (points[:, 0] / points[:, 1])[:, None]
    population = shape * log_gamma - log_gamma.exp() / points[:, 1:] - shape * points[:, 1:].log() - shape.lgamma()
    below = torch.special.gammainc(shape, log_gamma[:1].exp() / points[:, 1:])  # (points, 1)
    likelihood = poisson @ population.exp().T * (log_gamma[1] - log_gamma[0]) + (counts == 0) * below.T
    log_posterior = likelihood.log().sum(0)
    weight = torch.softmax(log_posterior, 0)
    mean = weight @ points
    return mean, (weight[:, None] * (points - mean)).T @ (points - mean)


def grid_around(draws: Tensor, low: float, high: float) -> Tensor:
    """The middles of 40 cells that hold all of the mass inside the prior, which may end where the density does not."""
    centre, width = float(draws.mean()), 6 * float(draws.std())
    edges = torch.linspace(max(low, centre - width), min(high, centre + width), 41, dtype=torch.float64)
    return (edges[1:] + edges[:-1]) / 2


def check_against_grid(chains: Chains, tau: np.ndarray, s: np.ndarray) -> None:
    draws = chains.stacked(("mu", "Theta"))
    mean, covariance = grid_moments(tau, s, grid_around(draws[:, 0], 0.5, 10), grid_around(draws[:, 1], 0.1, 1.5))
    error = draws.std(0) / torch.tensor([chains.ess["mu"], chains.ess["Theta"]]).sqrt()
    assert bool(((draws.mean(0) - mean).abs() < 4 * error).all())
    deviation = covariance.diagonal().sqrt()
    difference = (draws.T.cov() - covariance) / torch.outer(deviation, deviation)
    assert float(difference.abs().max()) < 0.15


def test_posterior_of_the_gamma_population_is_that_of_the_grid():
    tau, s = members(5.1, 0.82, 80, seed=3)
    chains = hmc(gamma_population_model(tau, s), num_warmup=300, num_samples=1000)
    assert chains.converged
    assert chains.warnings == ()
    assert chains.divergences == 0
    assert set(chains.samples) == {"mu", "Theta"}
    assert chains.samples["mu"].shape == (4, 1000)
    assert chains.samples["mu"].dtype == torch.float64
    assert min(chains.ess.values()) > 400
    check_against_grid(chains, tau, s)
    assert str(chains).splitlines()[1].startswith("mu ")


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "scale", "number"), [(2.0, 0.8, 300), (0.8, 1.2, 300), (5.1, 0.82, 500)])
def test_posterior_is_that_of_the_grid_elsewhere_too(mu, scale, number):
    """At (0.8, 1.2) more than half of the members leave no count."""
    tau, s = members(mu, scale, number, seed=5)
    chains = hmc(gamma_population_model(torch.from_numpy(tau), torch.from_numpy(s)), seed=1)
    assert chains.converged
    check_against_grid(chains, tau, s)


def bimodal() -> None:
    import numpyro
    import numpyro.distributions as dist

    sides = dist.Normal(np.array([-50.0, 50.0]), 1.0)
    numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(np.array([0.5, 0.5])), sides))
    numpyro.sample("y", dist.Normal(np.zeros(3), 2.0).to_event(1))


def test_chains_that_disagree_are_reported_and_kept():
    sides = itertools.cycle([-50.0, 50.0])

    def start(rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"x": next(sides) + rng.normal(), "y": rng.normal(size=3)}

    report = r"not converged: R-hat is above 1.01 for x \d+\.\d+ \(ess \d+\). Raise"
    with pytest.warns(ConvergenceWarning, match=report):
        chains = hmc(HierarchicalModel(bimodal, start=start), num_warmup=200, num_samples=400, num_chains=2)
    assert not chains.converged
    assert chains.rhat["x"] > 10
    assert len(chains.warnings) == 1
    assert "The chains have not converged" in str(chains)
    assert chains.samples["y"].shape == (2, 400, 3)
    assert float(chains.samples["y"].std()) == pytest.approx(2, rel=0.15)


def test_diverging_draws_are_reported():
    draws = {"x": torch.zeros(2, 10)}
    chains = Chains(draws, {"x": 1.0}, {"x": 20.0}, {"x": 9.0}, 3, 100, 1.0, 2.0)
    assert chains.converged
    assert chains.seconds == 3.0
    assert chains.warnings == (
        "3 of 20 draws diverged, so a part of the posterior may be missing. Raise `target_accept`, or sample in other "
        "coordinates.",
    )


def test_undefined_rhat_counts_as_not_converged():
    assert not Chains({"x": torch.zeros(2, 10)}, {"x": float("nan")}, {"x": 1.0}, {"x": 1.0}, 0, 1, 1.0, 1.0).converged


def test_float64_stays_inside_the_call():
    import jax.numpy as jnp

    from fishnets.inference.hmc import _double_precision

    with _double_precision():
        assert jnp.zeros(1).dtype == jnp.float64
    assert jnp.zeros(1).dtype == jnp.float32


def test_missing_extra_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpyro", None)
    for call in (lambda: gamma_population_model([1.0], [3]), lambda: hmc(bimodal)):
        with pytest.raises(MissingExtraError, match=r"Hamiltonian Monte Carlo needs `numpyro`.*'fishnets\[hmc\]'"):
            call()


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(ShapeError, match=r"`tau` has shape \(2,\) and `s` \(1,\) but both must be \(n,\)"):
        gamma_population_model([1.0, 2.0], [3])
    with pytest.raises(DataError, match=r"`tau` must be finite and positive but runs from -1.0 to 2.0"):
        gamma_population_model([-1.0, 2.0], [3, 3])
    with pytest.raises(DataError, match=r"`s` must hold whole counts, 0 or more. If these are features divided by"):
        gamma_population_model([1.0, 2.0], [0.25, 0.5])
    with pytest.raises(ConfigError, match=r"`mu_range` is \(3.0, 2.0\) but 0 < low < high was expected"):
        gamma_population_model([1.0], [3], mu_range=(3.0, 2.0))
    with pytest.raises(ConfigError, match="`num_samples` is 2 but at least 4 was expected"):
        hmc(bimodal, num_samples=2)
    with pytest.raises(ConfigError, match=r"`num_chains` is 0 and `target_accept` 0.8 but at least 1"):
        hmc(bimodal, num_chains=0)
