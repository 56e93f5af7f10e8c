"""What aggregations pass on before any training, from degree 1 to 600.

Messages are those of a DeeperGCN layer, half of them shared within a neighbourhood: rectified normals. Reported are the
spread of the outputs over nodes and the size of the gradient that reaches a message times the degree, both over those
of a mean: a layer that starts far from 1, or at a scale that depends on the degree, needs a step of its own.
Run with ``python benchmarks/aggregation_scales.py``.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch_geometric.nn.aggr import Aggregation, MeanAggregation, SoftmaxAggregation, SumAggregation

from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.graphs import FishnetsAggregation
from fishnets.inference.efficiency import mean_with_error

CHANNELS, PARAMS, NODES, DEGREES, DRAWS = 64, 8, 200, (1, 10, 60, 600), 8


def aggregations() -> dict[str, Aggregation]:
    """What is compared, by name, freshly made."""
    return {
        "mean": MeanAggregation(),
        "sum": SumAggregation(),
        "softmax": SoftmaxAggregation(learn=True),
        "paper's form": FishnetsAggregation(CHANNELS, num_params=PARAMS, form="paper"),
        "regression form": FishnetsAggregation(CHANNELS, num_params=PARAMS),
        "location form": FishnetsAggregation(CHANNELS, num_params=PARAMS, form="location"),
    }


def scales(degree: int) -> dict[str, tuple[float, float]]:
    """Spread of the outputs and size of the gradient, by name, for one draw of messages and weights."""
    common, own = torch.randn(NODES, 1, CHANNELS), torch.randn(NODES, degree, CHANNELS)
    messages = (0.5**0.5 * (common + own)).relu().flatten(0, 1)
    index = torch.arange(NODES).repeat_interleave(degree)
    found = {}
    for name, aggregation in aggregations().items():
        x = messages.clone().requires_grad_()
        out = aggregation(x, index, dim_size=NODES)
        out.backward(torch.randn_like(out))
        assert x.grad is not None
        found[name] = (float(out.detach().std(0).square().mean().sqrt()), degree * float(x.grad.square().mean().sqrt()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.monotonic()
    metrics: dict[str, Metric] = {}
    for degree in DEGREES:
        draws = [scales(degree) for _ in range(DRAWS)]
        for name in draws[0]:
            for i, what in enumerate(("spread", "gradient")):
                ratios = [one[name][i] / one["mean"][i] for one in draws]
                measured = mean_with_error(torch.tensor(ratios, dtype=torch.float64))
                metrics[f"{what}/{name}/degree={degree}"] = metric(measured, bound=1.0)
    rows = [
        [what, name, *[format_metric(metrics[f"{what}/{name}/degree={degree}"]) for degree in DEGREES]]
        for what in ("spread", "gradient")
        for name in aggregations()
    ]
    config = {"channels": CHANNELS, "num_params": PARAMS, "nodes": NODES, "degrees": list(DEGREES), "draws": DRAWS}
    spent, where = time.monotonic() - started, ("cpu", options.out, options.overwrite)
    path = write_benchmark("aggregation-scales", config, metrics, spent, *where)
    print(markdown_table(["over a mean's", "aggregation", *[f"degree {degree}" for degree in DEGREES]], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
