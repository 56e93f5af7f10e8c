"""What an epoch of training costs on a real protein graph, for every aggregation and backend.

The network is that of ``fishnets reproduce string-yeast --preset paper``: a DeeperGCN of eight layers and 64 channels,
of which only the aggregation changes. Run with ``python benchmarks/yeast_epoch.py --data FOLDER``, a folder in OGB's
layout; ``--device cuda`` measures a GPU.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fishnets.experiments.protein_graph import read_graph
from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.experiments.string_yeast import Config, config_for
from fishnets.graphs import DeeperGCN, FishnetsAggregation
from fishnets.graphs.training import train
from fishnets.inference.efficiency import mean_with_error

RATE = 1e-2
AGGREGATIONS: dict[str, Any] = {
    "fishnets/reference": partial(FishnetsAggregation, backend="reference"),
    "fishnets/separate": partial(FishnetsAggregation, backend="separate"),
    "fishnets/auto": FishnetsAggregation,
    "naive/auto": partial(FishnetsAggregation, form="paper"),
    "softmax": "softmax",
    "sum": "sum",
}


def epochs(config: Config, aggregation: Any, count: int, repeats: int) -> Metric:
    """Milliseconds of an epoch: a mean over repeats of a few epochs, after as many that warm up."""
    torch.manual_seed(0)
    data = config.table.data.to(config.device)
    made = aggregation if isinstance(aggregation, str) else partial(aggregation, num_params=config.num_params)
    widths = (data.x.shape[1], data.edge_attr.shape[1], data.y.shape[1])
    sizes: dict[str, Any] = {"hidden": config.hidden, "num_layers": config.num_layers, "dropout": config.dropout}
    model = DeeperGCN(*widths, aggregation=made, **sizes).to(config.device)
    labels = data.y.float()[data.train_mask]

    def loss(step: int) -> Tensor:
        logits = model(data.x, data.edge_index, data.edge_attr)[data.train_mask]
        return binary_cross_entropy_with_logits(logits, labels)

    taken = []
    for _ in range(repeats + 1):
        if config.device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        train(model, loss, count, RATE)
        if config.device == "cuda":
            torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - began) / count)
    return metric(mean_with_error(torch.tensor(taken[1:], dtype=torch.float64)))


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
    found = {
        f"milliseconds/{name}": epochs(config, aggregation, options.epochs, options.repeats)
        for name, aggregation in AGGREGATIONS.items()
    }
    settings = {"table": config.table.to_dict(), "epochs": options.epochs, "repeats": options.repeats, "rate": RATE}
    network = {name: getattr(config, name) for name in ("hidden", "num_layers", "num_params", "dropout")}
    spent = time.monotonic() - started
    where = (options.device, options.out, options.overwrite)
    path = write_benchmark("yeast-epoch", settings | network, found, spent, *where)
    rows = [[name.removeprefix("milliseconds/"), format_metric(one)] for name, one in found.items()]
    print(markdown_table(["aggregation", "ms per epoch"], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
