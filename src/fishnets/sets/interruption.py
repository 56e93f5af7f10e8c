"""SIGINT and SIGTERM during training: noted, so that the step in progress ends, and passed on once all is stored."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["leave", "noted_signals"]


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Notes SIGINT and SIGTERM in a list instead of dying, so that the step in progress can be finished and stored."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if caught:  # asked twice: obey at once
            raise KeyboardInterrupt
        caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(number: int, checkpoint: Path | None, step: int) -> None:
    """Passes an interruption on once everything is stored."""
    kept = "give `checkpoint=` to be able to resume"
    if checkpoint:
        kept = f"run the same command to resume from {checkpoint}"
    print(f"Training interrupted after step {step}; the best weights are in the model; {kept}.", file=sys.stderr)
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt
