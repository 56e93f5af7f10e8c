"""Records: what they must hold, and the check that texts quote nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fishnets.errors import ConfigError, FileFormatError
from fishnets.experiments import EXPERIMENTS
from fishnets.experiments.graph_study import NamedGraph
from fishnets.experiments.molhiv import Molecules
from fishnets.experiments.pages import pages_of
from fishnets.experiments.protein_graph import ProteinGraph
from fishnets.experiments.records import (
    Metric,
    Record,
    check_records,
    hardware_name,
    read_record,
    versions,
    write_record,
)
from fishnets.experiments.union21 import Table

RESULTS = Path(__file__).parents[2] / "results"
RECORD = Record(
    name="trial",
    preset="smoke",
    protocol="clean",
    command="fishnets reproduce trial",
    config={"steps": 3},
    seeds=[0],
    versions=versions(),
    hardware="cpu",
    seconds=1.5,
    metrics={"efficiency/paper/n=500": Metric(0.98765, 0.0012, bound=1.0)},
)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_record(RECORD, tmp_path)
    assert path == tmp_path / "trial" / "smoke-clean-cpu.json"
    assert read_record(path) == RECORD
    (entry,) = json.loads(path.read_text())["metrics"].values()
    assert set(entry) == {"value", "error", "paper", "bound"}


def test_a_record_is_not_overwritten_unasked(tmp_path: Path) -> None:
    write_record(RECORD, tmp_path)
    with pytest.raises(ConfigError, match=r"exists\. Give --overwrite"):
        write_record(RECORD, tmp_path)
    write_record(replace(RECORD, seconds=2.0), tmp_path, overwrite=True)


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    bad = replace(RECORD, metrics={"x": Metric(float("nan"), 0.0)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(bad, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"name": "x"}', '{"metrics": {"a": {"value": 1}}}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FileFormatError, match="is not a record"):
        read_record(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Efficiency 0.988, error 0.0012.", None),
        ("Efficiency 0.989.", "0.989 is in no record"),
        ("In code: `0.5` and\n```\n0.7\n```\n is not looked at; nor is a version such as 1.2.3 or v0.4.", None),
        ("| 0.9877 | 1.0 |", None),
        ("A loss of −3.25", "−3.25 is in no record"),
    ],
)
def test_a_text_may_quote_only_records(tmp_path: Path, text: str, complaint: str | None) -> None:
    write_record(RECORD, tmp_path)
    (tmp_path / "README.md").write_text(text)
    found = check_records(tmp_path, [tmp_path / "README.md"])
    assert found == ([] if complaint is None else [f"{tmp_path / 'README.md'}: {complaint}"])


def test_a_metric_without_an_error_is_found(tmp_path: Path) -> None:
    path = write_record(RECORD, tmp_path)
    fields = json.loads(path.read_text())
    fields["metrics"]["efficiency/paper/n=500"]["error"] = None
    path.write_text(json.dumps(fields))
    assert check_records(tmp_path, []) == [f"{path}: metric efficiency/paper/n=500 has no error"]


def test_a_record_in_the_wrong_place_is_found(tmp_path: Path) -> None:
    path = write_record(RECORD, tmp_path)
    moved = path.rename(path.with_name("other.json"))
    assert check_records(tmp_path, []) == [f"{moved}: its contents belong at {path}"]


def test_the_hardware_fits_a_file_name() -> None:
    assert hardware_name("cpu").replace("-", "").isalnum()


STORED = sorted(path for name in EXPERIMENTS for path in (RESULTS / name).glob("*.json"))


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_stored_record_is_of_the_config_that_its_command_runs_today(path: Path) -> None:
    record = read_record(path)
    where: dict[str, Any] = {"seed": record.config["seed"], "device": record.config["device"]}
    if EXPERIMENTS[record.name].read is not None:  # the data themselves are not part of the package
        where["table"] = stand_in(record.config["table"])
    config = EXPERIMENTS[record.name].config_for(record.preset, record.protocol, **where)
    assert recorded_part(json.loads(json.dumps(config.to_dict(), default=str)), record.config) == record.config


def test_pages_are_those_of_the_records_beside_them() -> None:
    pages = pages_of(RESULTS)
    assert len(pages) > 10
    stale = [path.parent.name for path, text in pages.items() if not path.exists() or path.read_text() != text]
    assert not stale, f"pages that `python -m fishnets.experiments.pages results` would change: {stale}"


def stand_in(table: Any) -> Table | ProteinGraph | Molecules | tuple[NamedGraph, ...]:
    """Data of the recorded name, size and hash, without their contents."""
    if isinstance(table, list):
        return tuple(NamedGraph(g["name"], g["sha256"], SimpleNamespace(num_nodes=g["num_nodes"])) for g in table)
    if "num_graphs" in table:
        return Molecules(table["name"], table["sha256"], range(table["num_graphs"]))
    if "num_nodes" in table:
        return ProteinGraph(table["name"], table["sha256"], SimpleNamespace(num_nodes=table["num_nodes"]))
    return Table(table["name"], *torch.zeros(3, table["num_data"]), table["sha256"])


def recorded_part(config: Any, recorded: Any) -> Any:
    """A config without the options that came after the record."""
    if isinstance(recorded, dict):
        return {name: recorded_part(config[name], value) for name, value in recorded.items()}
    if isinstance(recorded, list):
        return [recorded_part(one, other) for one, other in zip(config, recorded, strict=True)]
    return config
