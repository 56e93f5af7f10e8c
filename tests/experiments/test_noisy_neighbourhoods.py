"""Noisy neighbourhoods: configs, a run end to end, its figure and page, and what is said without PyTorch Geometric."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fishnets.errors import ConfigError
from fishnets.experiments import EXPERIMENTS, noisy_neighbourhoods
from fishnets.experiments.noisy_neighbourhoods import LAWS, METHODS, Config, Result, config_for, run
from fishnets.experiments.noisy_neighbourhoods_figures import neighbourhoods_figure
from fishnets.experiments.pages import neighbourhoods_page
from fishnets.experiments.records import Record, read_record, versions, write_record

TINY = replace(config_for("smoke", "clean"), methods=("mean",), tuning_steps=2, steps=3, batch_nodes=10)


@pytest.fixture(scope="module")
def result() -> Result:
    pytest.importorskip("torch_geometric")
    return run(config_for("smoke", "clean"))


def stored(result: Result, root: Path) -> Path:
    fields = (versions(), "cpu", result.seconds, result.metrics)
    record = Record("noisy-neighbourhoods", "smoke", "clean", "fishnets", result.config.to_dict(), [0], *fields)
    return write_record(record, root)


@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
def test_every_config_is_json(preset: str) -> None:
    fields = json.loads(json.dumps(config_for(preset, "clean", seed=3).to_dict()))
    assert (fields["preset"], fields["protocol"], fields["seed"], fields["device"]) == (preset, "clean", 3, "cpu")
    assert len(fields["test_nodes"]) == len(LAWS)
    assert set(fields["methods"]) <= set(METHODS)


def test_presets_grow() -> None:
    smoke, quick, paper = (config_for(preset, "clean") for preset in ("smoke", "quick", "paper"))
    assert quick.methods == paper.methods == METHODS
    assert smoke.steps < quick.steps < paper.steps
    assert all(config.tuning_steps < config.steps for config in (smoke, quick, paper))
    assert len(paper.seeds) > 1


def test_networks_are_tested_where_they_were_trained_and_elsewhere() -> None:
    assert list(LAWS) == ["train", "degree-x20", "noise-shift"]
    low, high = LAWS["train"].degree
    assert LAWS["degree-x20"].degree == (20 * low, 20 * high)
    assert LAWS["noise-shift"] == replace(LAWS["train"], noise="shifted")


def test_every_method_has_an_aggregation() -> None:
    pytest.importorskip("torch_geometric")
    from fishnets.graphs.regression import AGGREGATIONS

    assert tuple(AGGREGATIONS) == METHODS


def test_there_is_one_protocol() -> None:
    with pytest.raises(ConfigError, match='but the paper has no such experiment; use "clean"'):
        config_for("paper", "published")


@pytest.mark.parametrize(("preset", "protocol"), [("huge", "clean"), ("smoke", "dirty")])
def test_unknown_presets_and_protocols_are_refused(preset: str, protocol: str) -> None:
    message = f'preset "{preset}" with protocol "{protocol}": expected smoke, quick or paper, and clean'
    with pytest.raises(ConfigError, match=message):
        config_for(preset, protocol)


def test_every_method_is_measured_on_every_law_with_its_error(result: Result) -> None:
    metrics = result.metrics
    for method in result.config.methods:
        for law in ("train", "degree-x20", "noise-shift"):
            entry = metrics[f"mse_over_bound/{method}/{law}"]
            assert math.isfinite(entry.value)
            assert entry.error > 0
            assert entry.bound == 1
            assert metrics[f"mse_over_bound-test-noise/{method}/{law}"].value > 0
        assert metrics[f"learning-rate/{method}"].value in result.config.learning_rates
        assert metrics[f"seconds/training/{method}"].value > 0
        assert metrics[f"weights/{method}"].value > 0
    assert len(metrics) == len(result.config.methods) * (3 * len(LAWS) + 3)
    assert metrics["weights/fishnets"].value > metrics["weights/mean"].value
    assert result.seconds > 0


def test_a_single_seed_has_the_error_of_its_test_nodes() -> None:
    pytest.importorskip("torch_geometric")
    metrics = run(replace(TINY, seeds=(0,))).metrics
    for law in LAWS:
        entry = metrics[f"mse_over_bound/mean/{law}"]
        assert entry.error == metrics[f"mse_over_bound-test-noise/mean/{law}"].value > 0
        assert entry.bound == 1


def test_the_seed_decides_everything_but_the_time() -> None:
    pytest.importorskip("torch_geometric")

    def numbers(config: Config) -> dict[str, float]:
        return {name: entry.value for name, entry in run(config).metrics.items() if "seconds" not in name}

    first = numbers(TINY)
    with torch.random.fork_rng():
        torch.manual_seed(77)  # torch's own seed has no say
        assert numbers(TINY) == first
    assert numbers(replace(TINY, seed=1)) != first


def test_the_best_rate_of_the_short_runs_is_used_for_the_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is off by as much as its rate is from 0.03."""
    calls: list[tuple[float, int, int]] = []

    def trained(config: Config, method: str, rate: float, steps: int, seed: int) -> tuple[Any, float, int]:
        calls.append((rate, steps, seed))
        return rate, 2.0, 7

    monkeypatch.setattr(noisy_neighbourhoods, "_trained", trained)
    monkeypatch.setattr(noisy_neighbourhoods, "_estimate", lambda rate, graph: graph.theta + 9 * (rate - 0.03))
    metrics = run(replace(TINY, learning_rates=(0.3, 0.03, 0.003), seeds=(4, 5))).metrics
    assert calls == [(0.3, 2, 4), (0.03, 2, 4), (0.003, 2, 4), (0.03, 3, 4), (0.03, 3, 5)]
    found = [metrics[f"{what}/mean"].value for what in ("learning-rate", "seconds/training", "weights")]
    assert found == [0.03, 2, 7]
    assert metrics["mse_over_bound/mean/train"].value < 1  # the truth itself is better than any estimate


