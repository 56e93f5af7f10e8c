"""Yeast: networks of equal size, noisy graphs that stay, a run end to end that continues, figures and page."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.graphs.folders import LABELS, NODES, protein_folder

from fishnets.errors import ConfigError, DataError
from fishnets.experiments import EXPERIMENTS
from fishnets.experiments.graph_pages import _at_equal_loss, yeast_page
from fishnets.experiments.graph_study import Curve, GraphStudy, StudyResult, paired_difference
from fishnets.experiments.protein_graph import ProteinGraph, read_graph
from fishnets.experiments.records import Record, versions, write_record
from fishnets.experiments.yeast import METHODS, Config, at_equal_loss, config_for, make_model, run, task_of
from fishnets.graphs.datasets import sum_of_edges


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ProteinGraph:
    return read_graph(protein_folder(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def config(graph: ProteinGraph) -> Config:
    return config_for("smoke", "clean", table=graph)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def result(config: Config, folder: Path) -> StudyResult:
    return run(config, folder)


@pytest.mark.parametrize("method", METHODS)
def test_networks_have_about_as_many_weights(graph: ProteinGraph, method: str) -> None:
    config = config_for("paper", "clean", table=graph)
    before = torch.get_rng_state()
    with torch.random.fork_rng():
        networks = [make_model(config, one, "clean") for one in ("fishnets", method)]
    sizes = [sum(weight.numel() for weight in network.parameters()) for network in networks]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.03)
    assert torch.equal(before, torch.get_rng_state())


def test_noisy_edges_stay_in_tests_and_change_in_training(config: Config) -> None:
    task, again, other = (task_of(config, "noisy", seed) for seed in (0, 0, 1))
    one = task.graphs
    for part in ("valid", "test"):
        assert torch.equal(one[part].edge_attr, other.graphs[part].edge_attr)
        assert one[part].edge_attr.shape[1] == one[part].x.shape[1] == 9
    assert set(one) == {"valid", "test"}
    assert one["valid"].edge_index is one["test"].edge_index is task.draw(0).edge_index
    trials = 200 * one["test"].edge_attr[:, -1]
    assert bool(((trials < 50) | (trials > 169)).all())
    first, second = task.draw(0), task.draw(1)
    assert torch.equal(first.edge_attr, again.draw(0).edge_attr)
    assert not torch.equal(first.edge_attr, second.edge_attr)
    assert not torch.equal(first.edge_attr, other.draw(0).edge_attr)
    assert first.edge_index is second.edge_index
    torch.testing.assert_close(first.x, sum_of_edges(first).log1p())


def test_clean_edges_are_the_same_for_all(config: Config) -> None:
    clean, noisy = task_of(config, "clean", 0), task_of(config, "noisy", 0)
    assert clean.draw is None
    assert clean.graphs["train"] is clean.graphs["test"]
    for graph in (clean.graphs["train"], noisy.graphs["test"], noisy.draw(3)):
        assert bool((graph.edge_index[1].diff() >= 0).all())  # as aggregations read them fastest
    assert torch.equal(clean.graphs["train"].x, config.table.data.x)


def test_every_network_is_measured_under_both_conditions(config: Config, result: StudyResult) -> None:
    for condition in ("clean", "noisy"):
        for method in config.methods:
            for name in ("rocauc", "valid", "epochs_to_best", "seconds_to_best", "seconds_per_epoch", "weights"):
                assert f"{name}/{method}/{condition}" in result.metrics
            assert 0 <= result.metrics[f"rocauc/{method}/{condition}"].value <= 1
            assert result.metrics[f"epochs_to_best/{method}/{condition}"].value in (2, 3, 4)  # a mean of two
        ahead = result.metrics[f"difference/fishnets-sum/{condition}"]
        runs = [result.runs[f"{method}/{condition}"] for method in ("fishnets", "sum")]
        assert ahead == paired_difference(*runs)
        assert result.metrics[f"difference_valid/fishnets-sum/{condition}"] == paired_difference(*runs, part="valid")
        assert ahead.value == pytest.approx(float((runs[0].measures["test"] - runs[1].measures["test"]).mean()))
        assert len(result.runs[f"pna/{condition}"].measures["test"]) == 1
    lost = result.metrics["difference/clean-noisy/fishnets"].value
    clean, noisy = (result.metrics[f"rocauc/fishnets/{condition}"].value for condition in ("clean", "noisy"))
    assert lost == pytest.approx(clean - noisy)


def test_a_run_continues_where_it_was(
    config: Config, result: StudyResult, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(GraphStudy, "_measure", refuse)
    again = run(config, folder)
    assert again.metrics == result.metrics
    assert again.runs["fishnets/noisy"].curve == result.runs["fishnets/noisy"].curve
    with pytest.raises(AssertionError, match="trained again"):
        run(replace(config, dropout=0.1), folder)


def test_an_interrupted_run_continues(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fishnets.graphs.tasks import NodeTask

    only = replace(config, methods=("sum",), conditions=("clean",), seeds=(0,))
    whole = run(only)
    evaluate, calls = NodeTask.evaluate, []

    def stops(task: NodeTask, model: object) -> dict[str, float]:
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(task, model)

    monkeypatch.setattr(NodeTask, "evaluate", stops)
    with pytest.raises(KeyboardInterrupt):
        run(only, tmp_path)
    assert len(list(tmp_path.glob("*.pt"))) == 1
    monkeypatch.setattr(NodeTask, "evaluate", evaluate)
    again = run(only, tmp_path)
    assert again.runs["sum/clean"].curve == whole.runs["sum/clean"].curve
    assert not list(tmp_path.glob("*.pt"))


def test_scores_are_compared_where_networks_have_learned_equally_well(result: StudyResult) -> None:
    one = Curve([10, 20], [0.2, 0.1], [0.6, 0.8], [0.5, 0.7])
    other = Curve([10, 20], [0.1, 0.2], [0.7, 0.6], [0.4, 0.9])
    runs = replace(result.runs["fishnets/clean"], curves=(one, other))
    found = at_equal_loss(runs, "sum/clean", loss=0.1)
    assert {name: entry.value for name, entry in found.items()} == pytest.approx(
        {"at_loss/epochs/sum/clean": 15, "at_loss/valid/sum/clean": 0.75, "at_loss/test/sum/clean": 0.55}
    )
    assert at_equal_loss(runs, "sum/clean", loss=0.05) == {}
    page = "\n".join(_at_equal_loss(found, ["sum/clean", "sum/noisy"]))
    assert "| sum/clean | 15 | 0.750 ± 0.071 | 0.55 ± 0.21 |" in page
    assert "sum/noisy" not in page


def test_configs(graph: ProteinGraph) -> None:
    config = config_for("paper", "clean", seed=2, table=graph)
    assert json.loads(json.dumps(config.to_dict()))["seeds"] == list(range(10))
    assert len(config.seeds_of("softmax")) == 10
    assert len(config.seeds_of("pna")) == 3
    with pytest.raises(ConfigError, match="the paper has no comparison on this graph"):
        config_for("paper", "published", table=graph)


def test_the_record_has_figures_and_a_page(result: StudyResult, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fields = (versions(), "cpu", result.seconds, result.metrics)
    record = Record("yeast", "smoke", "clean", "fishnets", result.config.to_dict(), [0], *fields)
    path = write_record(record, tmp_path)
    EXPERIMENTS["yeast"].draw(result, path.with_suffix(""))
    assert len(list(path.parent.glob("*.png"))) == 2
    page = yeast_page(tmp_path)
    assert "### noisy" in page
    assert "| fishnets |" in page
    assert "lost to noise" in page


def test_the_share_of_noise_is_smaller_in_sums(config: Config, result: StudyResult) -> None:
    for law in ("train", "test"):
        edges, nodes = (result.metrics[f"noise/{what}/{law}"].value for what in ("edges", "nodes"))
        assert 0 < nodes < edges < 1
    assert result.metrics["tasks_scored/valid"].value <= config.table.data.y.shape[1]


def test_labels_that_teach_nothing_are_named_with_their_folder(tmp_path: Path) -> None:
    folder = protein_folder(tmp_path)
    rows = (",".join("1" * LABELS) + "\n") * NODES
    (folder / "raw" / "node-label.csv.gz").write_bytes(gzip.compress(rows.encode()))
    with pytest.raises(DataError, match=rf"^{folder}: No task has positives and negatives in the part 'train'"):
        read_graph(folder)
