"""Training throughput: member-data per second of whole training steps, beside the device's matrix rate.

A datum seen by one member of an ensemble counts one. Forward, backward, optimiser and drawing of the batch are in it.
Run with ``python benchmarks/training_throughput.py`` on a GPU; with ``--device cpu`` the numbers are small and honest.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

import torch

from fishnets.experiments import candidates, linear_scaling
from fishnets.experiments.records import Metric, metric, write_benchmark
from fishnets.experiments.report import markdown_table
from fishnets.inference import Measured


def training(candidate: candidates.Candidate, device: str, steps: int) -> tuple[Measured, int]:
    """Member-data per second of one candidate, and the weights of one of its members."""
    simulator = linear_scaling.simulator_of(candidate)
    model = candidates.untrained(candidate, simulator, 0, device)
    options = {"batch_data": candidate.batch_data, "precision": candidate.precision, "progress": False}
    looks = {"steps": steps, "validate_every": max(1, steps // 8), "patience": None}
    if candidate.stored_sets is None:
        history = model.fit(simulator, size=candidate.size, num_validation=9, **options, **looks)  # type: ignore[arg-type]
    else:
        sets, theta = candidates.stored_sets(simulator, candidate.stored_sets, candidate.size[1], 0, device)
        history = model.fit(sets, theta, validation_fraction=1e-3, **options, **looks)  # type: ignore[arg-type]
    return candidates.throughput(history, candidate.members), model.num_weights


def matrix_rate(device: str, size: int) -> Measured:
    """Rate of a large square bfloat16 product, in operations per second."""
    a, b = torch.randn(2, size, size, device=device).to(torch.bfloat16)
    times = []
    for _ in range(8):
        started = time.perf_counter()
        for _ in range(4):
            a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / 4)
    rates = torch.tensor([2 * size**3 / t for t in times[2:]], dtype=torch.float64)
    return Measured(float(rates.median()), float(rates.std()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    small = options.device == "cpu"
    preset, steps = ("quick", 40) if small else ("paper", 400)
    recommended, paper = linear_scaling.config_for(preset, "clean").candidates
    stored = linear_scaling.config_for(preset, "published").candidates[0]
    many = 2 if small else 10
    cases = {
        "paper": replace(stored, members=many),
        "paper-alone": replace(stored, members=1),
        "paper-fresh-data": replace(paper, members=many),
        "recommended": recommended,
        "recommended-alone": replace(recommended, members=1),
    }
    started = time.monotonic()
    peak = matrix_rate(options.device, 1024 if small else 8192)
    metrics: dict[str, Metric] = {"matrix-rate": metric(peak)}
    rows = []
    for name, candidate in cases.items():
        rate, num_weights = training(candidate, options.device, steps)
        share = 6 * num_weights * rate.value / peak.value
        metrics[f"throughput/{name}"] = metric(rate)
        metrics[f"fraction-of-matrix-rate/{name}"] = Metric(share, share * rate.error / rate.value)
        rows.append([name, str(candidate.members), f"{num_weights:,}", f"{rate.value / 1e6:.1f}", f"{share:.3f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    config = {name: candidate.to_dict() for name, candidate in cases.items()} | {"steps": steps}
    spent, where = time.monotonic() - started, (options.device, options.out, options.overwrite, preset)
    path = write_benchmark("training-throughput", config, metrics, spent, *where)
    header = ["network", "members", "weights", "million member-data a second", "of the matrix rate"]
    print(markdown_table(header, rows))
    print(f"matrix rate {peak.value / 1e12:.0f} TFLOP/s; recorded in {path}")


if __name__ == "__main__":
    main()
