"""Cost of the exact posterior of the gamma population against the size of the set, with and without censoring.

Run with ``python benchmarks/exact_posterior.py``; ``--device cuda`` measures a GPU.
"""

from __future__ import annotations

import argparse
import time

import torch

from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import markdown_table
from fishnets.inference.efficiency import mean_with_error
from fishnets.simulators import GammaPopulation

SIZES = (500, 10_000, 100_000)


def seconds(simulator: GammaPopulation, size: int, repeats: int, device: str) -> Metric:
    """Wall time of one posterior, mean over sets of parameters drawn from the prior."""
    generator = torch.Generator(device).manual_seed(0)
    times = []
    for _ in range(repeats):
        theta = simulator.prior.sample(1, generator).to(torch.float32)
        sets = simulator(theta, torch.tensor([size], device=device), generator)
        started = time.perf_counter()
        simulator.posterior(sets).covariance.cpu()
        times.append(time.perf_counter() - started)
    return metric(mean_with_error(torch.tensor(times, dtype=torch.float64)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    started = time.monotonic()
    metrics: dict[str, Metric] = {}
    rows = []
    for name, threshold in (("uncensored", None), ("censored", 25)):
        for size in SIZES:
            found = seconds(GammaPopulation(threshold), size, options.repeats, options.device)
            metrics[f"seconds/{name}/n={size}"] = found
            rows.append([name, f"{size:,}", f"{found.value:.3f} ± {found.error:.3f}"])
    config = {"sizes": list(SIZES), "repeats": options.repeats}
    spent, where = time.monotonic() - started, (options.device, options.out, options.overwrite)
    path = write_benchmark("exact-posterior", config, metrics, spent, *where)
    print(markdown_table(["population", "n", "seconds"], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
