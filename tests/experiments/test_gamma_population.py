"""The gamma population: configs, protocols, the measuring code against exact posteriors, and runs of seconds."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fishnets.algebra import Gaussian
from fishnets.errors import ConfigError
from fishnets.experiments import gamma_measures as measures
from fishnets.experiments import gamma_population as experiment
from fishnets.experiments.candidates import untrained
from fishnets.experiments.gamma_figures import draw
from fishnets.experiments.gamma_measures import PARAMETERS, Laboratory, TargetPosterior
from fishnets.experiments.report import comparison_table
from fishnets.inference import Summaries, summarize
from fishnets.inference.uniformity import uniformity
from fishnets.networks import MLP
from fishnets.ragged import Sets
from fishnets.sets import load
from fishnets.simulators import GammaPopulation
from fishnets.simulators.grid import GridPosterior

CASES = {"clean": None, "published": experiment.THRESHOLD}
# SPEC 2.4 and 2.5: epochs at each learning rate
UNCENSORED = [(100, 5e-4), (100, 1e-4), (100, 5e-5), (200, 1e-6), (200, 5e-7)]
CENSORED = [(20, 1e-3), (200, 5e-4), (200, 1e-4), (200, 5e-5), (200, 1e-6), (200, 5e-7)]


@dataclass
class Watched:
    """A run, and the parameters every set was simulated with, by what it was simulated for."""

    result: experiment.Result
    drawn: dict[str, set[tuple[float, ...]]]


@pytest.fixture(scope="module")
def runs() -> dict[str, Watched]:
    """A smoke run of each protocol, clean of all counts and published of the kept ones."""
    return {
        protocol: watch(experiment.config_for("smoke", protocol, threshold=threshold))
        for protocol, threshold in CASES.items()
    }


def watch(config: experiment.Config) -> Watched:
    drawn: dict[str, set[tuple[float, ...]]] = {}
    stage = ["targets"]
    call, simulate, train = GammaPopulation.__call__, Laboratory.simulate, experiment.train

    def noted_call(self: GammaPopulation, theta: Tensor, *rest: Any) -> Any:
        drawn.setdefault(stage[0], set()).update(map(tuple, theta.tolist()))
        return call(self, theta, *rest)

    def noted_simulate(self: Laboratory, simulator: GammaPopulation, sizes: Tensor, seed: int) -> Any:
        stage[0] = f"seed {seed}"
        found = simulate(self, simulator, sizes, seed)
        stage[0] = "targets"
        return found

    def noted_train(*arguments: Any) -> Any:
        stage[0] = "training"
        found = train(*arguments)
        stage[0] = "targets"
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GammaPopulation, "__call__", noted_call)
        patch.setattr(Laboratory, "simulate", noted_simulate)
        patch.setattr(experiment, "train", noted_train)
        return Watched(experiment.run(config, None, progress=False), drawn)


def test_the_clean_protocol_trains_both_networks_under_the_priors_own_moments() -> None:
    config = experiment.config_for("paper", "clean")
    assert [candidate.label for candidate in config.candidates] == ["recommended", "paper"]
    for candidate in config.candidates:
        assert candidate.size == (500, 500)
        assert candidate.stored_sets is None
        assert candidate.fiducial is None
        model = untrained(candidate, experiment.simulator_of(candidate, None), 0, "cpu")
        assert model.prior.mean.tolist() == pytest.approx([5.25, 0.8])
        assert model.prior.covariance.diagonal().tolist() == pytest.approx([9.5**2 / 12, 1.4**2 / 12])
    assert config.candidates[1].body == MLP(256, 3, "elu")
    assert config.estimator.kind == "nsf"
    assert config.estimator.whole
    assert config.test_sizes == (10, 100, 500, 2_000, 10_000)
    assert config.hmc_size == 500


@pytest.mark.parametrize(("threshold", "epochs"), [(None, UNCENSORED), (25, CENSORED)])
def test_the_published_protocol_is_the_papers(threshold: int | None, epochs: list[tuple[int, float]]) -> None:
    config = experiment.config_for("paper", "published", threshold=threshold)
    published, matched = config.candidates
    assert (published.label, matched.label) == ("paper", "matched-prior")
    assert published.fiducial == (5.0, 0.8)
    assert replace(matched, label="paper", prior="published") == published, "they differ in the prior alone"
    assert matched.prior == "own"
    assert published.stored_sets == 10_000
    assert published.size == (500, 500)
    assert published.batch_data == 512 * 500
    assert published.body == MLP(256, 3, "elu")
    assert isinstance(published.learning_rate, tuple)
    # half of the authors' epochs, of 20 steps each, in the same proportions
    assert [(2 * steps // 20, rate) for steps, rate in published.learning_rate] == epochs
    assert published.steps == sum(steps for steps, _ in published.learning_rate)
    assert config.estimator.kind == "gmm"
    assert config.estimator.hidden == (50, 50, 50)
    assert config.estimator.pairs == 5_000
    assert config.estimator.sizes is None, "one mixture per set size"
    assert not config.estimator.whole, "of the estimate alone"
    assert config.test_sizes == (500, 10_000)


def test_the_papers_network_has_its_number_of_weights() -> None:
    candidate = experiment.config_for("paper", "published").candidates[0]
    assert untrained(candidate, experiment.simulator_of(candidate, None), 0, "cpu").num_weights == 265_989


@pytest.mark.parametrize(("preset", "protocol"), [("huge", "clean"), ("smoke", "dirty")])
def test_unknown_presets_and_protocols_are_refused(preset: str, protocol: str) -> None:
    message = f'preset "{preset}" with protocol "{protocol}": expected smoke, quick or paper, and clean or published'
    with pytest.raises(ConfigError, match=message):
        experiment.config_for(preset, protocol)


@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("protocol", CASES)
@pytest.mark.parametrize("threshold", [None, 25])
def test_every_config_is_json_and_tests_what_it_compares(preset: str, protocol: str, threshold: int | None) -> None:
    config = experiment.config_for(preset, protocol, seed=3, threshold=threshold)
    found = json.loads(json.dumps(config.to_dict()))
    assert (found["preset"], found["protocol"], found["threshold"], found["seed"]) == (preset, protocol, threshold, 3)
    assert found["candidates"][0]["body"]["kind"] in ("Gated", "MLP")
    assert found["estimator"]["pairs"] == config.estimator.pairs
    assert set(config.exact_sizes) <= set(config.test_sizes), "posteriors are compared with exact ones where tested"
    for candidate in config.candidates:
        assert candidate.batch_data >= candidate.size[1]


@pytest.mark.parametrize("protocol", CASES)
def test_a_smoke_run_measures_everything(protocol: str, runs: dict[str, Watched]) -> None:
    result = runs[protocol].result
    config, metrics = result.config, result.metrics
    labels = [candidate.label for candidate in config.candidates]
    for name, found in metrics.items():
        assert math.isfinite(found.value), name
        assert math.isfinite(found.error), name
        assert found.error >= 0, name
    for label, prefix in zip(labels, ("", f"-{labels[1]}"), strict=True):
        assert metrics[f"seconds/training/{label}"].value > 0
        for size in config.test_sizes:
            for parameter in PARAMETERS:
                distance = metrics[f"ks{prefix}/{parameter}/n={size}"]
                assert 0 < distance.value < 1
                assert 0 <= metrics[f"ks_p{prefix}/{parameter}/n={size}"].value <= 1
                assert metrics[f"bias/{label}/{parameter}/n={size}"].bound == 0.0
            for name in ("tarp", "coverage"):
                assert 0 <= metrics[f"{name}_p{prefix}/n={size}"].value <= 1
                assert metrics[f"{name}_in_band{prefix}/n={size}"].value in (0.0, 1.0)
            assert metrics[f"coverage68{prefix}/n={size}"].bound == 0.68
            assert metrics[f"coverage95{prefix}/n={size}"].bound == 0.95
        for size in config.exact_sizes:
            assert metrics[f"area_ratio/{label}/n={size}"].bound == 1.0
            assert 0 < metrics[f"efficiency/{label}/n={size}"].value < 1
            assert 0 < metrics[f"efficiency-of-posterior-mean/{label}/n={size}"].value < 1
            assert metrics[f"chi2/{label}/n={size}"].value > metrics[f"chi2-of-exact-mean/n={size}"].value
    for method in ("exact", *labels):
        for quantity in ("mean-mu", "sd-mu", "mean-Theta", "sd-Theta", "correlation", "log-det", "seconds"):
            found = metrics[f"target/5.1,0.82/{method}/n=100/{quantity}"]
            assert (found.error == 0.0) == (method == "exact" or quantity == "seconds")
    assert "area_ratio" in comparison_table({"smoke": metrics}, list(metrics))


@pytest.mark.parametrize("protocol", CASES)
def test_figures_are_drawn(protocol: str, runs: dict[str, Watched], tmp_path: Path) -> None:
    result = runs[protocol].result
    draw(result, tmp_path / "figure")
    sizes = [f"levels-{size}" for size in result.config.test_sizes]
    for name in ("model", "target-5.1-0.82", "calibration", *sizes):
        assert (tmp_path / f"figure-{name}.png").stat().st_size > 1000


@pytest.mark.parametrize("protocol", CASES)
def test_a_run_depends_on_its_config_alone(protocol: str, runs: dict[str, Watched]) -> None:
    first = runs[protocol].result
    again = experiment.run(first.config, None, progress=False)
    one, two = ({k: v for k, v in r.metrics.items() if "seconds" not in k} for r in (first, again))
    assert one == two


@pytest.mark.parametrize(("protocol", "pairs"), [("clean", "seed 1"), ("published", "seed 100100")])
def test_training_pairs_tests_and_targets_are_different_draws(
    protocol: str, pairs: str, runs: dict[str, Watched]
) -> None:
    watched = runs[protocol]
    config, drawn = watched.result.config, watched.drawn
    tests = {f"seed {size}" for size in config.test_sizes}
    assert set(drawn) == {"training", "targets", pairs} | tests
    assert len(drawn[pairs]) == config.estimator.pairs
    assert all(len(drawn[test]) == config.test_sets for test in tests), "all networks have the same test sets"
    for one, two in combinations(drawn, 2):
        assert not drawn[one] & drawn[two], f"{one} and {two} share sets"


@pytest.mark.parametrize("threshold", [None, 25])
def test_test_and_target_sets_are_the_same_whatever_the_features(threshold: int | None) -> None:
    laboratory = Laboratory.of(experiment.config_for("smoke", "clean", threshold=threshold))
    paper, log = (GammaPopulation(threshold, features) for features in ("paper", "log"))
    (theta, sets), (theta_log, sets_log) = (laboratory.tests(simulator, 300) for simulator in (paper, log))
    assert torch.equal(theta, theta_log)
    targets = [laboratory.target_sets(simulator, 0, 500) for simulator in (paper, log)]
    for one, two in ((sets, sets_log), targets):
        (time, count), (time_log, count_log) = paper.columns(one.values), log.columns(two.values)
        assert torch.equal(count, count_log)
        assert torch.allclose(time, time_log)
        assert threshold is None or float(count.min()) >= threshold


def test_the_mixture_is_given_the_estimate_alone_and_the_flow_the_whole_summary() -> None:
    for protocol in CASES:
        laboratory = Laboratory.of(experiment.config_for("smoke", protocol))
        simulator = GammaPopulation()
        model = untrained(laboratory.config.candidates[1], simulator, 0, "cpu")
        sets = laboratory.tests(simulator, 10)[1]
        condition = laboratory.condition(summarize(model, sets))
        if protocol == "published":
            assert isinstance(condition, Tensor)
            assert torch.allclose(condition, model.estimate(sets).mean)
        else:
            assert isinstance(condition, Summaries)


def test_another_seed_gives_other_tests() -> None:
    config = experiment.config_for("smoke", "clean")
    one, two = (Laboratory.of(replace(config, seed=seed)).tests(GammaPopulation(), 10)[0] for seed in (0, 1))
    assert not torch.equal(one, two)


def test_the_published_prior_draws_from_the_box_but_has_other_moments() -> None:
    box = GammaPopulation().prior
    prior = experiment.PublishedPrior(box)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    sample = prior.sample(1000, generators[0])
    assert torch.equal(sample, box.sample(1000, generators[1]))
    assert torch.equal(prior.log_prob(sample), box.log_prob(sample))
    assert prior.log_prob(torch.zeros(2, dtype=torch.float64)) == -torch.inf
    assert prior.mean.tolist() == [0.0, 0.0]
    assert prior.covariance.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_only_the_published_network_has_the_published_prior(runs: dict[str, Watched]) -> None:
    published, matched = runs["published"].result.trained
    assert published.model.prior.mean.tolist() == [0.0, 0.0]
    assert published.model.fiducial.tolist() == pytest.approx([5.0, 0.8])
    assert matched.model.prior.mean.tolist() == pytest.approx([5.25, 0.8])


@dataclass
class GridPosteriors:
    """Exact posteriors in the place of a density estimator: samples of their grids, and their true densities."""

    simulator: GammaPopulation
    sets: Sets
    grids: list[GridPosterior]
    stretch: float = 1.0

    def sample(self, condition: Any, num_samples: int, generator: torch.Generator) -> Tensor:
        samples = torch.stack([grid.sample(num_samples, generator) for grid in self.grids])
        return samples.mean(1, keepdim=True) + self.stretch * (samples - samples.mean(1, keepdim=True))

    def log_prob(self, theta: Tensor, condition: Any) -> Tensor:
        time, count = (column.double().view(len(self.sets), -1) for column in self.simulator.columns(self.sets.values))
        quadrature = self.simulator.quadrature(theta.device)
        return torch.stack([quadrature.log_likelihood(t, s, x) for t, s, x in zip(time, count, theta, strict=True)])


SIZE = 50


@pytest.fixture(scope="module")
def laboratory() -> Laboratory:
    config = experiment.config_for("smoke", "clean")
    return Laboratory.of(
        replace(config, test_sets=24, exact_sets=24, test_sizes=(SIZE,), exact_sizes=(SIZE,), num_samples=1000)
    )


@pytest.fixture(scope="module")
def grids(laboratory: Laboratory) -> GridPosteriors:
    simulator = GammaPopulation()
    sets = laboratory.tests(simulator, SIZE)[1]
    return GridPosteriors(simulator, sets, [simulator.posterior(sets[i : i + 1]) for i in range(len(sets))])


def measure(laboratory: Laboratory, posterior: GridPosteriors) -> measures.Tested:
    """Pushed through all that a learned posterior goes through, with the exact mean as estimate."""
    model = untrained(laboratory.config.candidates[1], posterior.simulator, 0, "cpu")
    tested = laboratory.test(posterior.simulator, model, posterior, SIZE)  # type: ignore[arg-type]
    exact = laboratory.exact(SIZE)
    return replace(tested, estimate=Gaussian(exact.mean, torch.linalg.inv(exact.covariance)))


@pytest.fixture(scope="module")
def tested_exactly(laboratory: Laboratory, grids: GridPosteriors) -> measures.Tested:
    return measure(laboratory, grids)


def test_the_exact_posterior_has_area_ratio_one_and_efficiency_one(
    laboratory: Laboratory, tested_exactly: measures.Tested
) -> None:
    found = laboratory._against_exact("exact", SIZE, tested_exactly)
    area = found[f"area_ratio/exact/n={SIZE}"]
    assert area.error < 0.015
    assert area.value == pytest.approx(1, abs=4 * area.error)
    assert found[f"efficiency/exact/n={SIZE}"].value == 1.0
    assert found[f"efficiency/exact/n={SIZE}"].error == 0.0
    # the mean of a thousand samples is a thousandth of a variance off
    assert found[f"efficiency-of-posterior-mean/exact/n={SIZE}"].value == pytest.approx(0.999, abs=0.0015)


def test_the_exact_posterior_is_calibrated(laboratory: Laboratory, tested_exactly: measures.Tested) -> None:
    assert set(tested_exactly.levels) == {"mu", "Theta", "coverage", "tarp"}
    for name, levels in tested_exactly.levels.items():
        assert levels.shape == (24,)
        assert uniformity(levels).p_value > 0.01, name
    exact = laboratory.exact(SIZE)
    error = (tested_exactly.theta - exact.mean).unsqueeze(-1)
    distance = (error.mT @ torch.linalg.solve(exact.covariance, error)).flatten()
    # nearly chi-squared with two degrees of freedom
    assert float(distance.mean()) == pytest.approx(2, abs=4 * 2 / math.sqrt(24))


def test_an_overconfident_posterior_is_found_out(laboratory: Laboratory, grids: GridPosteriors) -> None:
    tested = measure(laboratory, replace(grids, stretch=0.2))
    for name, levels in tested.levels.items():
        assert uniformity(levels).p_value < 0.01, name
    found = laboratory.metrics("narrow", "", {SIZE: tested})
    assert found[f"coverage68/n={SIZE}"].value < 0.45
    assert found[f"coverage_in_band/n={SIZE}"].value == 0.0
    area = found[f"area_ratio/narrow/n={SIZE}"]
    assert area.value == pytest.approx(0.04, abs=4 * area.error)


def test_wide_posteriors_and_wasteful_estimates_are_told_from_exact_ones(
    laboratory: Laboratory, tested_exactly: measures.Tested
) -> None:
    exact = laboratory.exact(SIZE)
    signs = torch.ones(24, 2, 1, dtype=torch.float64)
    off = torch.linalg.solve_triangular(torch.linalg.cholesky(exact.fisher).mT, signs, upper=True).squeeze(-1)
    worse = replace(
        tested_exactly,
        covariance=1.5 * tested_exactly.covariance,
        estimate=replace(tested_exactly.estimate, mean=exact.mean + off),
    )
    found = laboratory._against_exact("worse", SIZE, worse)
    area = found[f"area_ratio/worse/n={SIZE}"]
    assert area.value == pytest.approx(1.5, abs=4 * area.error)
    assert found[f"efficiency/worse/n={SIZE}"].value == pytest.approx(0.5), "one exact variance off wastes half"


def test_a_biased_estimate_shows_as_a_bias(laboratory: Laboratory, tested_exactly: measures.Tested) -> None:
    truth = replace(tested_exactly.estimate, mean=tested_exactly.theta + torch.tensor([0.25, -0.5]))
    found = laboratory.metrics("biased", "", {SIZE: replace(tested_exactly, estimate=truth)})
    assert found[f"bias/biased/mu/n={SIZE}"].value == pytest.approx(0.25)
    assert found[f"bias/biased/Theta/n={SIZE}"].value == pytest.approx(-0.5)


def test_fisher_matrices_of_the_exact_answers_are_those_of_whole_sets(laboratory: Laboratory) -> None:
    exact = laboratory.exact(SIZE)
    theta, _ = laboratory.tests(GammaPopulation(), SIZE)
    assert torch.allclose(exact.fisher, SIZE * GammaPopulation().fisher_per_datum(theta))
    assert laboratory.exact(SIZE) is exact, "computed once"


def test_target_errors_shrink_with_the_samples_behind_them() -> None:
    moments = torch.tensor([5.0, 0.8]), torch.tensor([[4.0, 1.0], [1.0, 1.0]])
    target = TargetPosterior((5.1, 0.82), "hmc", 20, torch.zeros(4, 2), *moments, 100.0, 3.0)
    found = target.metrics()
    name = "target/5.1,0.82/hmc/n=20"
    assert found[f"{name}/mean-mu"].error == pytest.approx(0.2)
    assert found[f"{name}/sd-mu"].value == pytest.approx(2.0)
    assert found[f"{name}/sd-mu"].error == pytest.approx(0.2 / math.sqrt(2))
    assert found[f"{name}/correlation"].value == pytest.approx(0.5)
    assert found[f"{name}/correlation"].error == pytest.approx(0.075)
    assert found[f"{name}/log-det"].value == pytest.approx(math.log(3))
    assert found[f"{name}/seconds"].value == 3.0


def test_exact_targets_sample_their_own_moments(runs: dict[str, Watched]) -> None:
    target = runs["clean"].result.targets[0]
    assert target.method == "exact"
    error = target.covariance.diagonal().sqrt() / math.sqrt(len(target.samples))
    assert ((target.samples.mean(0) - target.mean).abs() < 4 * error).all()
    assert torch.allclose(target.samples.mT.cov(), target.covariance, rtol=0.08, atol=1e-3)


@pytest.fixture(scope="module")
def numpyro() -> Any:
    """Imported before the state of the generators is noted: its first import draws from NumPy's global one."""
    return pytest.importorskip("numpyro")


