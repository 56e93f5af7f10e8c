"""Studies of proteins: the paper's networks under each protocol, what differs between them, pages and errors."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.graphs.folders import NODES, protein_folder

from fishnets.errors import ConfigError, DataError
from fishnets.experiments import EXPERIMENTS
from fishnets.experiments.graph_pages import proteins_page
from fishnets.experiments.protein_graph import ProteinGraph, read_graph
from fishnets.experiments.proteins import PAPER, STUDIES, config_for, run, task_of
from fishnets.experiments.records import Record, versions, write_record
from fishnets.graphs import PAPER_MODELS


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ProteinGraph:
    return read_graph(protein_folder(tmp_path_factory.mktemp("data")))


@pytest.mark.parametrize("protocol", ["clean", "published", "original"])
@pytest.mark.parametrize("study", ["proteins-focus", "noisy-proteins"])
def test_every_study_runs_and_is_reported(graph: ProteinGraph, study: str, protocol: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    config = config_for("smoke", protocol, table=graph, study=study)
    config = replace(config, models=config.models[-2:])
    result = run(config, tmp_path / "parts")
    for name in config.models:
        score = result.metrics[f"rocauc/{name}"]
        assert 0 <= score.value <= 1
        assert score.paper is None  # which is of another graph
    assert run(config, tmp_path / "parts").metrics == result.metrics
    fields = (versions(), "cpu", result.seconds, result.metrics)
    path = write_record(Record(study, "smoke", protocol, "fishnets", config.to_dict(), [0], *fields), tmp_path)
    EXPERIMENTS[study].draw(result, path.with_suffix(""))
    page = proteins_page(tmp_path, study)
    assert f"{PAPER[config.models[0]]:.4f}" in page
    assert f"smoke-{protocol}-cpu-curves.png" in page
    assert "Tasks that count: 3 (train), 3 (valid), 3 (test)." in page
    assert "Networks are smaller than their names say: num_layers 2, hidden 8." in page
    assert all(f"| {name} |" in page for name in config.models)
    assert ("Rates fall to zero at the last epoch." in page) == (protocol == "clean")
    assert ("Each rate was tried" in page) is False  # there is one


@pytest.mark.parametrize("protocol", ["clean", "published", "original"])
def test_networks_of_table_1_read_the_species(protocol: str, tmp_path: Path) -> None:
    folder = protein_folder(tmp_path)
    species = "".join(f"{9606 + i % 3}\n" for i in range(NODES))
    (folder / "raw" / "node_species.csv.gz").write_bytes(gzip.compress(species.encode()))
    config = config_for("smoke", protocol, table=read_graph(folder), study="proteins")
    assert config.parts == 2
    result = run(replace(config, models=("fishnets-8", "dyresgen-112")))
    assert all(0 <= result.metrics[f"rocauc/{name}"].value <= 1 for name in ("fishnets-8", "dyresgen-112"))


def test_networks_are_those_of_the_paper() -> None:
    for study in STUDIES.values():
        assert set(study) <= set(PAPER_MODELS)
        assert set(study) <= set(PAPER)


def test_the_published_score_is_that_of_the_last_evaluations(graph: ProteinGraph) -> None:
    config = replace(config_for("smoke", "published", table=graph), models=("gcn-small",))
    result = run(config)
    curve = torch.tensor(result.runs["gcn-small"].curve.test, dtype=torch.float64)
    assert result.metrics["rocauc/gcn-small"].value == pytest.approx(float(curve[-10:].mean()))
    careful = run(replace(config, protocol="original"))
    assert careful.metrics["rocauc/gcn-small"].value in careful.runs["gcn-small"].curve.test


def test_protocols_differ_as_they_say(graph: ProteinGraph) -> None:
    paper = {name: config_for("paper", name, table=graph) for name in ("clean", "published", "original")}
    shapes = [(one.parts, one.blocks, len(one.learning_rates)) for one in paper.values()]
    assert shapes == [(10, 1, 3), (40, 5, 1), (10, 5, 1)]
    tasks = {name: task_of(paper["published"], name) for name in ("gcn-28", "fishnets-20", "fishnets-small")}
    assert [task.test_parts for task in tasks.values()] == [5, 10, 5]  # the compared networks see different graphs
    assert task_of(paper["clean"], "fishnets-20").test_parts == 1
    sums = [task_of(paper[name], "gcn-28").graphs["train"].x for name in ("clean", "original")]
    torch.testing.assert_close(sums[0], sums[1].log1p())
    noisy = config_for("paper", "published", table=graph, study="noisy-proteins")
    assert noisy.learning_rates == (1e-4,)
    assert [(one.epochs, one.patience) for one in (paper["published"], noisy)] == [(1_200, 250), (1_000, 250)]
    assert [one.patience for one in (paper["clean"], paper["original"])] == [None, None]
    fields: dict[str, Any] = json.loads(json.dumps(noisy.to_dict()))
    assert fields["study"] == "noisy-proteins"


def test_the_published_noise_is_drawn_anew_in_every_part(graph: ProteinGraph) -> None:
    seen = []

    def model(x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        seen.append((x, edge_attr))
        total = torch.zeros(len(x), 9).index_add(0, edge_index[1], edge_attr)
        torch.testing.assert_close(x, total)  # of the part alone
        return x[:, :3].requires_grad_()

    config = config_for("smoke", "published", table=graph, study="noisy-proteins")
    task = task_of(replace(config, parts=1, blocks=1), "noisy-gcn-28")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        task.evaluate(model)
        task.evaluate(model)
    assert not torch.equal(seen[0][1], seen[1][1])
    trials = 200 * seen[0][1][:, -1]
    assert bool(((trials < 50) | (trials > 169)).all())  # validation nodes too are under the law of tests
    half = len(trials) // 2
    assert bool((trials[:half] < 50).all())
    assert bool((trials[half:] > 169).all())
    assert torch.equal(task.graphs["test"].edge_index, graph.data.edge_index)  # halves of the list as it is stored


def test_the_gap_is_measured_as_published_and_mended(graph: ProteinGraph, tmp_path: Path) -> None:
    config = config_for("smoke", "published", table=graph, study="noisy-proteins")
    result = run(config)
    for what, suffix in (("published", ""), ("mended", "/mended")):
        scores = [result.metrics[f"rocauc/{name}{suffix}"].value for name in config.models]
        assert result.metrics[f"gap/{what}"].value == pytest.approx(scores[0] - scores[1])
    mended = task_of(config, "noisy-fishnets-20/mended")
    assert mended.test_parts == task_of(config, "noisy-gcn-28/mended").test_parts  # the same graphs for both
    seen = mended.draw(0)
    assert not torch.equal(seen.edge_attr, mended.graphs["valid"].edge_attr)
    total = torch.zeros(len(seen.x), 9).index_add(0, seen.edge_index[1], seen.edge_attr)
    torch.testing.assert_close(seen.x, total)
    fields = (versions(), "cpu", result.seconds, result.metrics)
    write_record(Record("noisy-proteins", "smoke", "published", "fishnets", config.to_dict(), [0], *fields), tmp_path)
    assert "Fishnets ahead by: published" in proteins_page(tmp_path, "noisy-proteins")


def test_networks_of_about_the_same_size_are_compared_by_seed(graph: ProteinGraph, tmp_path: Path) -> None:
    config = replace(config_for("smoke", "clean", table=graph, study="noisy-proteins"), seeds=(0, 1), parts=10)
    result = run(config)
    ours, theirs = (result.runs[name].measures for name in config.models)
    parts = {"test": "difference", "valid": "difference_valid", "at_end/10-blocks": "difference_in_parts"}
    for part, what in parts.items():
        ahead = result.metrics[f"{what}/noisy-fishnets-20-noisy-gcn-28"]
        assert ahead.value == pytest.approx(float((ours[part] - theirs[part]).mean()))
        assert ahead.error > 0
    fields = (versions(), "cpu", result.seconds, result.metrics)
    write_record(Record("noisy-proteins", "smoke", "clean", "fishnets", config.to_dict(), [0], *fields), tmp_path)
    assert "| noisy-fishnets-20, of noisy-gcn-28 |" in proteins_page(tmp_path, "noisy-proteins")


def test_dropout_is_active_in_the_first_published_epoch_alone(graph: ProteinGraph) -> None:
    from fishnets.graphs import paper_model

    task = task_of(config_for("smoke", "published", table=graph), "gcn-small")
    with torch.random.fork_rng():
        model = paper_model("gcn-small", num_layers=1, num_outputs=3)
        modes = []
        for epoch in range(2):
            model.train()
            next(iter(task.losses(model, epoch)))
            modes.append(model.training)
    assert modes == [True, False]


def test_the_published_triangle_is_that_of_the_authors_code(graph: ProteinGraph) -> None:
    from fishnets.experiments.proteins import _make_model

    with torch.random.fork_rng():
        for protocol, form in (("published", "legacy"), ("clean", "paper")):
            config = config_for("smoke", protocol, table=graph)
            model = _make_model(config, "fishnets-small", graph.data)
            forms = {module.form for module in model.modules() if hasattr(module, "form")}
            assert forms == {form}
    named = ProteinGraph("ogbn_proteins", graph.sha256, graph.data)
    config = replace(config_for("smoke", "clean", table=named), models=("gcn-small",))
    assert run(config).metrics["rocauc/gcn-small"].paper == PAPER["gcn-small"]


def test_a_hash_covers_the_split(tmp_path: Path) -> None:
    folder = protein_folder(tmp_path)
    before = read_graph(folder).sha256
    valid, test = (folder / "split" / "random" / f"{part}.csv.gz" for part in ("valid", "test"))
    swapped = valid.read_bytes(), test.read_bytes()
    test.write_bytes(swapped[0])
    valid.write_bytes(swapped[1])
    assert read_graph(folder).sha256 != before


def test_species_are_needed_for_table_1(graph: ProteinGraph) -> None:
    with pytest.raises(DataError, match="says nothing about species"):
        run(config_for("smoke", "clean", table=graph, study="proteins"))


def test_missing_data_say_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no folder was given\. ogbn-proteins is at https://ogb\.stanford\.edu"):
        read_graph(None)
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere"):
        read_graph(tmp_path / "nowhere")
    folder = protein_folder(tmp_path)
    path = folder / "raw" / "edge-feat.csv.gz"
    scores = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join(["-0.5,1.5" + 6 * ",0", *scores[1:]]).encode()))
    with pytest.raises(DataError, match=r"have scores between 0 and 1, but have some from -0\.5 to 1\.5\."):
        read_graph(folder)
    with pytest.raises(ConfigError, match="expected smoke, quick or paper, and clean, published or original"):
        config_for("paper", "other", table=None)  # type: ignore[arg-type]


def test_networks_of_table_1_have_the_stated_settings(graph: ProteinGraph) -> None:
    published = config_for("paper", "published", table=graph, study="proteins")
    assert [published.rates(name) for name in ("gcn-112", "fishnets-16")] == [(1e-2,), (5e-3,)]
    assert (published.parts, published.blocks, published.epochs, published.as_the_code) == (10, 5, 1_000, False)
    assert config_for("paper", "clean", table=graph, study="proteins").blocks == 5  # too deep for the whole


@pytest.mark.parametrize("protocol", ["published", "clean"])
def test_networks_are_tested_on_more_and_on_fewer_blocks(graph: ProteinGraph, protocol: str) -> None:
    config = replace(config_for("smoke", protocol, table=graph), models=("gcn-small",))
    seen: list[int] = []

    def model(x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x[:, :3]

    task = task_of(config, "gcn-small")
    assert list(task.at_end(model)) == [f"{blocks}-blocks" for blocks in (40, 10, 5, 1)]
    assert len(seen) == 40 + 10 + 5 + 1
    assert seen[-1] == graph.data.num_nodes
    assert task.test_parts == config.blocks
    metrics = run(config).metrics
    if config.blocks == 1:
        assert metrics["at_end/1-blocks/gcn-small"].value == metrics["rocauc/gcn-small"].value
    assert "at_end/40-blocks/gcn-small" in metrics
    assert "at_end/1-blocks/gcn-small" not in run(replace(config, protocol="original")).metrics


def test_noise_follows_the_laws_it_is_given(graph: ProteinGraph) -> None:
    task = graph.noisy_task(0, 0, "cpu", laws={"train": ((1, 4),), "test": ((4, 5), (8, 10))})
    graphs = {"draw": task.draw(0), "valid": task.graphs["valid"], "test": task.graphs["test"]}
    trials = {name: set((10 * one.edge_attr[:, -1]).round().int().tolist()) for name, one in graphs.items()}
    assert trials == {"draw": {1, 2, 3}, "valid": {1, 2, 3}, "test": {4, 8, 9}}