def test_the_figure_has_a_row_for_each_method_and_a_mark_for_each_law(result: Result) -> None:
    pytest.importorskip("matplotlib")
    (axis,) = neighbourhoods_figure(result).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["fishnets", "mean"]
    assert len(axis.containers) == len(LAWS)
    for container, law in zip(axis.containers, LAWS, strict=True):
        values = [result.metrics[f"mse_over_bound/{method}/{law}"].value for method in result.config.methods]
        assert container.lines[0].get_xdata().tolist() == pytest.approx([value - 1 for value in values])


def test_the_figure_and_the_page_show_every_method(tmp_path: Path, result: Result) -> None:
    pytest.importorskip("matplotlib")
    path = stored(result, tmp_path)
    assert read_record(path).metrics == result.metrics
    EXPERIMENTS["noisy-neighbourhoods"].draw(result, path.with_suffix(""))
    assert (path.parent / "smoke-clean-cpu-mse.png").stat().st_size > 10_000
    page = neighbourhoods_page(tmp_path)
    assert "| aggregation | train | degree-x20 | noise-shift | weights | rate | seconds of training |" in page
    for method in result.config.methods:
        assert f"| {method} |" in page
        assert f"{result.metrics[f'weights/{method}'].value:,.0f}" in page
    assert "the learning rates 0.01 in runs of 5 steps, and 40 steps with the best. Seeds: 2." in page
    assert "![smoke-clean-cpu-mse.png](smoke-clean-cpu-mse.png)" in page


WITHOUT = """
import sys
sys.modules["torch_geometric"] = None
from fishnets.errors import MissingExtraError
from fishnets.experiments import EXPERIMENTS
experiment = EXPERIMENTS["noisy-neighbourhoods"]
try:
    experiment.run(experiment.config_for("smoke", "clean"))
except MissingExtraError as error:
    print(error)
"""


def test_without_the_extra_the_error_names_it() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Learning on graphs needs `torch_geometric`, which is not installed. Install it with `pip install "
        "'fishnets[graphs]'`.\n"
    )
