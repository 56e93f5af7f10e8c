"""On a GPU: a network whose inputs always have the same shapes, replayed as CUDA graphs, forward and back.

A deep graph network is hundreds of short kernels, and on a graph of a few thousand nodes launching them takes longer
than running them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fishnets.ops.memory import keeping

__all__ = ["replayed"]


@contextmanager
def replayed(model: nn.Module, inputs: tuple[Tensor, ...]) -> Iterator[None]:
    """Replays a network inside, in training mode; in evaluation mode it runs as it does outside.

    Args:
        model: A network that never waits for the device.
        inputs: Example inputs on a GPU, which are kept. Others of their shapes are copied there; nothing is looked at
            again, so indices must be the same.
    """
    device, training = inputs[0].device, model.training
    random = torch.cuda.get_rng_state(device)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.train()
    try:
        with keeping() as kept, torch.cuda.device(device):  # and with them what the kernels read of indices
            torch.cuda.make_graphed_callables(model, inputs, allow_unused_input=True)
        for name, buffer in model.named_buffers():  # running statistics, which runs before a capture have changed
            buffer.copy_(before[name])
        torch.cuda.set_rng_state(random, device)
        model.train(training)
        with _own_stream(device):
            yield
    finally:
        vars(model).pop("forward", None)
        del kept


@contextmanager
def _own_stream(device: torch.device) -> Iterator[None]:
    """The stream of captures, on which gradients are added up: autograd then has no two streams to keep in step."""
    stream, outside = torch.cuda.graph.default_capture_stream, torch.cuda.current_stream(device)
    if stream is None or stream.device != device:  # captured on another GPU before
        yield
        return
    stream.wait_stream(outside)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outside.wait_stream(stream)
