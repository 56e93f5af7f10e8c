"""How a graph aggregation should start and what it should pass on, where the right answer is known.

Variants of the Fishnets aggregation on noisy neighbourhoods: forms of the score, log-information silent at first,
active at once or absent, a fixed prior, PyTorch's own initial weights, fewer and more latent parameters. One learning
rate and one seed for all; the quick preset's network and steps.
Run with ``python benchmarks/aggregation_study.py``, about half an hour on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fishnets.experiments.noisy_neighbourhoods import LAWS, config_for, run
from fishnets.experiments.records import Metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.graphs import FishnetsAggregation
from fishnets.graphs.regression import AGGREGATIONS

RATE, ACTIVE = 1e-2, 0.3


def active(made: FishnetsAggregation) -> FishnetsAggregation:
    """Log-information that speaks from the start, at a third of the estimate's weight."""
    p = made.num_params
    torch.nn.init.normal_(made.lin_out.weight[:, p:], std=ACTIVE / p**0.5)
    return made


def absent(made: FishnetsAggregation) -> FishnetsAggregation:
    """Log-information that stays silent."""
    p = made.num_params

    def silence(gradient: Tensor) -> Tensor:
        return torch.cat([gradient[:, :p], torch.zeros_like(gradient[:, p:])], dim=1)

    made.lin_out.weight.register_hook(silence)
    return made


def fixed(made: FishnetsAggregation) -> FishnetsAggregation:
    """A prior that stays worth one message."""
    assert made.log_prior is not None
    made.log_prior.requires_grad_(False)
    return made


def unmatched(made: FishnetsAggregation) -> FishnetsAggregation:
    """PyTorch's initial weights."""
    made.lin_in.reset_parameters()
    made.lin_out.reset_parameters()
    return made


def same(made: FishnetsAggregation) -> FishnetsAggregation:
    """The aggregation as it is made."""
    return made


Change = Callable[[FishnetsAggregation], FishnetsAggregation]
VARIANTS: dict[str, tuple[dict[str, Any], Change]] = {
    "default": ({}, same),
    "location form": ({"form": "location"}, same),
    "paper's form": ({"form": "paper"}, same),
    "log-information active at once": ({}, active),
    "no log-information": ({}, absent),
    "fixed prior": ({}, fixed),
    "unmatched start": ({}, unmatched),
    "2 latent parameters": ({"num_params": 2}, same),
    "8 latent parameters": ({"num_params": 8}, same),
}


def maker(options: dict[str, Any], change: Change) -> Callable[[int, Tensor, int], FishnetsAggregation]:
    """What makes an aggregation for a width, degrees and a number of latent parameters."""

    def make(width: int, degrees: Tensor, num_params: int) -> FishnetsAggregation:
        with torch.no_grad():
            return change(FishnetsAggregation(width, **{"num_params": num_params, **options}))

    return make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    started = time.monotonic()
    AGGREGATIONS.update({name: maker(*variant) for name, variant in VARIANTS.items()})
    base = config_for("quick", "clean", device=options.device)
    config = replace(base, learning_rates=(RATE,), tuning_steps=1, seeds=(0,), methods=tuple(VARIANTS))
    metrics: dict[str, Metric] = {}
    for name in VARIANTS:
        metrics |= run(replace(config, methods=(name,))).metrics
        print(f"{name}: done after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    rows = [[name, *[format_metric(metrics[f"mse_over_bound/{name}/{law}"]) for law in LAWS]] for name in VARIANTS]
    spent, where = time.monotonic() - started, (options.device, options.out, options.overwrite)
    path = write_benchmark("aggregation-study", config.to_dict(), metrics, spent, *where)
    print(markdown_table(["aggregation", *LAWS], rows))
    print(f"Recorded in {path}.", file=sys.stderr)


if __name__ == "__main__":
    main()
