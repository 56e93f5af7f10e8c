"""Networks trained on parts of a graph, tested on more of it: what growing neighbourhoods do to aggregations.

The small networks of ``fishnets reproduce proteins-focus``, trained as its protocol *clean* does, but at one learning
rate: on 10 random parts, or (``/mixed``) on another number of them in each epoch, 1 to 40, drawn log-uniformly, so that
nodes are seen with few neighbours and with all. Fishnets also in our own form (``/regression``). The weights that are
best on validation nodes, predicted on the whole graph, are tested on 40, 10 and 5 random blocks and on the whole: the
nodes of a block have one fortieth, a tenth and a fifth of their neighbours.

Run with ``python benchmarks/parts_study.py --data FOLDER``, half an hour on a core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.experiments.graph_study import spread
from fishnets.experiments.protein_graph import read_graph
from fishnets.experiments.proteins import SWEEP, Config, config_for, task_of
from fishnets.experiments.records import Metric, hardware_name, refuse_overwrite, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.graphs import FishnetsAggregation, Recipe, fit, paper_model
from fishnets.ops.allocation import keep_freed_memory

NAME = "parts-study"
NETWORKS = (  # that of our own form has more weights: it passes log-information on
    "fishnets-small",
    "fishnets-small/regression",
    "fishnets-small/mixed",
    "gcn-small",
    "gcn-small/mixed",
)


class Mixed:
    """A task whose graph has another number of parts in each epoch."""

    def __init__(self, task: Any, largest: int) -> None:
        self.task, self.largest = task, largest

    def losses(self, model: Any, epoch: int) -> Iterator[Tensor]:
        """Losses of an epoch."""
        drawn = torch.rand((), generator=torch.Generator().manual_seed(1_000_003 * self.task.seed + epoch))
        self.task.parts = round(self.largest ** float(drawn))
        yield from self.task.losses(model, epoch)

    def evaluate(self, model: Any) -> Mapping[str, float]:
        """Scores, as those of the task."""
        found: Mapping[str, float] = self.task.evaluate(model)
        return found


def scores(config: Config, name: str, seed: int, recipe: Recipe) -> dict[str, float]:
    """Validation score, and test scores by the number of blocks, of one run."""
    network, _, variant = name.partition("/")
    changes: dict[str, Any] = {"num_outputs": config.table.data.y.shape[1]}
    if variant == "regression":
        changes["aggregation"] = partial(FishnetsAggregation, num_params=8)
    torch.manual_seed(1_000 * config.seed + seed)
    model, task = paper_model(network, **changes).to(config.device), task_of(config, network, seed)
    curves = fit(model, Mixed(task, SWEEP[0]) if variant == "mixed" else task, recipe)
    found = {"valid": curves.at_best("valid"), "loss": curves.loss[curves.best], **task.at_end(model)}
    print(name, seed, {what: round(value, 4) for what, value in found.items()}, flush=True)
    return found | {"weights": float(sum(weight.numel() for weight in model.parameters()))}


def main() -> None:
    """Measures, records and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder in OGB's layout, such as string_yeast")
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    where = (options.device, options.out, options.overwrite)
    refuse_overwrite(Path(options.out) / NAME / f"paper-clean-{hardware_name(options.device)}.json", options.overwrite)
    keep_freed_memory()
    started = time.monotonic()
    config = config_for("paper", "clean", device=options.device, table=read_graph(options.data))
    config = replace(config, epochs=options.epochs, learning_rates=(options.rate,), seeds=tuple(range(options.seeds)))
    recipe = Recipe(options.epochs, options.rate, every=config.every, warm_up=options.epochs // 50, decay=True)
    metrics: dict[str, Metric] = {}
    rows = []
    for name in options.networks:
        runs = [scores(config, name, seed, recipe) for seed in config.seeds]
        for what in runs[0]:
            metrics[f"{what}/{name}"] = spread(torch.tensor([run[what] for run in runs], dtype=torch.float64))
        shown = ["valid", *(f"{blocks}-blocks" for blocks in SWEEP)]
        rows.append([name, *(format_metric(metrics[f"{what}/{name}"]) for what in shown)])
    settings = config.to_dict() | {"models": options.networks, "recipe": asdict(recipe)}
    path = write_benchmark(NAME, settings, metrics, time.monotonic() - started, *where)
    print(markdown_table(["network", "validation", *(f"{blocks} blocks" for blocks in SWEEP)], rows))
    print(f"Recorded in {path}.")


if __name__ == "__main__":
    main()