@pytest.mark.slow
@pytest.mark.usefixtures("numpyro")
def test_hmc_agrees_with_the_exact_grid() -> None:
    found = Laboratory.of(experiment.config_for("smoke", "clean")).hmc_target(20)
    assert found.posterior.samples.shape == (8000, 2)
    assert found.metrics["hmc/rhat/n=20"].value < 1.01
    assert found.metrics["hmc/divergences/n=20"].value == 0
    for parameter in PARAMETERS:
        for name, expected in (("mean-minus-exact-in-sd", 0.0), ("sd-over-exact", 1.0)):
            metric = found.metrics[f"hmc/{name}/{parameter}/n=20"]
            assert metric.value == pytest.approx(expected, abs=4 * metric.error)


def test_a_saved_model_keeps_the_published_prior(tmp_path: Path) -> None:
    """A file knows only the moments of a prior of a foreign class, and they are the ones the estimate uses."""
    candidate = experiment.config_for("smoke", "published").candidates[0]
    simulator = experiment.simulator_of(candidate, None)
    model = untrained(candidate, simulator, 0, "cpu", experiment.PublishedPrior(simulator.prior))
    sets = Laboratory.of(experiment.config_for("smoke", "published")).tests(simulator, 10)[1]
    model.save(tmp_path / "m.fishnet")
    assert torch.equal(load(tmp_path / "m.fishnet").estimate(sets).mean, model.estimate(sets).mean)


def test_hmc_of_censored_data_is_refused() -> None:
    with pytest.raises(ConfigError, match="`hmc_size` is 500 with `threshold` 25, but HMC samples the uncensored"):
        replace(experiment.config_for("smoke", "clean", threshold=25), hmc_size=500)


def test_a_threshold_other_than_the_papers_is_refused() -> None:
    with pytest.raises(ConfigError, match="`threshold` is 30 but None or 25"):
        experiment.config_for("smoke", "published", threshold=30)
