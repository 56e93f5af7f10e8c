"""Saturation: configs, measures and a run end to end, resumed from what it has remembered."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fishnets.errors import ConfigError, ConvergenceWarning
from fishnets.experiments import EXPERIMENTS, saturation
from fishnets.experiments.pages import saturation_page
from fishnets.experiments.records import Record, versions, write_record
from fishnets.experiments.saturation import METHODS, Result, config_for, fixed_parameters, run, simulator_of
from fishnets.priors import Box


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # networks of a few steps may not settle
        return run(config_for("smoke", "clean"), tmp_path_factory.mktemp("checkpoints"), progress=False)


def test_the_config_can_be_written_as_json_and_names_every_problem() -> None:
    fields = json.loads(json.dumps(config_for("paper", "clean", seed=3).to_dict()))
    assert fields["seed"] == 3
    assert [problem["name"] for problem in fields["problems"]] == ["gamma", "linear", "censored", "normal"]
    assert {500, 10_000, 100_000, 1_000_000} <= {size for size, _ in fields["sets_per_parameter"]}


def test_there_is_one_protocol() -> None:
    with pytest.raises(ConfigError, match='the paper has no experiment on saturation; use "clean"'):
        config_for("paper", "published")


@pytest.mark.parametrize("name", ["linear", "normal", "gamma", "censored"])
def test_sixteen_parameters_keep_away_from_the_edges(name: saturation.Name) -> None:
    simulator = simulator_of(name)
    theta = fixed_parameters(simulator)
    assert theta.shape == (16, 2)
    assert len(theta.unique(dim=0)) == 16
    if isinstance(simulator.prior, Box):
        share = (theta - simulator.prior.low) / (simulator.prior.high - simulator.prior.low)
        torch.testing.assert_close(share.amin(0), torch.full((2,), 0.08, dtype=torch.float64))
        torch.testing.assert_close(share.amax(0), torch.full((2,), 0.92, dtype=torch.float64))
    else:
        assert float(theta.abs().max()) == pytest.approx(1.2)


def test_every_problem_method_and_size_is_measured_with_its_error(result: Result) -> None:
    metrics = result.metrics
    for problem in result.config.problems:
        for size, _ in result.config.sets_per_parameter:
            for method in METHODS:
                for what in ("chi2", "efficiency"):
                    entry = metrics[f"{what}/{problem.name}/{method}/n={size}"]
                    assert math.isfinite(entry.value)
                    assert entry.error > 0
            for level in (68, 95):
                assert 0 <= metrics[f"coverage{level}/{problem.name}/centred/n={size}"].value <= 1
            assert metrics[f"simulated-per-estimate/{problem.name}/centred/n={size}"].value > 0
        assert f"chi2/{problem.name}/exact/n=5" in metrics
        assert metrics[f"passes/{problem.name}/centred/n=30"].value == 1  # with a pilot
    assert {f"chi2/linear-{law}/centred/n=30" for law in "AC"} <= set(metrics)


def test_a_run_continues_from_what_it_has_remembered(tmp_path: Path, result: Result) -> None:
    config = result.config
    study = saturation._Study(config, config.problems[0], tmp_path, progress=False)
    calls: list[int] = []

    def measure() -> dict[str, saturation.Metric]:
        calls.append(1)
        return {"x": saturation.Metric(1.0, 0.1)}

    assert study.remembered("part", "refined", measure) == study.remembered("part", "refined", measure)
    assert len(calls) == 1
    other = replace(config, plain_steps=7)  # refined networks do not depend on it
    assert saturation._Study(other, config.problems[0], tmp_path, False).remembered("part", "refined", measure)
    assert len(calls) == 1
    for kind, other in (("refined", replace(config, seed=5)), ("plain", config)):
        saturation._Study(other, config.problems[0], tmp_path, False).remembered("part", kind, measure)
    assert len(calls) == 3
    assert study.parts.seconds > 0


def test_the_figure_and_the_page_show_every_problem(tmp_path: Path, result: Result) -> None:
    pytest.importorskip("matplotlib")
    fields = (versions(), "cpu", result.seconds, result.metrics)
    record = Record("saturation", "smoke", "clean", "fishnets", result.config.to_dict(), [0], *fields)
    path = write_record(record, tmp_path)
    EXPERIMENTS["saturation"].draw(result, path.with_suffix(""))
    assert (path.parent / "smoke-clean-cpu-chi2.png").stat().st_size > 10_000
    page = saturation_page(tmp_path)
    assert "### linear" in page
    assert "### linear-A" in page
    assert "smoke-clean-cpu-chi2.png" in page
