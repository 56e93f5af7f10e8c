"""What an epoch of training costs on a real protein graph, for every aggregation and backend.

The network is a DeeperGCN of eight layers and 64 channels, of which only the aggregation changes, trained by
``fishnets.graphs.fit`` on the whole graph; on a GPU also with updates replayed as CUDA graphs. Run with
``python benchmarks/yeast_epoch.py --data FOLDER``, a folder in OGB's layout; ``--device cuda`` measures a GPU.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch_geometric.nn.aggr import SoftmaxAggregation

from fishnets.experiments.protein_graph import read_graph
from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.experiments.yeast import Config, config_for, task_of
from fishnets.graphs import DeeperGCN, FishnetsAggregation, Recipe, fit
from fishnets.inference.efficiency import mean_with_error

AGGREGATIONS: dict[str, Any] = {
    "fishnets/reference": partial(FishnetsAggregation, backend="reference"),
    "fishnets/separate": partial(FishnetsAggregation, backend="separate"),
    "fishnets/auto": FishnetsAggregation,
    "paper/auto": partial(FishnetsAggregation, form="paper"),
    "softmax": "softmax",
    "softmax/pyg": lambda width: SoftmaxAggregation(learn=True),
    "mean": "mean",
    "sum": "sum",
}
REPLAYED = ("fishnets/auto", "paper/auto", "softmax", "softmax/pyg", "mean", "sum")


def epochs(config: Config, aggregation: Any, count: int, repeats: int, replay: bool) -> Metric:
    """Milliseconds of an epoch: a mean over repeats of a few epochs, each after as many that warm up."""
    torch.manual_seed(0)
    task, data = task_of(config, "clean", 0), config.table.data
    made = aggregation
    if isinstance(aggregation, partial) or aggregation is FishnetsAggregation:
        made = partial(aggregation, num_params=config.num_params)
    widths = (data.x.shape[1], data.edge_attr.shape[1], data.y.shape[1])
    sizes: dict[str, Any] = {"hidden": config.hidden, "num_layers": config.num_layers, "dropout": config.dropout}
    model = DeeperGCN(*widths, aggregation=made, **sizes).to(config.device)
    recipe = Recipe(2 * count, config.learning_rates[0], every=count, replay=replay)
    taken = [1e3 * fit(model, task, recipe).seconds_per_later_epoch for _ in range(repeats)]
    return metric(mean_with_error(torch.tensor(taken, dtype=torch.float64)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    started = time.monotonic()
    config = config_for("paper", "clean", device=options.device, table=read_graph(options.data))
    measured = partial(epochs, config, count=options.epochs, repeats=options.repeats)
    found = {f"milliseconds/{name}": measured(one, replay=False) for name, one in AGGREGATIONS.items()}
    if options.device == "cuda":
        found |= {f"milliseconds/{name}/replayed": measured(AGGREGATIONS[name], replay=True) for name in REPLAYED}
    settings = {"table": config.table.to_dict(), "epochs": options.epochs, "repeats": options.repeats}
    network = {name: getattr(config, name) for name in ("hidden", "num_layers", "num_params", "dropout")}
    spent = time.monotonic() - started
    where = (options.device, options.out, options.overwrite)
    path = write_benchmark("yeast-epoch", settings | network, found, spent, *where)
    rows = [[name.removeprefix("milliseconds/"), format_metric(one)] for name, one in found.items()]
    print(markdown_table(["aggregation", "ms per epoch"], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
