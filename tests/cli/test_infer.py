"""``fishnets infer`` and ``fishnets diagnose``: files in, posteriors and verdicts out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import fishnets as fn
from fishnets.cli import app
from fishnets.errors import ConfigError, DataError, FishnetsError, SupportError
from fishnets.inference import Posterior, Summaries, load_posterior, save_summaries
from fishnets.sets.container import read_container

SIMULATOR = fn.simulators.LinearRegression()
FIT = ["--train", "pairs.fishnet", "--steps", "20", "--samples", "300", "--kind", "gmm", "--device", "cpu"]


def summaries_of(sizes: torch.Tensor, seed: int) -> tuple[torch.Tensor, Summaries]:
    generator = torch.Generator().manual_seed(seed)
    theta = SIMULATOR.prior.sample(len(sizes), generator)
    sets = SIMULATOR(theta, sizes, generator)
    return theta, Summaries(SIMULATOR.information(sets), SIMULATOR.prior, "exact")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, observed sets and a posterior, which for exact information needs hardly any training."""
    folder = tmp_path_factory.mktemp("infer")
    sizes = torch.randint(5, 60, (1500,), generator=torch.Generator().manual_seed(0))
    theta, pairs = summaries_of(sizes, 1)
    save_summaries(folder / "pairs.fishnet", pairs, theta)
    test_theta, test = summaries_of(sizes[:400], 2)
    save_summaries(folder / "test.fishnet", test, test_theta)
    save_summaries(folder / "observed.fishnet", test[:25])
    posterior = Posterior(SIMULATOR.prior, kind="gmm", hidden=(16,))
    posterior.fit(theta, pairs, steps=100)
    posterior.save(folder / "posterior.fishnet")
    return folder


@pytest.fixture
def fishnets(files: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in the folder of the files."""
    monkeypatch.chdir(files)

    def run(*arguments: str) -> Result:
        done = CliRunner().invoke(app, list(arguments))
        if done.exception is not None and not isinstance(done.exception, SystemExit | FishnetsError):
            raise done.exception
        return done

    return run


def test_help_starts_with_an_example(fishnets: Any) -> None:
    for verb in ("infer", "diagnose"):
        done = fishnets(verb, "--help")
        assert done.exit_code == 0
        assert f"Example:  fishnets {verb}" in done.stdout


def test_infer_fits_saves_and_samples(fishnets: Any, files: Path) -> None:
    done = fishnets("infer", "observed.fishnet", *FIT, "--save", "new.fishnet", "--out", "samples.safetensors")
    assert done.exit_code == 0, done.stderr
    assert "Fitting the posterior on 1,500 pairs" in done.stderr
    assert "The first 20 of 25 sets are shown" in done.stderr
    assert "95 %" in done.stdout
    header, tensors = read_container(files / "samples.safetensors", "samples")
    assert tensors["samples"].shape == (25, 300, 2)
    assert header["model"] == "exact"
    assert load_posterior(files / "new.fishnet").kind == "gmm"
    again = fishnets("infer", "observed.fishnet", *FIT, "--save", "new.fishnet")
    assert isinstance(again.exception, ConfigError)
    assert "exists. Give --overwrite" in str(again.exception)
    assert fishnets("infer", "observed.fishnet", *FIT, "--save", "new.fishnet", "--overwrite").exit_code == 0


def test_infer_with_a_fitted_posterior_agrees_with_the_exact_one(fishnets: Any, files: Path) -> None:
    arguments = ["infer", "observed.fishnet", "--posterior", "posterior.fishnet", "--samples", "2000", "--json"]
    rows = json.loads(fishnets(*arguments).stdout)
    exact = fn.inference.load_summaries(files / "observed.fishnet")[0].gaussian
    assert len(rows) == 50
    for row in rows:
        mean, sd = exact.mean[row["set"], row["parameter"]], exact.standard_deviation[row["set"], row["parameter"]]
        assert abs(row["mean"] - mean) < 0.5 * sd
        assert 0.7 < row["sd"] / sd < 1.4
        assert row["5%"] < row["mean"] < row["95%"]
    assert rows == json.loads(fishnets(*arguments).stdout)
    assert rows != json.loads(fishnets(*arguments, "--seed", "1").stdout)


def test_diagnose_tells_right_from_wrong(fishnets: Any, files: Path) -> None:
    done = fishnets("diagnose", "test.fishnet", "--posterior", "posterior.fishnet", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"].startswith("No sign of miscalibration in 25 tests on 400 sets")
    checks = {"PIT of parameter 0", "PIT of parameter 1", "joint coverage", "TARP", "TARP near the data"}
    assert set(found["groups"]["all sets"]) == checks
    assert len(found["groups"]) == 5
    assert found["groups"]["all sets"]["joint coverage"]["within 68%"] == pytest.approx(0.68, abs=0.1)

    summaries, theta = fn.inference.load_summaries(files / "test.fishnet")
    assert theta is not None
    sd = summaries.gaussian.standard_deviation
    save_summaries(files / "biased.fishnet", summaries, theta + sd)
    done = fishnets("diagnose", "biased.fishnet", "--posterior", "posterior.fishnet", "--plots", "figures")
    assert done.exit_code == 0, done.stderr
    assert "Miscalibrated: " in done.stdout
    assert "PIT of parameter 0 (all sets, p = " in done.stdout
    assert (files / "figures" / "calibration.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["infer", "observed.fishnet"], "Give either --train, pairs to fit a posterior on, or --posterior"),
        (["infer", "observed.fishnet", "--posterior", "posterior.fishnet", "--save", "x"], "--save goes with --train"),
        (["infer", "observed.fishnet", "--train", "pairs.fishnet", "--kind", "maf"], "maf"),
        (["diagnose", "test.fishnet"], "--posterior"),
    ],
)
def test_a_wrong_command_is_refused_with_code_2(fishnets: Any, arguments: list[str], message: str) -> None:
    done = fishnets(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_files_without_theta_or_of_other_sizes_are_refused(fishnets: Any, files: Path) -> None:
    done = fishnets("infer", "observed.fishnet", "--train", "observed.fishnet")
    assert isinstance(done.exception, DataError)
    assert "observed.fishnet holds summaries without theta; write them with" in str(done.exception)
    done = fishnets("diagnose", "observed.fishnet", "--posterior", "posterior.fishnet")
    assert isinstance(done.exception, DataError)
    assert "observed.fishnet holds no theta to compare with" in str(done.exception)
    save_summaries(files / "large.fishnet", summaries_of(torch.tensor([5000]), 3)[1])
    done = fishnets("infer", "large.fishnet", "--posterior", "posterior.fishnet")
    assert isinstance(done.exception, SupportError)
    assert "got 5,000 in 1 of 1 sets" in str(done.exception)
