"""Studies that are not over: a page of the runs there are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.graphs.folders import protein_folder

from fishnets.experiments.graph_study import DIVERGED
from fishnets.experiments.pages import main
from fishnets.experiments.protein_graph import read_graph
from fishnets.experiments.unfinished import runs_so_far
from fishnets.experiments.yeast import config_for, run


def test_finished_runs_are_shown_with_the_difference_over_the_seeds_they_share(tmp_path: Path) -> None:
    config = config_for("smoke", "clean", table=read_graph(protein_folder(tmp_path / "data")))
    config = replace(config, methods=("fishnets", "sum"), conditions=("clean",))
    run(config, tmp_path / "yeast" / "checkpoints" / "smoke-clean-seed0")
    main(tmp_path)
    page = (tmp_path / "yeast" / "README.md").read_text()
    assert "none yet: the study is not over" in page
    rows = {line.split(" ")[1]: line.split(" | ") for line in page.splitlines() if line.startswith("| ")}
    assert rows["fishnets/clean"][1:3] == rows["sum/clean"][1:3] == ["0.01", "2"]
    assert rows["fishnets/clean"][-1] == " |"
    assert "`fishnets reproduce yeast --preset smoke --protocol clean --data " in page
    assert " ± " in rows["sum/clean"][-1]


def test_runs_by_which_rates_were_tried_do_not_stand_for_longer_ones(tmp_path: Path) -> None:
    table = {"name": "made up", "sha256": "0" * 64}
    for epochs, score in ((100, 0.75), (20, 0.5)):
        names = ("test", "valid", "last", "loss", "epochs_to_best", "weights", "on_a_gpu")
        metrics = {name: {"value": score} for name in names}
        config = {"label": "gcn-7", "run": 0, "recipe": {"learning_rate": 0.001, "epochs": epochs}, "table": table}
        config |= {"preset": "paper", "protocol": "clean"}
        path = tmp_path / "checkpoints" / "paper-clean-seed0" / f"gcn-7-0.001-{epochs}-0.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"config": config, "seconds": 1.0, "metrics": metrics}))
    page = "\n".join(runs_so_far(tmp_path))
    assert "| gcn-7 | 0.001 | 1 | 0.7500 |" in page
    assert "| 0 of 1 | 1 | 100 |" in page
    assert "0.5000" not in page
    assert "Fishnets ahead by" not in page


def test_nothing_is_said_where_no_runs_are_kept(tmp_path: Path) -> None:
    assert runs_so_far(tmp_path) == []
    (tmp_path / "checkpoints" / "paper-clean-seed0").mkdir(parents=True)
    assert runs_so_far(tmp_path) == []


def test_runs_of_other_data_are_shown_apart(tmp_path: Path) -> None:
    for name, label, score in (("one", "fishnets/clean", 0.75), ("other", "sum/clean", 0.5)):
        names = ("test", "valid", "last", "loss", "epochs_to_best", "weights", "on_a_gpu", "curve/100/loss")
        config = {"label": label, "recipe": {"learning_rate": 0.001, "epochs": 100}}
        config |= {"preset": "paper", "protocol": "clean", "table": {"name": name, "sha256": "0" * 64}}
        for seed in range(2):
            metrics = {key: {"value": score} for key in names}
            part = {"config": config | {"run": seed}, "seconds": 1.0, "metrics": metrics}
            path = tmp_path / "checkpoints" / "paper-clean-seed0" / f"{label.replace('/', '-')}-{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(part))
    lines = runs_so_far(tmp_path)
    assert [line for line in lines if line.startswith("## ")] == 2 * ["## Not over: paper preset, clean protocol"]
    assert [line.split("`")[1] for line in lines if line.startswith("Finished runs on")] == ["one", "other"]
    assert "Fishnets ahead by" not in "\n".join(lines)
    assert all("| 2 of 2 |" in line for table in lines for line in table.splitlines() if line.startswith("| fishnets"))


def test_rates_that_diverged_are_named(tmp_path: Path) -> None:
    names = ("test", "valid", "last", "loss", "epochs_to_best", "weights", "on_a_gpu")
    for label, rate, metrics in (
        ("fishnets/clean", 0.1, {DIVERGED: {"value": 1.0}}),
        ("sum/clean", 0.1, {DIVERGED: {"value": 1.0}}),
        ("sum/clean", 0.01, {name: {"value": 0.5} for name in names}),
    ):
        config = {"label": label, "run": 0, "recipe": {"learning_rate": rate, "epochs": 9}, "preset": "paper"}
        config |= {"protocol": "clean", "table": {"name": "made up", "sha256": "0" * 64}}
        path = tmp_path / "checkpoints" / "paper-clean-seed0" / f"{label.replace('/', '-')}-{rate}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"config": config, "seconds": 1.0, "metrics": metrics}))
    rows = runs_so_far(tmp_path)[4].splitlines()[2:]
    assert [row.split(" | ")[:4] for row in rows] == [
        ["| fishnets/clean", "0.1", "1", "diverged"],
        ["| sum/clean", "0.01", "1", "0.5000"],
        ["| sum/clean", "0.1", "1", "diverged"],
    ]
    assert len({row.count("|") for row in rows}) == 1
