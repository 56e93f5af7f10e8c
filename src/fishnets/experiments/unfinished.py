"""Studies of graph networks that are not over: what their finished runs show so far.

A study keeps its runs until all are there (:mod:`fishnets.experiments.parts`), and makes its record then. Until then a
page shows the runs themselves; the same command continues from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.experiments.graph_study import CURVE, DIVERGED, ON_A_GPU, spread
from fishnets.experiments.parts import read_part
from fishnets.experiments.records import metric
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.inference.efficiency import mean_with_error

__all__ = ["runs_so_far"]

Part = Mapping[str, Any]
Runs = dict[tuple[str, float], dict[int, Part]]  # of a network at a rate: the run of a seed
SCORES = {"test": "test score", "valid": "best validation", "last": "last ten evaluations", "loss": "training loss"}
COUNTS = {"epochs_to_best": "epochs to best", "weights": "weights"}
FIRST = "validation, first seed"
AHEAD = "Fishnets ahead by"
OF_A_RUN = ("label", "recipe", "run")  # what differs between runs of a study


def runs_so_far(folder: Path) -> list[str]:
    """Lines of a page on the finished runs that an experiment keeps in a folder; none where it keeps none."""
    lines: list[str] = []
    studies: dict[str, list[Part]] = {}
    for path in sorted(folder.glob("checkpoints/*/*.json")):
        part = read_part(path)
        if "recipe" in part["config"]:  # else a time
            shared = {name: value for name, value in part["config"].items() if name not in OF_A_RUN}
            studies.setdefault(json.dumps(shared, sort_keys=True), []).append(part)
    for key, parts in studies.items():
        config, runs = json.loads(key), _runs(parts)
        rows = [_row(runs, label, rate) for label, rate in sorted(runs)]
        header = ["network", "rate", "seeds", *SCORES.values(), FIRST, *COUNTS.values()]
        header += ["to the last epoch", "on a GPU", "epochs", AHEAD]
        paired = any(row[-1] for row in rows)
        lines += [
            f"## Not over: {config['preset']} preset, {config['protocol']} protocol",
            "",
            f"Finished runs on {_data(config['table'])}, of which there is no record yet. Test score where that of "
            "validation data is best, and the mean over the last ten evaluations; means and spreads over seeds, "
            "differences with the error of their mean. Of several rates, the one that is best on validation data with "
            "the first seed is used with the others. Runs that went on to the last epoch they were allowed, in the "
            "column `epochs`, may not have converged. Times are measured when all runs are there. What is missing is "
            f"run, and the record made, by `{_command(folder, config)}`.",
            "",
            markdown_table(header if paired else header[:-1], [row if paired else row[:-1] for row in rows]),
            "",
        ]
    return lines


def _row(runs: Runs, label: str, rate: float) -> list[str]:
    """What the runs of a network at a rate measured, in the order of the header."""
    found = runs[label, rate]
    epochs = ", ".join(map(str, sorted({part["config"]["recipe"]["epochs"] for part in found.values()})))
    start = [label, f"{rate:g}", f"{len(found)}"]
    if any(DIVERGED in part["metrics"] for part in found.values()):
        return [*start, DIVERGED, *[""] * (len(SCORES) + len(COUNTS) + 2), epochs, ""]
    cells = [_score(_values(found, name)) for name in SCORES]
    cells.append(f"{float(_values(found, 'valid')[0]):.4f}")
    cells += [f"{_values(found, name).mean():,.0f}" for name in COUNTS]
    cells += [f"{sum(map(_to_the_end, found.values()))} of {len(found)}", f"{_values(found, ON_A_GPU).sum():.0f}"]
    return [*start, *cells, epochs, _ahead(runs, label, rate)]


def _runs(parts: Sequence[Part]) -> Runs:
    """All runs at full length; shorter ones, by which rates were tried, are left out where there are longer ones."""
    runs: Runs = {}
    for part in parts:
        config = part["config"]
        found = runs.setdefault((config["label"], config["recipe"]["learning_rate"]), {})
        known = found.get(config["run"])
        if known is None or known["config"]["recipe"]["epochs"] < config["recipe"]["epochs"]:
            found[config["run"]] = part
    return runs


def _to_the_end(part: Part) -> bool:
    """Whether a run went on to the last epoch it was allowed."""
    return f"{CURVE}{part['config']['recipe']['epochs']}/loss" in part["metrics"]


def _data(table: Any) -> str:
    tables = table if isinstance(table, list) else [table]
    return ", ".join(f"`{one['name']}` (SHA-256 `{one['sha256'][:12]}…`)" for one in tables)


def _command(folder: Path, config: Mapping[str, Any]) -> str:
    """What continues a study."""
    table, seed = config["table"], config.get("seed", 0)
    options = {name: config[name] for name in ("preset", "protocol")}
    options |= {"data": "FOLDER" if isinstance(table, list) else table["name"]} | ({"seed": seed} if seed else {})
    return " ".join(["fishnets reproduce", folder.name, *(f"--{name} {value}" for name, value in options.items())])


def _values(found: Mapping[int, Part], name: str) -> Tensor:
    return torch.tensor([found[seed]["metrics"][name]["value"] for seed in sorted(found)], dtype=torch.float64)


def _score(values: Tensor) -> str:
    return format_metric(spread(values)) if len(values) > 1 else f"{float(values):.4f}"


def _ahead(runs: Runs, label: str, rate: float) -> str:
    """How much better Fishnets are with the same seeds, both at the rate that is best on validation data."""
    method, _, condition = label.partition("/")
    used = _used(runs, f"fishnets/{condition}")
    if method == "fishnets" or used is None or _used(runs, label) != rate:
        return ""
    ours, theirs = runs[f"fishnets/{condition}", used], runs[label, rate]
    both = set(ours) & set(theirs)
    ahead, behind = (_values({seed: found[seed] for seed in both}, "test") for found in (ours, theirs))
    return format_metric(metric(mean_with_error(ahead - behind))) if len(both) > 1 else ""


def _used(runs: Runs, label: str) -> float | None:
    """The rate that is best on validation data with the first seed; None where there is no run that ended well."""
    tried = {
        rate: float(_values(found, "valid")[0])
        for (name, rate), found in runs.items()
        if name == label and not any(DIVERGED in part["metrics"] for part in found.values())
    }
    return max(tried, key=lambda rate: tried[rate], default=None)
