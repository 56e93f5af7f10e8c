"""The progress bar of a training run, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fishnets.sets.history import History

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(wanted: bool, steps: int, members: int) -> Iterator[Callable[[History], None]]:
    """Gives a function that shows how far a run has come, or one that does nothing.

    Args:
        wanted: Whether to show anything.
        steps: Steps the bar runs to.
        members: Number of ensemble members: each sees all data, and the speed counts them all.
    """
    if not wanted:
        yield lambda history: None
        return
    columns = (TextColumn("training"), BarColumn(), TextColumn("{task.completed}/{task.total} {task.fields[note]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("train", total=steps, note="")

        def show(history: History) -> None:
            rate = members * history.num_data / max(history.seconds, 1e-9)
            loss = min(history.validation_loss[-1])
            bar.update(task, completed=history.num_steps, note=f"loss {loss:.4f}  {rate / 1e6:.2f} M data/s")

        yield show
