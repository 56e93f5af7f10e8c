"""Training on the whole graph for a number of epochs, without selection; see :mod:`fishnets.graphs.selection`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fishnets.errors import ConfigError, NonFiniteLossError

__all__ = ["train"]

WARM_UP = 0.02  # of the steps


def train(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    steps: int,
    learning_rate: float,
    clip: float = 1.0,
    look: Callable[[int], None] | None = None,
    looks: int = 0,
) -> list[float]:
    """Minimises a loss with Adam on a cosine schedule with a warm-up.

    Args:
        model: What is trained; it is in training mode while it is.
        loss: Number of the step to a loss, with fresh data or the whole graph.
        steps: Number of updates.
        learning_rate: Peak of the schedule.
        clip: Largest norm of the gradient.
        look: Called with the number of steps done, ``looks`` times over the run and at its end, in evaluation mode.
        looks: How often to look.

    Returns:
        The loss of every step.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> line = nn.Linear(1, 1)
        >>> losses = train(line, lambda step: line(torch.ones(1, 1)).square().sum(), steps=200, learning_rate=0.05)
        >>> losses[-1] < 1e-3
        True
    """
    for name, value in {"steps": steps, "learning_rate": learning_rate, "clip": clip}.items():
        if not value > 0:
            raise ConfigError(f"`{name}` is {value} but a positive number was expected.")
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    warm, apart = max(1, round(WARM_UP * steps)), math.ceil(steps / looks) if looks else steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    losses = []
    for step in range(steps):
        model.train()
        optimizer.zero_grad(set_to_none=True)
        error = loss(step)
        error.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        losses.append(error.detach())
        done = step + 1
        if look is not None and (done == steps or done % apart == 0):
            model.eval()
            look(done)
    model.eval()
    found: list[float] = torch.stack(losses).tolist()
    first = next((i for i, one in enumerate(found) if not math.isfinite(one)), None)
    if first is not None:
        raise NonFiniteLossError(f"The loss became {found[first]} at step {first}; use a smaller `learning_rate`.")
    return found
