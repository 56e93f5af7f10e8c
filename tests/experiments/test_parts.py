"""Parts of an experiment: measured once for a config, and again for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fishnets.experiments.parts import remembered
from fishnets.experiments.records import Metric


def counted() -> tuple[list[int], dict[str, Metric]]:
    return [], {"x": Metric(1.0, 0.1, bound=2.0)}


def test_a_part_is_measured_once_for_a_config(tmp_path: Path) -> None:
    calls, metrics = counted()

    def measure() -> dict[str, Metric]:
        calls.append(1)
        return metrics

    folder = tmp_path / "parts"
    first, seconds = remembered(folder, "one", {"steps": (1, 2)}, measure)
    again, said = remembered(folder, "one", {"steps": [1, 2]}, measure)  # as JSON, tuples are lists
    assert first == again == metrics
    assert said == seconds >= 0
    assert len(calls) == 1
    remembered(folder, "one", {"steps": [1, 3]}, measure)
    remembered(folder, "two", {"steps": [1, 3]}, measure)
    assert len(calls) == 3


def test_nothing_is_kept_without_a_folder() -> None:
    calls, metrics = counted()
    for _ in range(2):
        remembered(None, "one", {}, lambda: calls.append(1) or metrics)
    assert len(calls) == 2


def test_a_part_that_fails_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        remembered(tmp_path, "one", {}, lambda: {"x": Metric(1 / 0, 0.0)})
    assert not list(tmp_path.iterdir())
