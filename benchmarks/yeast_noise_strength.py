"""Does it pay to know what an edge is worth, where noise on yeast's edges is strong?

Networks of ``fishnets reproduce yeast`` under noise, with the paper's numbers of trials and with a fraction of them:
divided by 20, edges are measured 1 to 9 times in training. They are trained as ``fishnets reproduce noisy-proteins``
does under its protocol *clean*, on 10 random parts, but in 150 epochs, and all at one learning rate, which is tuned for
none of them: this asks how the order of the aggregations changes with the noise, not how good each could be. Scores are
of test nodes where validation nodes are best, differences between runs with the same seeds.
``noise/edges/<law>/<divided by>`` is the variance of noise over that of scores on edges.

Run with ``python benchmarks/yeast_noise_strength.py --data FOLDER``, an hour on a core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

import torch

from fishnets.experiments.graph_study import spread
from fishnets.experiments.protein_graph import read_graph
from fishnets.experiments.records import Metric, hardware_name, metric, refuse_overwrite, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.experiments.yeast import Config, config_for, make_model, noise_shares
from fishnets.graphs import Recipe, fit
from fishnets.graphs.noise import LAWS, Laws
from fishnets.inference.efficiency import mean_with_error
from fishnets.ops.allocation import keep_freed_memory

NAME = "yeast-noise-strength"
PARTS = 10


def divided(by: int) -> Laws:
    """The paper's laws with as many times fewer trials, at least one."""
    return {
        law: [(max(1, low // by), max(2, -(-high // by))) for low, high in ranges] for law, ranges in LAWS.items()
    }


def scores(config: Config, method: str, by: int, seed: int, recipe: Recipe) -> tuple[float, float]:
    """Validation and test ROC-AUC of one run."""
    torch.manual_seed(1_000 * config.seed + seed)
    model = make_model(config, method, "noisy").to(config.device)
    task = config.table.noisy_task(config.seed, seed, config.device, laws=divided(by), parts=PARTS)
    curves = fit(model, task, recipe)
    print(method, by, seed, f"{curves.at_best('valid'):.4f}", f"{curves.at_best('test'):.4f}", flush=True)
    return curves.at_best("valid"), curves.at_best("test")


def main() -> None:
    """Measures, records and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder in OGB's layout, such as string_yeast")
    parser.add_argument("--methods", nargs="+", default=["fishnets", "sum", "softmax", "mean"])
    parser.add_argument("--divided-by", nargs="+", type=int, default=[1, 20])
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--rate", type=float, default=2e-3)
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
    recipe = Recipe(options.epochs, options.rate, every=10, warm_up=options.epochs // 50, decay=True)
    metrics: dict[str, Metric] = {}
    for by in options.divided_by:
        metrics |= {f"{name}/{by}": share for name, share in noise_shares(config, divided(by)).items()}
        runs = {}
        for method in options.methods:
            found = [scores(config, method, by, seed, recipe) for seed in range(options.seeds)]
            valid, runs[method] = torch.tensor(found, dtype=torch.float64).T
            metrics[f"rocauc/{method}/{by}"], metrics[f"valid/{method}/{by}"] = spread(runs[method]), spread(valid)
        for method in [one for one in options.methods[1:] if options.seeds > 1]:
            ahead = mean_with_error(runs[options.methods[0]] - runs[method])
            metrics[f"difference/{options.methods[0]}-{method}/{by}"] = metric(ahead)
    settings = {"table": config.table.to_dict(), "recipe": asdict(recipe), "parts": PARTS, "seeds": options.seeds}
    settings |= {"laws": {by: divided(by) for by in options.divided_by}}
    settings |= {name: getattr(config, name) for name in ("hidden", "num_layers", "num_params", "dropout")}
    path = write_benchmark(NAME, settings, metrics, time.monotonic() - started, *where)
    print(markdown_table(["measure", "value"], [[name, format_metric(one)] for name, one in metrics.items()]))
    print(f"Recorded in {path}.")


if __name__ == "__main__":
    main()
