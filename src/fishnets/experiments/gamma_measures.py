"""What is measured of the gamma population: calibration, distance from the exact posterior, and single targets."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fishnets.algebra.gaussian import Gaussian
from fishnets.experiments.records import Metric, metric
from fishnets.inference import Posterior, Summaries, summarize
from fishnets.inference.calibration import coverage_levels, pit, tarp_levels
from fishnets.inference.efficiency import efficiency, mean_with_error, paired_chi2
from fishnets.inference.hmc import gamma_population_model, hmc
from fishnets.inference.uniformity import expected_coverage, uniformity
from fishnets.ragged import Sets
from fishnets.sets import Fishnet
from fishnets.simulators import GammaPopulation

if TYPE_CHECKING:
    from fishnets.experiments.gamma_population import Config, Trained

__all__ = ["PARAMETERS", "Exact", "Laboratory", "Sampled", "TargetPosterior", "Tested"]

PARAMETERS = ("mu", "Theta")
TARGET_SAMPLES = 8_000


@dataclass(frozen=True, eq=False)
class Tested:
    """Fresh test sets of one size, seen by one network.

    Attributes:
        theta: True parameters, shape (T, 2).
        estimate: The network's own Gaussian posterior of each set.
        mean: Mean of the posterior samples, shape (T, 2).
        covariance: Their covariance, shape (T, 2, 2).
        levels: Uniform if calibrated: of each parameter (PIT), "coverage" and "tarp", shape (T,) each.
    """

    theta: Tensor
    estimate: Gaussian
    mean: Tensor
    covariance: Tensor
    levels: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Exact:
    """Exact answers for the first test sets of one size.

    Attributes:
        mean: Posterior mean, shape (E, 2).
        covariance: Posterior covariance, shape (E, 2, 2).
        fisher: Expected Fisher matrix of a set at the truth, shape (E, 2, 2).
        score: Score of the set at the truth, shape (E, 2).
    """

    mean: Tensor
    covariance: Tensor
    fisher: Tensor
    score: Tensor

    def chi2(self, estimate: Tensor, theta: Tensor) -> Metric:
        """Paired squared error of estimates (E, 2) in units of the Cramér-Rao bound."""
        return metric(paired_chi2(estimate, theta, self.score, self.fisher), bound=1.0)


@dataclass(frozen=True, eq=False)
class TargetPosterior:
    """The posterior of one target by one method: samples (S, 2) for figures, moments and time for the table."""

    theta: tuple[float, float]
    method: str
    size: int
    samples: Tensor
    mean: Tensor
    covariance: Tensor
    effective: float  # independent samples behind the moments; infinite for exact ones
    seconds: float

    def metrics(self) -> dict[str, Metric]:
        """Moments with their Monte Carlo errors, and wall time."""
        name = f"target/{self.theta[0]:g},{self.theta[1]:g}/{self.method}/n={self.size}"
        spread = self.covariance.diagonal().sqrt()
        root = math.sqrt(self.effective)
        found = {f"{name}/seconds": Metric(self.seconds, 0.0)}
        for i, parameter in enumerate(PARAMETERS):
            found[f"{name}/mean-{parameter}"] = Metric(float(self.mean[i]), float(spread[i]) / root)
            found[f"{name}/sd-{parameter}"] = Metric(float(spread[i]), float(spread[i]) / (math.sqrt(2) * root))
        correlation = float(self.covariance[0, 1] / spread.prod())
        found[f"{name}/correlation"] = Metric(correlation, (1 - correlation**2) / root)
        found[f"{name}/log-det"] = Metric(float(torch.logdet(self.covariance)), 2 / root)
        return found


@dataclass(frozen=True, eq=False)
class Sampled:
    """The target HMC sampled, and how well it did."""

    posterior: TargetPosterior
    metrics: dict[str, Metric]


@dataclass(eq=False)
class Laboratory:
    """Test data, exact answers and measurements of one experiment; exact answers are computed once."""

    config: Config
    started: float
    earlier: float = 0.0  # seconds of processes that this one resumed from
    answers: dict[int, Exact] = field(default_factory=dict)

    @staticmethod
    def of(config: Config) -> Laboratory:
        """A laboratory whose clock starts now."""
        return Laboratory(config, time.monotonic())

    def seconds(self) -> float:
        """Time since it was made, and of what was resumed from."""
        return self.earlier + time.monotonic() - self.started

    def simulate(self, simulator: GammaPopulation, sizes: Tensor, seed: int) -> tuple[Tensor, Sets]:
        """Parameters from the prior and one set of each size (B,); the seed fixes the draws, whatever the features."""
        generator = torch.Generator(self.config.device).manual_seed(10**6 * (2 + self.config.seed) + seed)
        theta = simulator.prior.sample(len(sizes), generator).to(torch.float32)
        return theta.to(torch.float64), simulator(theta, sizes.to(theta.device), generator)

    def tests(self, simulator: GammaPopulation, size: int) -> tuple[Tensor, Sets]:
        """The test sets of one size."""
        return self.simulate(simulator, torch.full((self.config.test_sets,), size), size)

    def fit(self, simulator: GammaPopulation, model: Fishnet, progress: bool | None) -> dict[int, Posterior]:
        """Posteriors by set size: one for all, or one for each, on sets of their own."""
        chosen, config = self.config.estimator, self.config
        wanted = sorted({*config.test_sizes, *config.exact_sizes})
        if chosen.sizes is not None:
            spread = torch.linspace(math.log(chosen.sizes[0]), math.log(chosen.sizes[1]), chosen.pairs)
            one = self._fit_at(simulator, model, spread.exp().round().long(), 1, progress)
            return dict.fromkeys(wanted, one)
        sizes = {n: torch.full((chosen.pairs,), n) for n in wanted}
        return {n: self._fit_at(simulator, model, size, 100_000 + n, progress) for n, size in sizes.items()}

    def _fit_at(
        self, simulator: GammaPopulation, model: Fishnet, sizes: Tensor, seed: int, progress: bool | None
    ) -> Posterior:
        chosen = self.config.estimator
        theta, sets = self.simulate(simulator, sizes, seed)
        condition = self.condition(summarize(model, sets))
        posterior = Posterior(
            simulator.prior, chosen.kind, chosen.direction, hidden=chosen.hidden, seed=self.config.seed
        )
        posterior.fit(
            theta,
            condition,
            steps=chosen.steps,
            batch_size=chosen.batch_size,
            device=self.config.device,
            progress=progress,
        )
        return posterior

    def condition(self, summaries: Summaries) -> Summaries | Tensor:
        """What the density estimator is given of each set."""
        return summaries if self.config.estimator.whole else summaries.gaussian.mean

    def test(self, simulator: GammaPopulation, model: Fishnet, posterior: Posterior, size: int) -> Tested:
        """Samples the posterior of every test set of one size."""
        theta, sets = self.tests(simulator, size)
        summaries = summarize(model, sets)
        condition = self.condition(summaries)
        generator = torch.Generator(self.config.device).manual_seed(self.config.seed)
        samples = posterior.sample(condition, self.config.num_samples, generator)
        density = posterior.log_prob(torch.cat([theta.unsqueeze(1), samples], dim=1), condition)
        ranks = pit(samples, theta)
        levels = {
            PARAMETERS[0]: ranks[:, 0],
            PARAMETERS[1]: ranks[:, 1],
            "coverage": coverage_levels(density[:, 1:], density[:, 0]),
            "tarp": tarp_levels(samples, theta, bounds=(simulator.prior.low, simulator.prior.high)),
        }
        centred = samples - samples.mean(1, keepdim=True)
        covariance = centred.mT @ centred / (samples.shape[1] - 1)
        return Tested(theta, summaries.gaussian, samples.mean(1), covariance, levels)

    def exact(self, size: int) -> Exact:
        """Exact answers for the first test sets of one size."""
        if size not in self.answers:
            simulator = GammaPopulation(self.config.threshold)
            theta, sets = self.tests(simulator, size)
            number = min(self.config.exact_sets, len(theta))
            grids = [simulator.posterior(sets[i : i + 1]) for i in range(number)]
            self.answers[size] = Exact(
                torch.stack([grid.mean for grid in grids]),
                torch.stack([grid.covariance for grid in grids]),
                size * simulator.fisher_per_datum(theta[:number]),
                simulator.score(sets[:number], theta[:number]),
            )
        return self.answers[size]

    def metrics(self, label: str, prefix: str, tested: Mapping[int, Tested]) -> dict[str, Metric]:
        """Everything measured of one network on its test sets; test statistics and p-values carry no error."""
        found: dict[str, Metric] = {}
        for size, one in tested.items():
            for parameter in PARAMETERS:
                test = uniformity(one.levels[parameter].cpu())
                paper = _paper_p(self.config, parameter, size)
                found[f"ks{prefix}/{parameter}/n={size}"] = Metric(test.statistic, 0.0)
                found[f"ks_p{prefix}/{parameter}/n={size}"] = Metric(test.p_value, 0.0, paper)
            for name in ("tarp", "coverage"):
                test = uniformity(one.levels[name].cpu())
                found[f"{name}{prefix}/n={size}"] = Metric(test.statistic, 0.0)
                found[f"{name}_p{prefix}/n={size}"] = Metric(test.p_value, 0.0)
                found[f"{name}_in_band{prefix}/n={size}"] = Metric(float(test.inside), 0.0)
            for nominal in (0.68, 0.95):
                share = float(expected_coverage(one.levels["coverage"].cpu(), [nominal])[0])
                error = math.sqrt(max(share * (1 - share), 1e-4) / len(one.theta))
                found[f"coverage{100 * nominal:.0f}{prefix}/n={size}"] = Metric(share, error, bound=nominal)
            found |= _bias(label, size, one)
        for size in self.config.exact_sizes:
            if size in tested:
                found |= self._against_exact(label, size, tested[size])
        return found

    def _against_exact(self, label: str, size: int, tested: Tested) -> dict[str, Metric]:
        exact = self.exact(size)
        number = len(exact.mean)
        area = (torch.logdet(tested.covariance[:number]) - torch.logdet(exact.covariance)).mul(0.5).exp()
        estimate, mean = tested.estimate.mean[:number], tested.mean[:number]
        name = f"{label}/n={size}"
        theta = tested.theta[:number]
        return {
            f"area_ratio/{name}": metric(mean_with_error(area), bound=1.0),
            f"chi2/{name}": exact.chi2(estimate, theta),
            f"chi2-of-posterior-mean/{name}": exact.chi2(mean, theta),
            f"chi2-of-exact-mean/n={size}": exact.chi2(exact.mean, theta),
            f"efficiency/{name}": metric(efficiency(estimate, exact.mean, exact.fisher), bound=1.0),
            f"efficiency-of-posterior-mean/{name}": metric(efficiency(mean, exact.mean, exact.fisher), bound=1.0),
        }

    def target_sets(self, simulator: GammaPopulation, number: int, size: int) -> Sets:
        """The data set of a target; both sizes start from one seed, as in the paper."""
        generator = torch.Generator(self.config.device).manual_seed(10**7 + number)
        theta = torch.tensor([self.config.targets[number]], dtype=torch.float32, device=self.config.device)
        return simulator(theta, torch.tensor([size], device=self.config.device), generator)

    def exact_targets(self) -> list[TargetPosterior]:
        """Exact posteriors of every target."""
        simulator = GammaPopulation(self.config.threshold)
        found = []
        for number, size in self._target_cases():
            sets = self.target_sets(simulator, number, size)
            started = time.monotonic()
            grid = simulator.posterior(sets)
            mean, covariance, seconds = grid.mean.cpu(), grid.covariance.cpu(), time.monotonic() - started
            samples = grid.sample(TARGET_SAMPLES, torch.Generator(self.config.device).manual_seed(number)).cpu()
            theta = self.config.targets[number]
            found.append(TargetPosterior(theta, "exact", size, samples, mean, covariance, math.inf, seconds))
        return found

    def learned_targets(self, label: str, simulator: GammaPopulation, trained: Trained) -> list[TargetPosterior]:
        """Posteriors of every target from one network's summaries."""
        found = []
        for number, size in self._target_cases():
            sets = self.target_sets(simulator, number, size)
            started = time.monotonic()
            generator = torch.Generator(self.config.device).manual_seed(number)
            condition = self.condition(summarize(trained.model, sets))
            samples = trained.posteriors[size].sample(condition, TARGET_SAMPLES, generator)[0].cpu()
            seconds = time.monotonic() - started
            moments = samples.mean(0), samples.mT.cov()
            theta = self.config.targets[number]
            found.append(TargetPosterior(theta, label, size, samples, *moments, float(TARGET_SAMPLES), seconds))
        return found

    def hmc_target(self, size: int) -> Sampled:
        """The first target, sampled by HMC, beside the exact grid."""
        simulator = GammaPopulation(self.config.threshold)
        sets = self.target_sets(simulator, 0, size)
        chains = hmc(gamma_population_model(*simulator.columns(sets.values)), seed=self.config.seed, progress=False)
        samples = chains.stacked(PARAMETERS)
        moments = samples.mean(0), samples.mT.cov()
        effective = min(*chains.ess.values(), *chains.ess_squares.values())
        theta = self.config.targets[0]
        posterior = TargetPosterior(theta, "hmc", size, samples, *moments, effective, chains.seconds)
        exact = simulator.posterior(sets)
        found = {
            f"hmc/ess/n={size}": Metric(min(chains.ess.values()), 0.0),
            f"hmc/ess-of-squares/n={size}": Metric(min(chains.ess_squares.values()), 0.0),
            f"hmc/rhat/n={size}": Metric(max(chains.rhat.values()), 0.0),
            f"hmc/divergences/n={size}": Metric(float(chains.divergences), 0.0),
        }
        for i, parameter in enumerate(PARAMETERS):
            spread = float(exact.covariance[i, i].sqrt())
            off = (float(moments[0][i]) - float(exact.mean[i])) / spread
            ratio = float(moments[1][i, i].sqrt()) / spread
            name = f"{parameter}/n={size}"
            found[f"hmc/mean-minus-exact-in-sd/{name}"] = Metric(off, 1 / math.sqrt(effective), bound=0.0)
            found[f"hmc/sd-over-exact/{name}"] = Metric(ratio, ratio / math.sqrt(2 * effective), bound=1.0)
        return Sampled(posterior, found)

    def _target_cases(self) -> list[tuple[int, int]]:
        return [(number, size) for number in range(len(self.config.targets)) for size in self.config.exact_sizes]


def _paper_p(config: Config, parameter: str, size: int) -> float | None:
    """The paper's p-values, which it gives for the censored case; it names no set size, and its test sets have 10^4."""
    if config.threshold is None or size != 10_000:
        return None
    return {"mu": 0.628, "Theta": 0.233}[parameter]


def _bias(label: str, size: int, tested: Tested) -> dict[str, Metric]:
    """Mean error of the network's own estimate over the prior, by parameter."""
    error = tested.estimate.mean - tested.theta
    return {
        f"bias/{label}/{parameter}/n={size}": metric(mean_with_error(error[:, i]), bound=0.0)
        for i, parameter in enumerate(PARAMETERS)
    }
