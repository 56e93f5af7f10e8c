"""Studies of graph networks that are not over: what their finished runs show so far.

A study keeps its runs until all are there (:mod:`fishnets.experiments.parts`), and makes its record then. Until then a
page shows the runs themselves; the same command continues from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fishnets.experiments.graph_study import spread
from fishnets.experiments.records import metric
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.inference.efficiency import mean_with_error

__all__ = ["runs_so_far"]

Runs = dict[tuple[str, float], dict[int, Mapping[str, Any]]]  # of a network at a rate: what the run of a seed measured
HEADER = ("network", "rate", "seeds", "test score", "best validation", "training loss", "epochs to best", "weights")


def runs_so_far(folder: Path) -> list[str]:
    """Lines of a page on the finished runs that an experiment keeps in a folder; none where it keeps none."""
    lines: list[str] = []
    for kept in sorted(folder.glob("checkpoints/*")):
        runs = _read(kept)
        if not runs:
            continue
        rows = []
        for (label, rate), found in sorted(runs.items()):
            measured = [spread(_values(found, name)) for name in ("test", "valid", "loss", "epochs_to_best", "weights")]
            scores = [format_metric(one) for one in measured[:3]]
            counts = [f"{one.value:,.0f}" for one in measured[3:]]
            rows.append([label, f"{rate:g}", f"{len(found)}", *scores, *counts, _ahead(runs, label, rate)])
        lines += [
            f"## Not over: {kept.name}",
            "",
            "Runs that are finished, of which there is no record yet: test score where that of validation data is "
            "best, mean and spread over seeds. A rate with one seed was tried, and is used where its validation score "
            "is the best. Times are measured when all runs are there.",
            "",
            markdown_table([*HEADER, "Fishnets ahead by"], rows),
            "",
        ]
    return lines


def _read(kept: Path) -> Runs:
    runs: Runs = {}
    for path in sorted(kept.glob("*.json")):
        part = json.loads(path.read_text())
        config, found = part["config"], part["metrics"]
        if "recipe" in config and "test" in found:  # a run, and one that did not diverge
            key = config["label"], config["recipe"]["learning_rate"]
            runs.setdefault(key, {})[config["run"]] = found
    return runs


def _values(found: Mapping[int, Mapping[str, Any]], name: str) -> torch.Tensor:
    return torch.tensor([found[seed][name]["value"] for seed in sorted(found)], dtype=torch.float64)


def _ahead(runs: Runs, label: str, rate: float) -> str:
    """How much better Fishnets are with the same seeds, both at the rate that is best on validation data."""
    method, _, condition = label.partition("/")
    fishnets = f"fishnets/{condition}"
    if method == "fishnets" or _used(runs, label) != rate or not any(name == fishnets for name, _ in runs):
        return ""
    ours, theirs = runs[fishnets, _used(runs, fishnets)], runs[label, rate]
    both = set(ours) & set(theirs)
    ahead, behind = (_values({seed: found[seed] for seed in both}, "test") for found in (ours, theirs))
    return format_metric(metric(mean_with_error(ahead - behind))) if len(both) > 1 else ""


def _used(runs: Runs, label: str) -> float:
    """The rate that is best on validation data with the first seed."""
    tried = {rate: found[min(found)]["valid"]["value"] for (name, rate), found in runs.items() if name == label}
    return max(tried, key=lambda rate: float(tried[rate]))
