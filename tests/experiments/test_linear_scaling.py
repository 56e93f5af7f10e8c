"""The linear-regression experiment: configs, protocols, and a run of seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fishnets.algebra import Gaussian
from fishnets.errors import ConfigError
from fishnets.experiments import linear_scaling as experiment
from fishnets.experiments.candidates import stored_sets
from fishnets.experiments.linear_figures import draw
from fishnets.experiments.report import comparison_table


def test_the_published_protocol_is_the_papers() -> None:
    (candidate,) = experiment.config_for("paper", "published").candidates
    assert candidate.members == 10
    assert candidate.stored_sets == 10_000
    assert candidate.size == (500, 500)
    assert candidate.batch_data == 512 * 500
    assert candidate.steps == 20 * 1200
    assert isinstance(candidate.learning_rate, tuple)
    assert [rate for _, rate in candidate.learning_rate] == [5e-4, 1e-4, 5e-5, 1e-6, 5e-6]
    assert candidate.body.width == 256


@pytest.mark.parametrize("protocol", ["clean", "published"])
def test_a_smoke_run_measures_everything(protocol: str, tmp_path: Path) -> None:
    config = experiment.config_for("smoke", protocol)
    result = experiment.run(config, tmp_path, progress=False)
    labels = [candidate.label for candidate in config.candidates]
    for label in labels:
        assert result.metrics[f"throughput/{label}"].value > 0
        for size in config.test_sizes:
            found = result.metrics[f"efficiency/{label}/n={size}"]
            assert 0 < found.value < 1
            assert found.error > 0
            assert found.bound == 1.0
    assert "efficiency" in comparison_table({"smoke": result.metrics}, list(result.metrics))
    draw(result, tmp_path / "figure")
    assert (tmp_path / f"figure-{labels[0]}-residuals.png").stat().st_size > 1000
    assert (tmp_path / f"figure-{labels[0]}-sites.png").stat().st_size > 1000


def test_a_run_depends_on_its_config_alone() -> None:
    config = experiment.config_for("smoke", "clean")
    config = replace(config, candidates=config.candidates[:1])
    one, two = (experiment.run(config, None, progress=False).metrics for _ in range(2))
    assert {k: v for k, v in one.items() if "throughput" not in k} == {
        k: v for k, v in two.items() if "throughput" not in k
    }


def test_test_sets_are_not_training_sets() -> None:
    """Another seed of the test sets must change the measurement: nothing is measured on what was trained on."""
    config = experiment.config_for("smoke", "published")
    simulator = experiment.simulator_of(config.candidates[0])
    candidate = config.candidates[0]
    trained, _ = stored_sets(simulator, candidate.stored_sets, candidate.size[1], config.seed, config.device)
    tested = next(experiment._tests(config, simulator, 50))[0]
    assert not set(trained.values[:, 0].tolist()) & set(tested.values[:, 0].tolist())


def test_the_leak_of_the_published_average_favours_the_best_member() -> None:
    exact = Gaussian(torch.zeros(4, 2), torch.eye(2).expand(4, 2, 2))
    good, bad = (Gaussian(torch.full((4, 2), d), torch.eye(2).expand(4, 2, 2)) for d in (0.1, 1.0))
    mean = experiment._leaky_average([good, bad], exact).mean
    assert torch.allclose(mean, torch.full((4, 2), (100 * 0.1 + 1 * 1.0) / 101))


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ConfigError, match='preset "huge" with protocol "clean": expected smoke, quick or paper'):
        experiment.config_for("huge", "clean")
