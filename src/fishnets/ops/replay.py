"""On a GPU: an update captured as a CUDA graph, on a stream of its own.

An update of a small network is hundreds of short kernels, and launching them takes longer than running them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fishnets.ops.memory import keeping

__all__ = ["WARM_UP", "ReplayedStep", "capture", "own_stream"]

WARM_UP = 3  # updates run plainly before one is captured: compilation and allocation happen here


def capture(update: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """An update as a CUDA graph, captured on the current stream.

    Args:
        update: Does one update. It must not read anything back from the device.
        pool: Memory to share with other graphs; of its own by default.
    """
    gc.collect()  # a graph that is destroyed while another one is captured breaks it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
        update()
    return graph


class ReplayedStep:
    """An update whose inputs stay where they are, replayed as one CUDA graph after a few plain runs.

    Args:
        update: Does one update. It must not read anything back from the device. What it remembers of tensors is kept.
    """

    def __init__(self, update: Callable[[], None]) -> None:
        self.update, self.calls = update, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.kept: list[Any] = []

    def __call__(self) -> None:
        """Updates once."""
        self.calls += 1
        if self.calls <= WARM_UP:
            return self.update()
        if self.graph is None:
            with keeping() as self.kept:
                self.graph = capture(self.update)
        return self.graph.replay()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, a stream that is not the default one: only such a stream can be captured."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            yield
    finally:  # also when training was interrupted or failed: the weights it leaves are read on the other stream
        torch.cuda.current_stream(device).wait_stream(stream)
