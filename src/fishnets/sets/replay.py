"""On a GPU: updates replayed as CUDA graphs, and batches drawn ahead of their use.

A graph of the whole update, forward, backward, clipping and optimiser (:mod:`fishnets.ops.replay`), is captured once
for each shape of batch and replayed. Meanwhile the next batch is drawn on a stream of its own, so that a simulator that
waits for the device does not stop the update.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import torch

from fishnets.ops.replay import WARM_UP, capture
from fishnets.ragged import Sets
from fishnets.sets.sources import Batch, Source

__all__ = ["DrawnAhead", "Replayed"]

MOST_GRAPHS = 32


class Replayed:
    """An update that replays a CUDA graph for every shape of batch it meets often.

    Args:
        update: Does one update with a batch of fixed shape. It must not read anything back from the device.
    """

    def __init__(self, update: Callable[[Batch], None]) -> None:
        self.update = update
        self.met: Counter[tuple[int, ...]] = Counter()
        self.graphs: dict[tuple[int, ...], tuple[Batch, torch.cuda.CUDAGraph]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> None:
        """Updates with one batch; sets of unequal size take the plain way."""
        size = batch.sets.common_size
        if size is None:
            return self.update(batch)
        key = (len(batch.sets), size)
        self.met[key] += 1
        if key not in self.graphs:
            if self.met[key] <= WARM_UP or len(self.graphs) >= MOST_GRAPHS:
                return self.update(batch)
            self.graphs[key] = self._capture(batch)
        still, graph = self.graphs[key]
        still.sets.values.copy_(batch.sets.values)
        still.theta.copy_(batch.theta)
        if still.noise is not None and batch.noise is not None:
            still.noise.copy_(batch.noise)
        return graph.replay()

    def _capture(self, batch: Batch) -> tuple[Batch, torch.cuda.CUDAGraph]:
        sets = Sets(batch.sets.values.clone(), batch.sets.offsets.clone())
        _ = sets.common_size  # looked up now: a capture cannot wait for the device
        still = Batch(sets, batch.theta.clone(), None if batch.noise is None else batch.noise.clone())
        return still, capture(partial(self.update, still), self.pool)


class DrawnAhead:
    """Draws the batch of the next step while this one runs.

    Args:
        source: Where batches come from.
        generator: Source of randomness on the GPU.
    """

    def __init__(self, source: Source, generator: torch.Generator) -> None:
        self.source, self.generator = source, generator
        self.stream = torch.cuda.Stream(generator.device)
        self.stream.wait_stream(torch.cuda.current_stream(generator.device))  # the source may still be on its way
        self.waiting: tuple[int, Batch] | None = None
        self.state = generator.get_state()

    def batch(self, step: int) -> Batch:
        """The batch of a step, drawn before if steps come in order."""
        if self.waiting is None or self.waiting[0] != step:
            self.draw(step)
        assert self.waiting is not None
        batch = self.waiting[1]
        torch.cuda.current_stream().wait_stream(self.stream)
        for tensor in (batch.sets.values, batch.sets.offsets, batch.theta, batch.noise):
            if tensor is not None:
                tensor.record_stream(torch.cuda.current_stream())
        self.waiting = None
        return batch

    def draw(self, step: int) -> None:
        """Draws the batch of a step; ``state`` keeps the generator as it was before, for checkpoints."""
        self.state = self.generator.get_state()
        with torch.cuda.stream(self.stream):
            batch = self.source.batch(step, self.generator)
            _ = batch.sets.common_size  # looked up here, where waiting costs nothing
        self.waiting = (step, batch)
