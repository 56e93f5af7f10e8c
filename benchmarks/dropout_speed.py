"""What dropout costs on a CPU, forward and back: PyTorch's, and ours, which draws four features at a time.

Sizes are those of a layer on 32 molecules, on the proteins of yeast and on a citation graph. Run with
``python benchmarks/dropout_speed.py``; ``OMP_NUM_THREADS`` sets the threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from costs import Makers, Way, measure, ratio
from torch import Tensor, nn

from fishnets.experiments.records import Metric, write_benchmark
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.graphs.dropout import Dropout

SIZES = ((816, 256), (5_409, 64), (17_716, 128))
SHARES = (0.1, 0.5)
WAYS: dict[str, Callable[[float], nn.Module]] = {"pytorch": nn.Dropout, "ours": Dropout}


def way(kind: str, share: float, size: tuple[int, int]) -> Way:
    """Dropout of one kind, in training."""
    x = torch.randn(size, requires_grad=True)
    leaves: tuple[Tensor, ...] = (x,)
    return Way(partial(WAYS[kind](share), x), leaves, torch.ones(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="results")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    started = time.monotonic()
    metrics: dict[str, Metric] = {}
    rows = []
    for nodes, channels in SIZES:
        for share in SHARES:
            name = f"{nodes}x{channels}/{share:g}"
            makers: Makers = {kind: partial(way, kind, share, (nodes, channels)) for kind in WAYS}
            found, _ = measure(makers, "cpu")
            speedup = ratio(found["pytorch"], found["ours"])
            shown = {f"milliseconds/{kind}/{name}": one for kind, one in found.items()} | {f"speedup/{name}": speedup}
            metrics |= {key: one for key, one in shown.items() if one is not None}
            rows.append([name, *(format_metric(one) for one in shown.values() if one is not None)])
    config = {"sizes": SIZES, "shares": SHARES}
    path = write_benchmark(
        "dropout-speed", config, metrics, time.monotonic() - started, "cpu", options.out, options.overwrite
    )
    print(markdown_table(["nodes x channels / share", "PyTorch, ms", "ours, ms", "speedup"], rows))
    print(f"recorded in {path}")


if __name__ == "__main__":
    main()
