"""arXiv: the networks' sizes, graphs and splits as they are read and drawn, a run that continues, pages and errors."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.utils import add_self_loops, to_undirected

from fishnets.errors import ConfigError, DataError
from fishnets.experiments import EXPERIMENTS
from fishnets.experiments.arxiv import (
    MODELS,
    Config,
    config_for,
    make_model,
    read_graphs,
    run,
    runs_of,
    study_of,
    task_of,
)
from fishnets.experiments.graph_pages import arxiv_page
from fishnets.experiments.graph_study import GraphStudy, StudyResult, paired_difference
from fishnets.experiments.pages import main
from fishnets.experiments.records import Record, versions, write_record

NODES, CLASSES = 60, 3
MASKS = ("train_mask", "valid_mask", "test_mask")
NOT_RUN = "ogbn-arxiv: not run: data not at hand."


def papers(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Citations (E, 2), sorted, mostly within a class; words (N, 6), two of each class; classes (N,)."""
    generator = np.random.default_rng(seed)
    labels = np.arange(NODES) % CLASSES
    citing = generator.integers(NODES, size=150)
    near = citing + CLASSES * generator.integers(1, NODES // CLASSES, size=150)
    cited = np.where(generator.random(150) < 0.8, near % NODES, generator.integers(NODES, size=150))
    edges = np.unique(np.stack([citing, cited], 1)[citing != cited], axis=0)
    words = 0.7 * generator.random((NODES, 2 * CLASSES)) + np.eye(CLASSES).repeat(2, axis=1)[labels]
    return edges, words.astype(np.float32), labels


def citation_file(path: Path, seed: int) -> Path:
    edges, words, labels = papers(seed)
    bounds = np.searchsorted(edges[:, 0], np.arange(NODES + 1))
    arrays = {"adj_indptr": bounds, "adj_indices": edges[:, 1], "labels": labels, "attr_shape": np.array(words.shape)}
    arrays |= {"attr_indptr": words.shape[1] * np.arange(NODES + 1), "attr_data": words.flatten()}
    np.savez(path, **arrays, attr_indices=np.tile(np.arange(words.shape[1]), NODES))
    return path


def arxiv_folder(parent: Path, **changes: Sequence[Sequence[float]]) -> Path:
    """A folder as OGB's download of ogbn-arxiv, which has no meta.json."""
    edges, words, labels = papers(2)
    tables: dict[str, Any] = {"edge": edges, "node-feat": words, "node-label": labels[:, None]}
    tables |= {"num-node-list": [[NODES]], "num-edge-list": [[len(edges)]], "node_year": [[2000]] * NODES} | changes
    parts = {"train": range(30), "valid": range(30, 45), "test": range(45, NODES)}
    files = {f"raw/{name}": rows for name, rows in tables.items()}
    files |= {f"split/time/{name}": [[i] for i in rows] for name, rows in parts.items()}
    for name, rows in files.items():
        path = parent / "ogbn_arxiv" / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode()))
    return parent / "ogbn_arxiv"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    citation_file(folder / "dblp.npz", 0)
    citation_file(folder / "cora_ml.npz", 1)
    return folder


@pytest.fixture(scope="module")
def config(data: Path) -> Config:
    return config_for("smoke", "clean", table=read_graphs(data))


