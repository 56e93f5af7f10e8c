"""What networks make of the noise on the edges of yeast's proteins.

Networks of ``fishnets reproduce yeast`` under noise, with the first of its learning rates, are tested anew on the test
nodes, with their best weights: on edges as the study measures them (``as-tested``), with the scores that were measured
in place of the counts (``exact-scores``), with as many trials as in training (``training-law``), and with the numbers
of trials exchanged among messages (``exchanged-trials``), which changes nothing where a network does not use them. Of
Fishnets also: the information in messages of 170 trials or more over that in those of less than 50, the mean traces of
their Fisher matrices, layer by layer. It would be 5.3 if only counting were uncertain.

Run with ``python benchmarks/yeast_noise_study.py --data FOLDER --epochs 400``, a quarter of an hour on a core;
with ``--device cuda`` it takes a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.algebra.packing import diagonal_positions
from fishnets.experiments.graph_study import spread
from fishnets.experiments.protein_graph import read_graph
from fishnets.experiments.records import Metric, hardware_name, refuse_overwrite, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.experiments.yeast import Config, config_for, make_model, task_of
from fishnets.graphs import FishnetsAggregation, NodeTask, Recipe, fit
from fishnets.graphs.datasets import sum_of_edges
from fishnets.graphs.noise import LAWS, largest_bound

NAME = "yeast-noise-study"
FEW, MANY = 50, 170  # trials under the law of tests: fewer than these, or at least as many


def variants(config: Config, task: NodeTask) -> dict[str, Any]:
    """Graphs on which test nodes are predicted."""
    tested, trained = task.graphs["test"], task.graphs["valid"]
    exact, exchanged = copy(tested), copy(tested)
    scores, trials = config.table.by_target().data.edge_attr.to(tested.edge_attr), tested.edge_attr[:, -1:]
    exact.edge_attr = torch.cat([scores, trials], dim=1)
    exact.x = sum_of_edges(exact).log1p()
    order = torch.randperm(len(trials), generator=torch.Generator().manual_seed(0)).to(trials.device)
    exchanged.edge_attr = torch.cat([tested.edge_attr[:, :-1], trials[order]], dim=1)
    return {"as-tested": tested, "exact-scores": exact, "training-law": trained, "exchanged-trials": exchanged}


@contextmanager
def messages(model: torch.nn.Module) -> Iterator[list[tuple[FishnetsAggregation, Tensor]]]:
    """Collects what the Fishnets of a network aggregate, layer by layer."""
    found: list[tuple[FishnetsAggregation, Tensor]] = []
    layers = [one for one in model.modules() if isinstance(one, FishnetsAggregation)]
    hooks = [one.register_forward_pre_hook(lambda layer, given: found.append((layer, given[0]))) for one in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def measured(config: Config, method: str, seed: int, recipe: Recipe) -> dict[str, float]:
    """What one network measures after its training."""
    torch.manual_seed(1_000 * config.seed + seed)
    model, task = make_model(config, method, "noisy").to(config.device), task_of(config, "noisy", seed)
    with torch.enable_grad():
        curves = fit(model, task, recipe)
    found = {"valid": curves.at_best("valid"), "epochs_to_best": float(curves.epochs_to_best)}
    for name, graph in variants(config, task).items():
        found[f"rocauc/{name}"] = NodeTask({"train": graph, "valid": graph, "test": graph}).evaluate(model)["test"]
    tested = task.graphs["test"]
    trials = largest_bound(LAWS) * tested.edge_attr[:, -1]
    with messages(model) as layers:
        task.predict(model, tested)
    for number, (layer, x) in enumerate(layers):
        fisher = layer.encode(x)[:, layer.num_params :]
        information = fisher[:, diagonal_positions(layer.num_params, x.device)].sum(1)
        found[f"information/layer-{number}"] = float(
            information[trials >= MANY].mean() / information[trials < FEW].mean()
        )
    return found


def main() -> None:
    """Measures, records and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder in OGB's layout, such as string_yeast")
    parser.add_argument("--methods", nargs="+", default=["fishnets", "sum"])
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    where = (options.device, options.out, options.overwrite)
    refuse_overwrite(Path(options.out) / NAME / f"paper-clean-{hardware_name(options.device)}.json", options.overwrite)
    started = time.monotonic()
    config = config_for("paper", "clean", device=options.device, table=read_graph(options.data))
    rate, warm_up = config.learning_rates[0], options.epochs // 100
    recipe = Recipe(options.epochs, rate, config.patience, config.every, warm_up, replay=options.device == "cuda")
    metrics: dict[str, Metric] = {}
    for method in options.methods:
        runs = [measured(config, method, seed, recipe) for seed in range(options.seeds)]
        for name in runs[0]:
            what, _, more = name.partition("/")
            label = f"{what}/{method}" + (f"/{more}" if more else "")
            metrics[label] = spread(torch.tensor([run[name] for run in runs], dtype=torch.float64))
    settings = {"table": config.table.to_dict(), "recipe": asdict(recipe), "seeds": options.seeds}
    settings |= {name: getattr(config, name) for name in ("hidden", "num_layers", "num_params", "dropout")}
    path = write_benchmark(NAME, settings, metrics, time.monotonic() - started, *where)
    print(markdown_table(["measure", "value"], [[name, format_metric(one)] for name, one in metrics.items()]))
    print(f"Recorded in {path}.")


if __name__ == "__main__":
    main()
