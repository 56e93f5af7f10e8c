"""What messages along edges cost on a CPU, forward and back: step by step, and in one pass.

Sizes are those of a layer on 32 molecules and on the proteins of yeast. Each is measured as the C library allocates
memory, and with freed memory kept (:func:`fishnets.ops.allocation.keep_freed_memory`). Run with
``python benchmarks/message_speed.py``; ``OMP_NUM_THREADS`` sets the threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from costs import Makers, Way, record_speedups

from fishnets.ops.allocation import keep_freed_memory
from fishnets.ops.edge_messages import edge_messages

SIZES = ((816, 1_758, 256), (5_409, 331_786, 64))  # nodes, edges, channels
BACKENDS = ("reference", "fused")


def way(backend: str, nodes: int, edges: int, channels: int) -> Way:
    """Messages of a graph whose edges begin at random nodes."""
    source = torch.randint(nodes, (edges,), generator=torch.Generator().manual_seed(0))
    x, edge = (torch.randn(rows, channels, requires_grad=True) for rows in (nodes, edges))
    return Way(partial(edge_messages, x, edge, source, 1e-7, backend=backend), (x, edge), torch.ones(edges, channels))


def cases() -> Iterator[tuple[str, Makers]]:
    """Sizes, by name, first with memory as it is, then with what is freed kept, where the C library can be asked to."""
    for memory in ("given-back", "kept"):
        if memory == "kept" and not keep_freed_memory():
            return
        for size in SIZES:
            makers: Makers = {backend: partial(way, backend, *size) for backend in BACKENDS}
            yield "x".join(map(str, size)) + f"/{memory}", makers


if __name__ == "__main__":
    record_speedups("message-speed", cases(), {"sizes": SIZES}, __doc__)