@pytest.fixture(scope="module")
def arxiv_config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return config_for("smoke", "published", table=read_graphs(arxiv_folder(tmp_path_factory.mktemp("data"))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def result(config: Config, folder: Path) -> StudyResult:
    return run(config, folder)


@pytest.mark.parametrize(
    ("name", "protocol", "layers", "weights"),
    [("gcn-28", "clean", 28, 491_176), ("fishnets-3", "clean", 3, 99_813), ("fishnets-3", "published", 3, 96_714)],
)
def test_networks_have_the_published_sizes(config: Config, name: str, protocol: str, layers: int, weights: int) -> None:
    with torch.random.fork_rng():
        model = make_model(config_for("paper", protocol, table=config.table), name, 128, 40)
    assert len(model.layers) == layers
    assert sum(weight.numel() for weight in model.parameters()) == weights
    assert model.drop.share == 0.5


def test_the_baseline_has_a_softmax_of_fixed_temperature(config: Config) -> None:
    with torch.random.fork_rng():
        aggregation = make_model(config, "gcn-28", 6, 3).layers[0].conv.aggr_module
        both = (config, replace(config, protocol="published"))
        forms = [make_model(one, "fishnets-3", 6, 3).layers[0].conv.aggr_module.form for one in both]
    assert (aggregation.t, aggregation.learn, aggregation.semi_grad) == (0.1, False, True)
    assert forms == ["regression", "paper"]


def expected_edges(seed: int) -> set[tuple[int, ...]]:
    edges = to_undirected(torch.from_numpy(papers(seed)[0].T), num_nodes=NODES)
    return set(map(tuple, add_self_loops(edges, num_nodes=NODES)[0].T.tolist()))


def test_graphs_have_both_directions_and_loops_and_words_as_stored(config: Config) -> None:
    assert [graph.name for graph in config.table] == ["cora_ml", "dblp"]
    for graph, seed in zip(config.table, (1, 0), strict=True):
        found = list(map(tuple, graph.data.edge_index.T.tolist()))
        assert len(found) == len(set(found))
        assert set(found) == expected_edges(seed)
        assert np.array_equal(graph.data.x.numpy(), papers(seed)[1])
        assert graph.data.y.tolist() == papers(seed)[2].tolist()


def test_a_graph_is_known_by_its_contents(data: Path, config: Config, tmp_path: Path) -> None:
    again = read_graphs(data)
    assert [graph.to_dict() for graph in again] == [graph.to_dict() for graph in config.table]
    assert len({graph.sha256 for graph in again}) == 2
    with np.load(data / "dblp.npz") as stored:
        arrays = dict(stored)
    arrays["attr_data"][0] += 1
    np.savez(tmp_path / "dblp.npz", **arrays)
    assert read_graphs(tmp_path)[0].sha256 != again[1].sha256


def test_every_seed_draws_a_split_that_networks_share(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[tuple[int, Any]]] = {}
    measure = GraphStudy._run

    def spy(self: GraphStudy, label: str, make: Any, task: Any, recipe: Any, rate: float, seed: int) -> Any:
        seen.setdefault(label, []).append((seed, task(seed).graphs["train"]))
        return measure(self, label, make, task, recipe, rate, seed)

    monkeypatch.setattr(GraphStudy, "_run", spy)
    graph = config.table[0]
    for name in MODELS[:2]:
        runs_of(config, study_of(config, None), name, graph)
    first, second = (seen[f"{name}/cora_ml"] for name in MODELS[:2])
    assert [seed for seed, _ in first] == [0, 0, 0, 1]  # two learning rates, two seeds
    for (seed, one), (_, other) in zip(first, second, strict=True):
        split = task_of(config, graph.data, seed).graphs["test"]
        assert all(torch.equal(one[mask], other[mask]) and torch.equal(one[mask], split[mask]) for mask in MASKS)
        assert [int(one[mask].sum()) for mask in MASKS] == [36, 12, 12]
    assert not torch.equal(first[-1][1].test_mask, first[0][1].test_mask)
    study_seed = task_of(replace(config, seed=1), graph.data, 0).graphs["test"]
    assert not torch.equal(study_seed.test_mask, first[0][1].test_mask)
    assert "train_mask" not in graph.data


def test_ogbn_arxiv_keeps_its_split_and_has_both_directions(arxiv_config: Config) -> None:
    (graph,) = arxiv_config.table
    assert graph.name == "ogbn-arxiv"
    assert set(map(tuple, graph.data.edge_index.T.tolist())) == expected_edges(2)
    for seed in (0, 1):
        split = task_of(arxiv_config, graph.data, seed).graphs["train"]
        assert [int(split[mask].sum()) for mask in MASKS] == [30, 15, 15]
        assert bool(split.train_mask[:30].all())


def test_every_network_is_measured_on_every_graph(result: StudyResult) -> None:
    times = ("epochs_to_best", "seconds_to_best", "seconds_per_epoch")
    measures = ("accuracy", "valid", *times, "weights", "learning-rate")
    for graph in ("dblp", "cora_ml"):
        for name in MODELS:
            found = {what: result.metrics[f"{what}/{name}/{graph}"] for what in measures}
            runs = result.runs[f"{name}/{graph}"]
            assert found["accuracy"].value == pytest.approx(float(runs.measures["test"].mean()))
            assert found["accuracy"].error == pytest.approx(float(runs.measures["test"].std()))
            assert found["accuracy"].value * 24 == pytest.approx(round(found["accuracy"].value * 24))  # of 12 nodes
            assert found["learning-rate"].value in (1e-3, 1e-2)
            assert all(metric.paper is None for metric in found.values())
        pair = [result.runs[f"{name}/{graph}"] for name in ("fishnets-3", "gcn-28")]
        assert result.metrics[f"difference/fishnets-3-gcn-28/{graph}"] == paired_difference(*pair)
    assert not any("rocauc" in name for name in result.metrics)


def test_a_run_continues_where_it_was(
    config: Config, result: StudyResult, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(GraphStudy, "_measure", refuse)
    again = run(config, folder)
    assert again.metrics == result.metrics
    assert again.runs["gcn-28/dblp"].curve == result.runs["gcn-28/dblp"].curve
    for change in ({"dropout": 0.1}, {"table": config.table[:1]}, {"seeds": (0, 1, 2)}):
        with pytest.raises(AssertionError, match="trained again"):
            run(replace(config, **change), folder)


@pytest.mark.parametrize("name", MODELS)
def test_networks_learn(config: Config, name: str) -> None:
    trained = replace(
        config, models=(name,), table=config.table[:1], hidden=16, epochs=60, seeds=(0, 1), learning_rates=(1e-2,)
    )
    assert run(trained).metrics[f"accuracy/{name}/cora_ml"].value > 0.8  # one in three by chance


def test_the_papers_values_are_beside_ogbn_arxiv_alone(arxiv_config: Config, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "both")
    arxiv_folder(tmp_path / "both")
    both = config_for("smoke", "published", table=read_graphs(tmp_path / "both"))
    assert [graph.to_dict() for graph in both.table[2:]] == [arxiv_config.table[0].to_dict()]
    metrics = run(both).metrics
    assert metrics["accuracy/gcn-28/ogbn-arxiv"].paper == 0.71
    assert metrics["accuracy/fishnets-3/ogbn-arxiv"].paper == 0.7062
    known = {name for name, metric in metrics.items() if metric.paper is not None}
    assert known == {"accuracy/gcn-28/ogbn-arxiv", "accuracy/fishnets-3/ogbn-arxiv"}


def test_protocols_differ_as_they_say(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes: dict[str, tuple[Any, ...]] = {}

    def spy(self: GraphStudy, label: str, make: Any, task: Any, recipe: Any, rates: Any, seeds: Any, **_: Any) -> None:
        recipes[protocol] = (recipe, rates, seeds)

    monkeypatch.setattr(GraphStudy, "runs", spy)
    for protocol in ("clean", "published", "original"):
        paper = config_for("paper", protocol, table=config.table)
        runs_of(paper, study_of(paper, None), "fishnets-3", config.table[0])
        assert json.loads(json.dumps(paper.to_dict()))["table"][1]["num_nodes"] == NODES
    found = {
        protocol: (recipe.epochs, recipe.patience, recipe.every, recipe.clip, rates, len(seeds))
        for protocol, (recipe, rates, seeds) in recipes.items()
    }
    assert found == {
        "clean": (500, 100, 5, 1.0, (1e-3, 1e-2), 5),
        "published": (500, None, 1, None, (1e-2,), 1),
        "original": (500, None, 1, None, (1e-3,), 5),
    }
    for recipe, _, _ in recipes.values():
        assert {recipe.rate(epoch) for epoch in (0, 250, 499)} == {1.0}  # constant


def recorded(result: StudyResult, root: Path) -> Path:
    fields = (versions(), "cpu", result.seconds, result.metrics)
    config = result.config
    path = write_record(Record("arxiv", "smoke", config.protocol, "fishnets", config.to_dict(), [0], *fields), root)
    EXPERIMENTS["arxiv"].draw(result, path.with_suffix(""))
    return path


def test_the_record_has_figures_and_a_page(result: StudyResult, arxiv_config: Config, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = recorded(result, tmp_path)
    assert len(list(path.parent.glob("*.png"))) == 2
    page = arxiv_page(tmp_path)
    for text in ("### dblp", "### cora_ml", "smoke-clean-cpu-curves.png", "smoke-clean-cpu-scores.png", NOT_RUN):
        assert text in page
    for name in MODELS:
        assert page.count(f"| {name} |") == 2
    recorded(run(arxiv_config), tmp_path)
    main(tmp_path)
    page = (path.parent / "README.md").read_text()
    assert "### ogbn-arxiv" in page
    assert "| 0.7062 |" in page
    assert NOT_RUN not in page


def test_missing_data_say_where_they_come_from(tmp_path: Path) -> None:
    source = r"\. Give `--data FOLDER`.*https://ogb\.stanford\.edu .*nodeproppred/arxiv\.zip.*a folder named ogbn_arxiv"
    with pytest.raises(ConfigError, match=f"needs citation graphs, but no folder was given{source}"):
        read_graphs(None)
    given = {tmp_path: f"there are none at {tmp_path}"}
    for missing in (tmp_path / "nowhere", tmp_path / "ogbn_arxiv"):
        given[missing] = f"{missing} does not exist"
    file, other = tmp_path / "sub" / "dblp.npz", tmp_path / "other"
    file.parent.mkdir()
    file.write_bytes(b"")
    (other / "raw").mkdir(parents=True)
    given |= {file: f"{file} is a file, where the folder that holds it was expected"}
    given |= {other: f"{other} is in OGB's layout, but not named ogbn_arxiv"}
    for path, said in given.items():
        with pytest.raises(ConfigError, match=f"needs citation graphs, but {said}{source}"):
            read_graphs(path)


@pytest.mark.parametrize(
    ("labels", "found"), [([[0, 1]] * NODES, r"\(60, 2\), torch.int64"), ([[0.5]] * NODES, r"\(60, 1\), torch.float32")]
)
def test_labels_that_are_no_classes_are_refused(labels: Sequence[Sequence[float]], found: str, tmp_path: Path) -> None:
    folder = arxiv_folder(tmp_path, **{"node-label": labels})
    with pytest.raises(DataError, match=f"6 features of its nodes and labels of shape {found}, but features and one"):
        read_graphs(folder)


def test_unknown_choices_are_refused(config: Config) -> None:
    with pytest.raises(ConfigError, match="expected smoke, quick or paper, and clean, published or original"):
        config_for("paper", "other", table=config.table)
