"""What messages along edges cost on a CPU, forward and back: step by step, and in one pass.

Sizes are those of a layer on 32 molecules and on the proteins of yeast. Each is measured as the C library allocates
memory, and with freed memory kept (:func:`fishnets.ops.allocation.keep_freed_memory`). Run with
``python benchmarks/message_speed.py``; ``OMP_NUM_THREADS`` sets the threads.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch
from costs import Makers, Way, measure, ratio

from fishnets.experiments.records import Metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.ops.allocation import keep_freed_memory
from fishnets.ops.edge_messages import edge_messages

SIZES = ((816, 1_758, 256), (5_409, 331_786, 64))  # nodes, edges, channels
BACKENDS = ("reference", "fused")


def way(backend: str, nodes: int, edges: int, channels: int) -> Way:
    """Messages of a graph whose edges begin at random nodes."""
    source = torch.randint(nodes, (edges,), generator=torch.Generator().manual_seed(0))
    x, edge = (torch.randn(rows, channels, requires_grad=True) for rows in (nodes, edges))
    return Way(partial(edge_messages, x, edge, source, 1e-7, backend=backend), (x, edge), torch.ones(edges, channels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.monotonic()
    metrics: dict[str, Metric] = {}
    rows = []
    for memory in ("given-back", "kept"):
        if memory == "kept" and not keep_freed_memory():
            break  # another C library than that of Linux
        for size in SIZES:
            name = "x".join(map(str, size)) + f"/{memory}"
            makers: Makers = {backend: partial(way, backend, *size) for backend in BACKENDS}
            found, _ = measure(makers, "cpu")
            speedup = ratio(found["reference"], found["fused"])
            shown = {f"milliseconds/{kind}/{name}": one for kind, one in found.items()} | {f"speedup/{name}": speedup}
            metrics |= {key: one for key, one in shown.items() if one is not None}
            rows.append([name, *(format_metric(one) for one in shown.values() if one is not None)])
    spent = time.monotonic() - started
    path = write_benchmark(
        "message-speed", {"sizes": SIZES}, metrics, spent, "cpu", options.out, options.overwrite
    )
    print(markdown_table(["nodes x edges x channels / freed memory", "reference, ms", "fused, ms", "speedup"], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
