"""What Hamiltonian Monte Carlo costs on the gamma population, as the set grows, up to where it stops being practical.

Sets of n members at (mu, Theta) = (5.1, 0.82) have posteriors of n + 2 dimensions. Sizes are tried in turn until a run
takes longer than the limit; that run is recorded too. ``seconds`` includes compiling, as a user waits for it; effective
draws are those of the worse parameter; the exponent is that of the sampling time of a thousand effective draws, over
sizes of 500 and more. An error is the standard error over repeats with other data, zero where there is one run only.
Run with ``python benchmarks/hmc_cost.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version

import numpy as np

from fishnets.experiments.records import Metric, Record, hardware_name, versions, write_record
from fishnets.experiments.report import markdown_table
from fishnets.inference.hmc import Chains, gamma_population_model, hmc

TRUTH = (5.1, 0.82)
AMPLITUDE = 500.0
PAPER_SIZE = 10_000  # the size the paper calls intractable for HMC


def run(size: int, seed: int, options: argparse.Namespace) -> tuple[Chains, float]:
    """Chains for one set of data, and the time all of it took."""
    rng = np.random.default_rng([seed, size])
    mu, scale = TRUTH
    gamma = rng.gamma(mu / scale, scale, size)
    tau = rng.uniform(0, 10, size)
    s = rng.poisson(AMPLITUDE * np.exp(-tau / gamma))
    started = time.perf_counter()
    model = gamma_population_model(tau, s, amplitude=AMPLITUDE)
    chains = hmc(model, options.warmup, options.samples, options.chains, seed, progress=False)
    return chains, time.perf_counter() - started


def averaged(values: Sequence[float]) -> Metric:
    """Mean and standard error over repeats; the error of a single run is unknown and given as zero."""
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else 0.0
    return Metric(float(array.mean()), error)


def power_law(costs: dict[int, float]) -> tuple[Metric, Metric]:
    """Exponent of the cost in n, and the cost at the paper's size, from three sizes or more."""
    x, y = np.log(list(costs)), np.log(list(costs.values()))
    exponent, constant = np.polyfit(x, y, 1)
    residual = y - exponent * x - constant
    noise = float((residual**2).sum()) / (len(x) - 2)  # variance of a log-cost about the line
    spread = math.sqrt(noise / float(((x - x.mean()) ** 2).sum()))
    away = math.log(PAPER_SIZE) - float(x.mean())
    cost = float(np.exp(constant + exponent * math.log(PAPER_SIZE)))
    return Metric(float(exponent), spread), Metric(cost, cost * math.hypot(spread * away, math.sqrt(noise / len(x))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=default, help="set sizes, tried in this order")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which no larger set is tried")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    started = time.monotonic()
    metrics: dict[str, Metric] = {}
    costs: dict[int, float] = {}
    rows = []
    for size in sorted(options.sizes):
        runs = [run(size, seed, options) for seed in range(options.repeats)]
        draws = [min(chains.ess.values()) for chains, _ in runs]
        found = {
            "seconds": averaged([seconds for _, seconds in runs]),
            "sampling-seconds-per-1000-draws": averaged(
                [1000 * chains.sampling_seconds / n for n, (chains, _) in zip(draws, runs, strict=True)]
            ),
            "ess": averaged(draws),
            "ess_per_second": averaged([n / seconds for n, (_, seconds) in zip(draws, runs, strict=True)]),
            "gradients-per-draw": averaged(
                [chains.num_steps / (options.chains * options.samples) for chains, _ in runs]
            ),
            "rhat": averaged([max(chains.rhat.values()) for chains, _ in runs]),
            "divergences": averaged([chains.divergences for chains, _ in runs]),
        }
        metrics |= {f"{name}/n={size}": value for name, value in found.items()}
        costs[size] = found["sampling-seconds-per-1000-draws"].value
        rows.append([f"{size:,}", *(f"{value.value:.4g}" for value in found.values())])
        print(rows[-1], file=sys.stderr, flush=True)
        if found["seconds"].value > options.limit:
            break
    large = {size: cost for size, cost in costs.items() if size >= 500}  # smaller ones are mostly compiling
    if len(large) > 2:
        metrics["exponent"], extrapolated = power_law(large)
        if PAPER_SIZE not in costs:
            metrics[f"sampling-seconds-per-1000-draws-extrapolated/n={PAPER_SIZE}"] = extrapolated
    record = Record(
        name="hmc-cost",
        preset="paper" if tuple(options.sizes) == default else "quick",
        protocol="clean",
        command="python " + " ".join(sys.argv),
        config=vars(options) | {"truth": TRUTH, "sizes_run": sorted(costs)},
        seeds=list(range(options.repeats)),
        versions=versions() | {name: version(name) for name in ("numpyro", "jax")},
        hardware=hardware_name("cpu"),
        seconds=time.monotonic() - started,
        metrics=metrics,
    )
    path = write_record(record, options.out, options.overwrite)
    names = ["seconds", "sampling 1000 effective draws", "effective draws", "a second", "gradients a draw", "R-hat"]
    print(markdown_table(["n", *names, "divergences"], rows))
    if "exponent" in metrics:
        print(f"the sampling time of an effective draw grows as n^{metrics['exponent'].value:.2f}")
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
