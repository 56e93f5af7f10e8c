"""The record a training run keeps of itself: losses, rates, counts and why it stopped."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["History"]


@dataclass
class History:
    """What happened during a fit.

    Attributes:
        steps: Steps at which the validation loss was looked at; the first is 0, before any update.
        train_loss: Mean training loss per set since the look before, for each member.
        validation_loss: Mean validation loss per set, for each member; losses are in standardised parameters.
        learning_rate: Learning rate at these steps.
        elapsed: Seconds spent until each of these looks.
        data_seen: Rows seen until each of these looks.
        best_step: Step of the weights each member ends with: the newest whose validation loss is within one standard
            error of its lowest; the last with ``keep_best=False``.
        best_loss: Their validation loss.
        lowest_step: Step of each member's lowest validation loss, from which patience is counted.
        clipped: Number of steps at which each member's gradient was clipped.
        num_steps: Steps taken.
        num_data: Rows seen, counted once however many members there are.
        seconds: Time spent, over all resumed parts.
        stopped: ``"finished"``, ``"patience"`` or ``"interrupted"``.
    """

    steps: list[int] = field(default_factory=list)
    train_loss: list[list[float]] = field(default_factory=list)
    validation_loss: list[list[float]] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    elapsed: list[float] = field(default_factory=list)
    data_seen: list[int] = field(default_factory=list)
    best_step: list[int] = field(default_factory=list)
    best_loss: list[float] = field(default_factory=list)
    lowest_step: list[int] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)
    num_steps: int = 0
    num_data: int = 0
    seconds: float = 0.0
    stopped: str = "running"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        best, best_step = min(zip(self.best_loss, self.best_step, strict=True), default=(math.nan, 0))
        rate = self.num_data / self.seconds if self.seconds else 0.0
        return (
            f"{self.num_steps} steps, {self.num_data:,} data in {self.seconds:.0f} s ({rate:,.0f} a second); best "
            f"validation loss {best:.4f} at step {best_step}; gradients clipped at "
            f"{sum(self.clipped)} of {self.num_steps * max(1, len(self.clipped))} member steps; {self.stopped}"
        )
