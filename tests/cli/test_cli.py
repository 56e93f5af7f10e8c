"""The command line: every verb, its files, its refusals and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.graphs.folders import molecule_folder, protein_folder
from typer.testing import CliRunner

import fishnets as fn
from fishnets.cli import app
from fishnets.cli.options import command_line
from fishnets.errors import ConfigError
from fishnets.experiments import EXPERIMENTS, read_record

# experiments that the paper does not have: there is nothing published to repeat
OURS = {"saturation", "supernovae", "noisy-neighbourhoods", "string-yeast", "yeast"}
SMALL = ["--preset", "smoke", "--device", "cpu"]


def fishnets(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fishnets.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_help_starts_with_an_example(tmp_path: Path) -> None:
    for verb in ("demo", "reproduce", "info"):
        done = fishnets(verb, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert f"Example:  fishnets {verb}" in done.stdout


def test_demo_writes_report_figure_model_and_record(tmp_path: Path) -> None:
    done = fishnets("demo", "--smoke", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "**Efficiency**" in done.stdout
    assert "Next:" in done.stderr
    assert (tmp_path / "demo" / "report.md").read_text().startswith("# Fishnets on linear regression")
    assert (tmp_path / "demo" / "residuals.png").stat().st_size > 1000
    (record,) = (tmp_path / "demo").glob("smoke-clean-cpu-*.json")
    assert "efficiency/recommended/n=50" in json.loads(record.read_text())["metrics"]
    model = fn.load(tmp_path / "demo" / "model.fishnet")
    assert model.compress(fn.Sets.from_list([torch.zeros(3, 3)])).count.tolist() == [3]

    again = fishnets("demo", "--smoke", cwd=tmp_path)
    assert again.returncode == 1
    assert "exists. Give --overwrite" in again.stderr
    assert again.stderr.count("\n") == 1, "an error is one message"


def test_reproduce_records_and_refuses_to_overwrite(tmp_path: Path) -> None:
    done = fishnets("reproduce", "linear-scaling", *SMALL, "--protocol", "published", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results" / "linear-scaling").glob("smoke-published-cpu-*.json")
    record = json.loads(path.read_text())
    assert record["command"].endswith("reproduce linear-scaling --preset smoke --device cpu --protocol published")
    assert record["seeds"] == [0]
    assert record["config"]["candidates"][0]["members"] == 2
    again = fishnets("reproduce", "linear-scaling", *SMALL, "--protocol", "published", cwd=tmp_path)
    assert again.returncode == 1
    assert "exists. Give --overwrite" in again.stderr


def test_an_interrupted_run_says_where_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(EXPERIMENTS, "saturation", replace(EXPERIMENTS["saturation"], run=interrupted))
    done = CliRunner().invoke(app, ["reproduce", "saturation", *SMALL, "--out", str(tmp_path / "out")])
    assert done.exit_code == 130
    assert "smoke-clean-cpu-seed0: the same command continues from there." in done.stderr
    monkeypatch.setitem(EXPERIMENTS, "saturation", replace(EXPERIMENTS["saturation"], anywhere=True))
    done = CliRunner().invoke(app, ["reproduce", "saturation", *SMALL, "--out", str(tmp_path / "out")])
    assert "smoke-clean-seed0: the same command continues from there." in done.stderr
    (tmp_path / "file").touch()
    done = CliRunner().invoke(app, ["reproduce", "saturation", *SMALL, "--out", str(tmp_path / "file")])
    with pytest.raises(ConfigError, match=r"--out names .*file, which is a file; a folder was expected"):
        raise done.exception or AssertionError


def test_a_dry_run_prints_the_config_and_writes_nothing(tmp_path: Path) -> None:
    done = fishnets("reproduce", "linear-scaling", "--preset", "paper", "--device", "cpu", "--dry-run", cwd=tmp_path)
    assert json.loads(done.stdout)["protocol"] == "clean"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("protocol", ["clean", "published"])
def test_every_experiment_prints_its_config(
    name: str,
    protocol: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    writers = {"supernovae": union_table, "molhiv": molecule_folder, "arxiv": citation_folder}
    write = writers.get(name, protein_folder)
    given = ["--data", str(write(tmp_path_factory.mktemp("data")))] if EXPERIMENTS[name].read else []
    for preset in ("smoke", "quick", "paper"):
        choices = ["--preset", preset, "--protocol", protocol, "--seed", "3", "--device", "cpu", *given]
        done = CliRunner().invoke(app, ["reproduce", name, *choices, "--dry-run"])
        if protocol == "published" and name in OURS:
            assert isinstance(done.exception, ConfigError)
            assert "the paper has no" in str(done.exception)
            continue
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert [found[key] for key in ("preset", "protocol", "seed", "device")] == [preset, protocol, 3, "cpu"]
        if name.startswith("gamma"):
            assert found["threshold"] == (25 if name == "gamma-censored" else None)
    assert not list(tmp_path.iterdir())


def test_reproduce_robustness_writes_a_record_and_figures(tmp_path: Path) -> None:
    done = fishnets("reproduce", "robustness", *SMALL, "--protocol", "published", "--out", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Recorded in kept/robustness/smoke-published-cpu-" in done.stderr
    folder = tmp_path / "kept" / "robustness"
    (path,) = folder.glob("smoke-published-cpu-*.json")
    record = read_record(path)
    assert record.metrics["mse/fishnets/m/A"].paper == 0.007
    assert record.metrics["mse_over_floor/softmax/c/training"].bound == 1.0
    assert record.config["contestants"][0]["kind"] == "fishnets"
    assert "mse_over_floor/deepset/m/C" in done.stdout
    for figure in ("laws", "residuals-A", "residuals-C"):
        assert (folder / f"{path.stem}-{figure}.png").stat().st_size > 1000
    assert not (folder / "checkpoints").exists(), "the same command starts anew"


def union_table(folder: Path) -> Path:
    """A made-up table in the layout of Union2.1."""
    path = folder / "some-table.txt"
    path.write_text("# made up\na 0.05 36.8 0.2 0.1\nb 0.5 42.3 0.2 0.1\nc 1.0 44.1 0.3 0.1\n")
    return path


def citation_folder(folder: Path) -> Path:
    """Two made-up papers that cite each other."""
    words = {"attr_indptr": [0, 1, 2], "attr_indices": [0, 1], "attr_data": [1.0, 0.5], "attr_shape": [2, 2]}
    np.savez(folder / "two.npz", adj_indptr=[0, 1, 2], adj_indices=[1, 0], labels=[0, 1], **words)
    return folder


def test_a_data_file_is_recorded_by_name_and_hash_alone(tmp_path: Path) -> None:
    path = union_table(tmp_path)
    done = fishnets("reproduce", "supernovae", *SMALL, "--data", str(path), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["table"]
    assert (found["name"], found["num_data"], len(found["sha256"])) == ("some-table.txt", 3, 64)
    assert str(tmp_path) not in done.stdout


@pytest.mark.parametrize("typed", [["--data", "{}"], ["--data={}"]])
def test_the_recorded_command_names_no_folder(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some-table.txt"
    monkeypatch.setattr(sys, "argv", ["fishnets", "reproduce", "supernovae", *(w.format(path) for w in typed)])
    expected = " ".join(["fishnets reproduce supernovae", *(w.format("some-table.txt") for w in typed)])
    assert command_line(path) == expected
    assert command_line(None, path, tmp_path) == expected
    assert str(tmp_path) in command_line()
    monkeypatch.setattr(sys, "argv", ["fishnets", "reproduce", "yeast", "--out", str(tmp_path / "results")])
    assert command_line(path, tmp_path / "results") == "fishnets reproduce yeast --out results"


def test_an_unknown_experiment_is_told_all_there_are() -> None:
    done = CliRunner().invoke(app, ["reproduce", "nonsense"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, "an error is one message"
    for name in ("linear-scaling", "gamma-population", "gamma-censored", "robustness"):
        assert name in done.stderr


def test_info_describes_a_model(tmp_path: Path) -> None:
    prior = fn.priors.Box([0.0], [1.0])
    fn.Fishnet(num_features=2, prior=prior, network=fn.networks.MLP(4, 1)).save(tmp_path / "m.fishnet")
    found = json.loads(fishnets("info", "m.fishnet", "--json", cwd=tmp_path).stdout)
    assert found["network"] == {"kind": "MLP", "width": 4, "depth": 1, "activation": "elu"}
    assert found["fitted"] is False
    assert "num_weights" in fishnets("info", "m.fishnet", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["reproduce", "nonsense"], 2, 'There is no experiment "nonsense"; the experiments are: linear-scaling'),
        (["reproduce", "supernovae"], 1, "give --data PATH, where PATH is the Union2.1 compilation of the Supernova"),
        (["reproduce", "supernovae", "--data", "no.txt"], 1, "There is no file no.txt. The table is the Union2.1"),
        (["reproduce", "robustness", "--data", "no.txt"], 1, 'the experiment "robustness" reads no file; leave it'),
        (["info", "nothing.fishnet"], 1, "There is no file nothing.fishnet"),
        (["reproduce", "linear-scaling", "--preset", "huge"], 2, "huge"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    done = fishnets(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to be had")
def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = fishnets("reproduce", "linear-scaling", "--preset", "smoke", "--device", "cuda", cwd=tmp_path)
    assert done.returncode == 1
    assert "torch sees no GPU" in done.stderr
