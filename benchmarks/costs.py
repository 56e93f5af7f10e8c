"""What a call costs, forward and back: milliseconds on a GPU or a CPU, and memory."""

from __future__ import annotations

import argparse
import gc
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.experiments.records import Metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.inference.efficiency import mean_with_error

__all__ = ["GIB", "Found", "Makers", "Way", "measure", "median", "peak", "ratio", "record_speedups"]

GIB = 2**30


@dataclass(frozen=True, eq=False)
class Way:
    """A call that is timed, back too where a gradient of its output is given, and the tensors that gradients reach."""

    call: Callable[[], Any]
    leaves: Sequence[Tensor] = ()
    grad: Tensor | None = None

    def __call__(self) -> None:
        out = self.call()
        if self.grad is not None:
            out.backward(self.grad)

    def clear(self) -> int:
        """Drops all gradients and returns their bytes."""
        grads = [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        for leaf in self.leaves:
            leaf.grad = None
        return sum(grad.nbytes for grad in grads)


Makers = Mapping[str, Callable[[], Way]]
Found = dict[str, Metric | None]  # None where memory runs out


def measure(makers: Makers, device: str) -> tuple[Found, Found]:
    """Milliseconds by name, and on a GPU the GiB."""
    times, gib = _measure_gpu(makers) if device == "cuda" else (_measure_cpu(makers), {})
    for name, one in times.items():
        print(f"  {name}: {format_metric(one) if one else 'out of memory'}", file=sys.stderr, flush=True)
    return times, gib


def record_speedups(benchmark: str, cases: Iterable[tuple[str, Makers]], config: Mapping[str, Any], doc: str) -> None:
    """The program of a benchmark of two ways on a CPU, the slow one first: measures, records and prints every case."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    started, metrics, rows = time.monotonic(), dict[str, Metric](), list[list[str]]()
    for name, makers in cases:
        found, _ = measure(makers, "cpu")
        shown = {f"milliseconds/{way}/{name}": one for way, one in found.items()}
        shown[f"speedup/{name}"] = ratio(*found.values())
        metrics |= {key: one for key, one in shown.items() if one is not None}
        rows.append([name, *(format_metric(one) for one in shown.values() if one is not None)])
    seconds = time.monotonic() - started
    path = write_benchmark(benchmark, config, metrics, seconds, "cpu", options.out, options.overwrite)
    print(markdown_table(["case", *(f"{way}, ms" for way in makers), "speedup"], rows))
    print(f"recorded in {path}")


def _measure_gpu(makers: Makers) -> tuple[Found, Found]:
    """By events: two passes to warm up, then the mean of a few, several times."""
    times, gib = Found(), Found()
    for name, maker in makers.items():
        gc.collect()
        torch.cuda.empty_cache()
        try:
            times[name], gib[name] = _cost_gpu(maker())
        except RuntimeError as error:  # libraries have words of their own
            if not re.search("out of memory|alloc_failed", str(error), re.IGNORECASE):
                raise
            times[name] = gib[name] = None
    return times, gib


def _cost_gpu(way: Way) -> tuple[Metric, Metric]:
    way.clear()
    before = torch.cuda.memory_allocated()
    _event_time(way, 1)
    torch.cuda.reset_peak_memory_stats()
    way()
    needed = torch.cuda.max_memory_allocated() - before - way.clear()
    once = _event_time(way, 1)
    count = max(1, min(20, int(50 / once)))
    return median([_event_time(way, count) for _ in range(3 if once > 100 else 7)]), Metric(needed / GIB, 0.0)


def _event_time(way: Way, count: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        way()
        way.clear()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / count


def _measure_cpu(makers: Makers, repeats: int = 7) -> Found:
    """All take turns, so that what else the machine does hits them alike; the first turn is to warm up."""
    ways = {name: maker() for name, maker in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append(1e3 * (time.perf_counter() - began))
            way.clear()
    return {name: median(found[1:]) for name, found in times.items()}


def peak(way: Way) -> int:
    """Bytes of a pass beyond its inputs and their gradients; the process should have done nothing else.

    The high-water mark is set back first. That of ``getrusage`` cannot be, and a process inherits it from its parent.
    """
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident()["VmRSS"]
    way()
    return _resident()["VmHWM"] - before - way.clear()


def _resident() -> dict[str, int]:
    """What the kernel says about the memory of this process, in bytes."""
    lines = re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/self/status").read_text())
    return {name: 1024 * int(number) for name, number in lines}


def median(times: Sequence[float]) -> Metric:
    """The median of repeats, with the standard error of their mean."""
    samples = torch.tensor(times, dtype=torch.float64)
    return Metric(float(samples.median()), mean_with_error(samples).error)


def ratio(one: Metric | None, other: Metric | None) -> Metric | None:
    """One over the other, with an error that takes theirs for independent."""
    if one is None or other is None:
        return None
    value = one.value / other.value
    return Metric(value, value * math.hypot(one.error / one.value, other.error / other.value))
