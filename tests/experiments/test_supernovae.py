"""The supernovae: configs, surveys with the table's own errors, exact references, and a run of seconds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fishnets.errors import ConfigError
from fishnets.experiments import supernovae as experiment
from fishnets.experiments.pages import supernovae_page
from fishnets.experiments.records import Record, versions, write_record
from fishnets.experiments.supernovae_figures import draw
from fishnets.inference.efficiency import excess
from fishnets.simulators import Supernovae

LAMBDA, FREE = ("omega_m", "offset"), ("omega_m", "w", "offset")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> experiment.Table:
    """A made-up survey of 200, deep enough to tell w from the matter density, read from a file."""
    simulator, generator = Supernovae(), torch.Generator().manual_seed(22)
    theta = torch.tensor([[0.3, 0.05]], dtype=torch.float64)
    columns = simulator.columns(simulator(theta, torch.tensor([200]), generator).values)
    path = tmp_path_factory.mktemp("data") / "made-up.txt"
    rows = zip(*(column.tolist() for column in columns), strict=True)
    path.write_text("".join(f"sn{i} {z:.5f} {mu:.5f} {sigma:.5f} 0.1\n" for i, (z, mu, sigma) in enumerate(rows)))
    return experiment.read_union21(path)


@pytest.fixture(scope="module")
def result(table: experiment.Table) -> experiment.Result:
    return experiment.run(experiment.config_for("smoke", "clean", table=table), None, progress=False)


@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
def test_every_config_is_json_and_holds_no_path(preset: str, table: experiment.Table) -> None:
    text = json.dumps(experiment.config_for(preset, "clean", seed=2, table=table).to_dict())
    found = json.loads(text)
    assert (found["preset"], found["protocol"], found["seed"]) == (preset, "clean", 2)
    assert found["table"] == {"name": "made-up.txt", "sha256": table.sha256, "num_data": 200}
    assert "/" not in text


def test_the_paper_preset_measures_on_500_surveys(table: experiment.Table) -> None:
    config = experiment.config_for("paper", "clean", table=table)
    assert config.surveys == 500
    assert config.loss <= 0.005
    assert (config.training.width, config.training.depth) == (32, 2)


def test_there_is_no_published_protocol(table: experiment.Table) -> None:
    with pytest.raises(ConfigError, match="the paper has no experiment with supernovae that could be repeated"):
        experiment.config_for("smoke", "published", table=table)
    with pytest.raises(ConfigError, match='preset "huge" with protocol "clean": expected smoke, quick or paper'):
        experiment.config_for("huge", "clean", table=table)


def test_a_smoke_run_measures_everything(result: experiment.Result) -> None:
    for name, found in result.metrics.items():
        assert math.isfinite(found.value), name
        assert math.isfinite(found.error), name
        assert found.error >= 0, name
    for prefix, names in (("", LAMBDA), ("w/", FREE)):
        expected = {f"{name}{kind}" for name in names for kind in ("", "_sigma")}
        expected |= {f"{kind}/{name}" for name in names for kind in ("distance-in-sigma", "sigma-ratio")}
        expected |= {f"coverage{level}/{name}/union21" for name in names for level in (68, 95)}
        expected |= {f"excess{kind}/union21" for kind in ("", "/plain", "/onestep", "-to-root", "-over-prior")}
        expected |= {"chi2/union21", "unsettled/union21", "simulated-data/union21"}
        expected |= {"seconds/training", "seconds/estimate"}
        found = {name for name in result.metrics if name.startswith("w/") == bool(prefix)}
        assert found == {prefix + name for name in expected}


def test_the_exact_posterior_stands_beside_the_fit(result: experiment.Result, table: experiment.Table) -> None:
    for prefix, names in (("", LAMBDA), ("w/", FREE)):
        simulator = Supernovae(dark_energy="w" in names)
        exact = simulator.posterior(experiment._real(result.config, simulator))
        for i, name in enumerate(names):
            mean, sigma = result.metrics[prefix + name], result.metrics[f"{prefix}{name}_sigma"]
            assert mean.bound == pytest.approx(float(exact.mean[i]))
            assert sigma.bound == pytest.approx(float(exact.covariance[i, i].sqrt()))
            distance = result.metrics[f"{prefix}distance-in-sigma/{name}"].value
            assert distance == pytest.approx(abs(mean.value - mean.bound) / sigma.bound)
            ratio = result.metrics[f"{prefix}sigma-ratio/{name}"].value
            assert ratio == pytest.approx(sigma.value / sigma.bound)
            assert result.fits[prefix].learned.mean[i] == pytest.approx(mean.value)
        assert result.metrics[f"{prefix}chi2/union21"].bound == 1.0
        assert result.metrics[f"{prefix}coverage68/omega_m/union21"].bound == pytest.approx(0.6827, abs=1e-4)


def test_even_a_short_training_finds_the_universe_roughly(result: experiment.Result) -> None:
    assert result.metrics["distance-in-sigma/omega_m"].value < 3
    assert 0.5 < result.metrics["sigma-ratio/omega_m"].value < 2


def test_surveys_have_the_tables_redshifts_and_errors(table: experiment.Table) -> None:
    config, simulator = experiment.config_for("smoke", "clean", table=table), Supernovae()
    theta = torch.tensor([[0.28, 0.0]] * 3, dtype=torch.float64)
    sets = experiment._surveys(config, simulator, theta, 0)
    for i in range(3):
        z, mu, sigma = simulator.columns(sets[i].values.double())
        torch.testing.assert_close(z, table.z, rtol=1e-6, atol=0)
        torch.testing.assert_close(sigma, table.sigma, rtol=1e-6, atol=0)
        assert bool((mu != table.mu).all())
    assert not torch.equal(sets.values, experiment._surveys(config, simulator, theta, 1).values)
    assert not torch.equal(sets.values, experiment._surveys(replace(config, seed=1), simulator, theta, 0).values)


@pytest.mark.parametrize("free", [False, True])
def test_exact_roots_are_where_score_and_prior_balance(free: bool, table: experiment.Table) -> None:
    config, simulator = experiment.config_for("smoke", "clean", table=table), Supernovae(dark_energy=free)
    truth = torch.tensor([0.28, -1.0, 0.0] if free else [0.28, 0.0], dtype=torch.float64).expand(4, -1)
    sets = experiment._surveys(config, simulator, truth, 0)
    roots = experiment._exact_roots(config, simulator, sets, truth)
    pull = torch.linalg.solve(simulator.prior.covariance, (roots - simulator.prior.mean).mT).mT
    scale = simulator.fisher(sets, roots).diagonal(dim1=1, dim2=2).sqrt()
    assert float(((simulator.score(sets, roots) - pull) / scale).abs().max()) < 0.02
    exact = experiment._exact_means(config, simulator, sets)
    assert excess(roots, exact, simulator.fisher(sets, truth)).value < (1.5 if free else 0.05)


def test_figures_and_page_are_made(result: experiment.Result, tmp_path: Path) -> None:
    config = result.config
    record = Record(
        "supernovae", config.preset, config.protocol, "fishnets reproduce supernovae", config.to_dict(), [0],
        versions(), "cpu", result.seconds, result.metrics,
    )  # fmt: skip
    path = write_record(record, tmp_path)
    draw(result, path.with_suffix(""))
    page = supernovae_page(tmp_path)
    for name in ("hubble", "posterior", "posterior-w"):
        assert path.with_name(f"{path.stem}-{name}.png").stat().st_size > 1000
        assert f"![{path.stem}-{name}.png]" in page
    assert "Fits of the 200 supernovae of `made-up.txt`" in page
    assert page.count("| flat, w free | `") == 3
    assert "| `excess/union21` |" in page
