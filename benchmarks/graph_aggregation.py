"""Cost of aggregations on a random graph: per edge, per node, and beside those of PyTorch Geometric.

Where a message depends on its source alone, information can be computed once per node and summed by a sparse product.
Run with ``python benchmarks/graph_aggregation.py``; ``--device cuda`` measures a GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.aggr import MeanAggregation, SoftmaxAggregation

from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import markdown_table
from fishnets.graphs import FishnetsAggregation, FishnetsConv
from fishnets.inference.efficiency import mean_with_error

NODES, EDGES, CHANNELS, PARAMS = 10_000, 150_000, 128, 9


def ways(device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """What is timed, by name: node features (N, C) to aggregated ones."""
    generator = torch.Generator(device).manual_seed(0)
    edges = torch.randint(NODES, (2, EDGES), generator=generator, device=device)
    ordered = EdgeIndex(edges, sparse_size=(NODES, NODES)).sort_by("col").values
    source, target = edges
    conv = FishnetsConv(CHANNELS, CHANNELS, PARAMS).to(device)
    paper = FishnetsAggregation(CHANNELS, num_params=PARAMS, form="paper").to(device)
    mean, softmax = MeanAggregation(), SoftmaxAggregation(learn=True).to(device)
    return {
        "mean": lambda x: mean(x[source], target, dim_size=NODES),
        "softmax": lambda x: softmax(x[source], target, dim_size=NODES),
        "paper's form, per edge": lambda x: paper(x[source], target, dim_size=NODES),
        "regression form, per edge": lambda x: conv.information(x[source], target, dim_size=NODES),
        "regression form, per node": lambda x: conv(x, edges),
        "regression form, sparse product": lambda x: conv(x, ordered),
    }


def timed(way: Callable[[Tensor], Tensor], x: Tensor, repeats: int) -> tuple[Metric, Metric]:
    """Milliseconds of a pass forward, and of one forward and back."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats + 1):
        for backward in found:
            _wait(x)
            began = time.perf_counter()
            out = way(x)
            if backward:
                out.sum().backward()
            _wait(x)
            found[backward].append(1e3 * (time.perf_counter() - began))
    first, second = (metric(mean_with_error(torch.tensor(found[key][1:], dtype=torch.float64))) for key in found)
    return first, second


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.monotonic()
    x = torch.randn(NODES, CHANNELS, device=options.device, requires_grad=True)
    metrics: dict[str, Metric] = {}
    rows = []
    for name, way in ways(options.device).items():
        forward, both = timed(way, x, options.repeats)
        metrics[f"milliseconds/forward/{name}"], metrics[f"milliseconds/forward-backward/{name}"] = forward, both
        rows.append([name, *[f"{one.value:.1f} ± {one.error:.1f}" for one in (forward, both)]])
    config = {"nodes": NODES, "edges": EDGES, "channels": CHANNELS, "num_params": PARAMS, "repeats": options.repeats}
    spent, where = time.monotonic() - started, (options.device, options.out, options.overwrite)
    path = write_benchmark("graph-aggregation", config, metrics, spent, *where)
    print(markdown_table(["aggregation", "forward, ms", "forward and back, ms"], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
