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
        yield
        torch.cuda.synchronize(device)
    finally:
        vars(model).pop("forward", None)
        del kept
