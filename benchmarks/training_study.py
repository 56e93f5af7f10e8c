"""How to train local networks: what sizes, widths, batches and rates do to the score they learn.

On the gamma population, at sixteen fixed parameters, the learned score t of single data is compared with the exact
score s of the same data. The information it keeps, A^T V^-1 A with A = Cov(t, s) and V = Cov(t), is what a centred
estimate is left with in large sets whatever the bias; its share of the exact Fisher matrix is p over the trace of
F (A^T V^-1 A)^-1.
The bias b = E[t] matters without centring: 1 / (b^T V^-1 b / p) is the set size at which it equals the noise.

Run with ``python benchmarks/training_study.py``; ``--device cuda --scale 8`` trains eight times as many steps on a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

import fishnets as fn
from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import markdown_table
from fishnets.experiments.saturation import fixed_parameters
from fishnets.inference.efficiency import mean_with_error
from fishnets.sets import objective
from fishnets.sets.compression import Compressor

POOL = 40_000  # data at each parameter
SIMULATOR = fn.simulators.GammaPopulation(None, "log")


@dataclass(frozen=True)
class Variant:
    """One way to train; the defaults are the library's."""

    label: str
    width: int = 16
    depth: int = 2
    members: int = 1
    size: tuple[int, int] = (5, 100)
    steps: int = 3_000
    batch_data: int = 3_200
    learning_rate: float = 5e-3
    widest: float = objective.WIDEST
    clip: float | None = None
    body: str = "gated"


BASE = Variant("default")
VARIANTS = (
    BASE,
    replace(BASE, label="points within 0.1", widest=0.1),
    replace(BASE, label="points within 0.2", widest=0.2),
    replace(BASE, label="points within 0.6", widest=0.6),
    replace(BASE, label="sets of 1 to 10", size=(1, 10)),
    replace(BASE, label="sets of 10 to 1,000", size=(10, 1_000)),
    replace(BASE, label="sets of 500", size=(500, 500)),
    replace(BASE, label="rate 0.002", learning_rate=2e-3),
    replace(BASE, label="rate 0.0125", learning_rate=1.25e-2),
    replace(BASE, label="clipped at 1", clip=1.0),
    replace(BASE, label="batch of 800, 4 x steps", batch_data=800, steps=12_000),
    replace(BASE, label="batch of 12,800, steps / 4", batch_data=12_800, steps=750),
    replace(BASE, label="4 x steps", steps=12_000),
    replace(BASE, label="4 members of width 8", width=8, members=4),
    replace(BASE, label="width 32", width=32),
    replace(BASE, label="width 32, depth 3", width=32, depth=3),
    replace(BASE, label="perceptron of width 64", body="mlp", width=64, depth=3),
)


def exact_pool(device: str) -> list[tuple[Tensor, fn.Sets, Tensor]]:
    """Parameters (2,), data drawn at them, and their exact scores (N, 2)."""
    found = []
    for i, theta in enumerate(fixed_parameters(SIMULATOR).to(device)):
        generator = torch.Generator(device).manual_seed(5_000_000 + i)
        sets = SIMULATOR(theta.float().unsqueeze(0), torch.tensor([POOL], device=device), generator)
        found.append((theta, sets, SIMULATOR.per_datum(sets.values, theta)[1]))
    return found


def trained(variant: Variant, device: str, scale: float) -> tuple[fn.Fishnet, fn.History]:
    """A model trained the variant's way; the widest point is a constant of the library, changed for the while."""
    body: fn.networks.NetworkRecipe = fn.networks.Gated(variant.width, variant.depth)
    if variant.body == "mlp":
        body = fn.networks.MLP(variant.width, variant.depth, "swish")
    model = fn.Fishnet(SIMULATOR.num_features, SIMULATOR.prior, body, variant.members, shared=True, refine=True)
    before, objective.WIDEST = objective.WIDEST, variant.widest
    try:
        history = model.fit(
            SIMULATOR,
            size=variant.size,
            steps=round(scale * variant.steps),
            batch_data=max(variant.batch_data, variant.size[1]),
            learning_rate=variant.learning_rate,
            clip=variant.clip,
            device=device,
            progress=False,
        )
    finally:
        objective.WIDEST = before
    return model, history


def measured(model: fn.Fishnet, pool: list[tuple[Tensor, fn.Sets, Tensor]]) -> tuple[Tensor, Tensor]:
    """Share of the information kept, and squared bias in units of the score's variance, at each parameter (16,)."""
    shares, biases = [], []
    for theta, sets, exact in pool:
        score = Compressor(model, 2**18, "input").row_scores(sets, theta)
        p, joint = score.shape[1], torch.cov(torch.cat([score, exact], dim=1).mT)
        spread, slope, fisher = joint[:p, :p], joint[:p, p:], joint[p:, p:]
        kept = slope.mT @ torch.linalg.solve(spread, slope)
        shares.append(p / torch.trace(torch.linalg.solve(kept, fisher)))
        mean = score.mean(0)
        biases.append(mean @ torch.linalg.solve(spread, mean) / p - 1 / len(score))
    return torch.stack(shares).cpu(), torch.stack(biases).cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many steps")
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    started, pool = time.monotonic(), exact_pool(options.device)
    metrics: dict[str, Metric] = {}
    rows = []
    for variant in VARIANTS:
        model, history = trained(variant, options.device, options.scale)
        shares, biases = measured(model, pool)
        kept, worst = metric(mean_with_error(shares), bound=1.0), float(shares.min())
        harmless = 1 / max(float(biases.mean()), 1 / POOL)
        metrics[f"information/{variant.label}"] = kept
        metrics[f"information-worst/{variant.label}"] = Metric(worst, 0.0, bound=1.0)
        metrics[f"bias-is-noise-at/{variant.label}"] = Metric(harmless, 0.0)
        metrics[f"seconds/{variant.label}"] = Metric(history.seconds, 0.0)
        row = [variant.label, f"{model.num_weights:,}", f"{kept.value:.4f} ± {kept.error:.4f}", f"{worst:.3f}"]
        rows.append([*row, f"{harmless:,.0f}", f"{history.seconds:.0f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    config = {"variants": [asdict(v) for v in VARIANTS], "pool": POOL, "scale": options.scale}
    spent, where = time.monotonic() - started, (options.device, options.out, options.overwrite)
    path = write_benchmark("training-study", config, metrics, spent, *where)
    header = ["training", "weights", "information kept", "worst", "bias is noise at n", "seconds"]
    print(markdown_table(header, rows))
    print(f"Recorded in {path}.", file=sys.stderr)


if __name__ == "__main__":
    main()
