"""String-yeast: its graph, configs, a run end to end that continues where it was, figure and page."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.graphs.folders import NODES, protein_folder

from fishnets.errors import ConfigError, NonFiniteLossError
from fishnets.experiments import EXPERIMENTS, string_yeast
from fishnets.experiments.graph_pages import string_yeast_page
from fishnets.experiments.protein_graph import ProteinGraph, read_graph
from fishnets.experiments.records import Metric, Record, versions, write_record
from fishnets.experiments.string_yeast import METHODS, Result, config_for, run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return protein_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def graph(folder: Path) -> ProteinGraph:
    return read_graph(folder)


@pytest.fixture(scope="module")
def result(graph: ProteinGraph, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(config_for("smoke", "clean", table=graph), tmp_path_factory.mktemp("parts"))


def test_nodes_start_from_the_sum_of_their_edges(graph: ProteinGraph) -> None:
    data = graph.data
    total = torch.zeros(NODES, 8).index_add(0, data.edge_index[1], data.edge_attr)
    torch.testing.assert_close(data.x, torch.log1p(total))
    assert graph.to_dict() == {"name": "small-graph", "sha256": graph.sha256, "num_nodes": NODES}
    assert len(graph.sha256) == 64


def test_a_folder_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"needs a graph in the layout of ogbn-proteins.* but no folder was given"):
        read_graph(None)


def test_the_config_can_be_written_as_json(graph: ProteinGraph) -> None:
    fields = json.loads(json.dumps(config_for("paper", "clean", seed=2, table=graph).to_dict()))
    assert fields["methods"] == list(METHODS)
    assert fields["table"]["name"] == "small-graph"
    assert len(fields["seeds"]) == 3
    assert len(config_for("quick", "clean", table=graph).seeds) == 1
    with pytest.raises(ConfigError, match='the paper has no experiment with this graph; use "clean"'):
        config_for("paper", "published", table=graph)


def test_every_aggregation_is_measured_at_both_budgets(result: Result) -> None:
    for method in result.config.methods:
        for kind in ("epochs", "time"):
            for name in ("loss", "loss_with_dropout", "valid_auc", "test_auc"):
                entry = result.metrics[f"{name}/{method}/equal-{kind}"]
                assert math.isfinite(entry.value)
                assert entry.error >= 0
            assert 0 <= result.metrics[f"valid_auc/{method}/equal-{kind}"].value <= 1
            assert result.metrics[f"epochs/{method}/equal-{kind}"].value >= 1
        assert result.metrics[f"learning-rate/{method}"].value in result.config.learning_rates
        assert result.metrics[f"weights/{method}"].value > 0
    assert result.seconds > 0


def test_a_run_continues_from_its_parts_and_leaves_the_global_generator_alone(
    graph: ProteinGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config_for("smoke", "clean", table=graph), methods=("sum",), seconds=1e-9)
    first = run(config, tmp_path)

    def refuse(*_: object) -> None:
        raise AssertionError("a finished part was measured again")

    monkeypatch.setattr(string_yeast._Study, "_trained", refuse)
    assert run(config, tmp_path).metrics == first.metrics
    with pytest.raises(AssertionError, match="measured again"):
        run(replace(config, hidden=9), tmp_path)


def test_a_rate_that_diverges_loses_the_tuning(graph: ProteinGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(config_for("smoke", "clean", table=graph), methods=("sum",), learning_rates=(1e-2, 1e3))
    trained = string_yeast._Study._trained

    def diverging(study: string_yeast._Study, method: str, rate: float, *rest: int) -> dict[str, Metric]:
        if rate >= config.learning_rates[-1]:
            raise NonFiniteLossError("The loss became nan.")
        return trained(study, method, rate, *rest)

    monkeypatch.setattr(string_yeast._Study, "_trained", diverging)
    metrics = run(config).metrics
    assert metrics["learning-rate/sum"].value == 1e-2
    assert [name for name in metrics if name.startswith("tuning/")] == [
        "tuning/sum/rate=0.01/loss",
        "tuning/sum/rate=0.01/valid_auc",
    ]
    with pytest.raises(NonFiniteLossError, match=r"^sum diverges at every rate of \(1000\.0,\)\.$"):
        run(replace(config, learning_rates=(1e3,)))


def test_every_named_aggregation_can_be_made(graph: ProteinGraph) -> None:
    study = string_yeast._Study(config_for("smoke", "clean", table=graph), None)
    with torch.random.fork_rng(devices=[]):
        forms = [study._model(method) for method in METHODS]
    kinds = [type(next(m for m in model.modules() if hasattr(m, "aggr_module")).aggr_module) for model in forms]
    assert [kind.__name__ for kind in kinds][:2] == ["FishnetsAggregation"] * 2
    assert len(set(kinds)) == 3


def test_the_figure_and_the_page_show_every_aggregation(tmp_path: Path, result: Result) -> None:
    pytest.importorskip("matplotlib")
    fields = (versions(), "cpu", result.seconds, result.metrics)
    record = Record("string-yeast", "smoke", "clean", "fishnets", result.config.to_dict(), [0], *fields)
    path = write_record(record, tmp_path)
    EXPERIMENTS["string-yeast"].draw(result, path.with_suffix(""))
    assert (path.parent / "smoke-clean-cpu-auc.png").stat().st_size > 5_000
    page = string_yeast_page(tmp_path)
    assert "smoke-clean-cpu-auc.png" in page
    assert all(f"| {method} |" in page for method in result.config.methods)
