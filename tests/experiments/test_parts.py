"""Parts of an experiment: measured once for a config, and again for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fishnets.errors import FileFormatError
from fishnets.experiments.parts import Parts
from fishnets.experiments.records import Metric


def counted() -> tuple[list[int], dict[str, Metric]]:
    return [], {"x": Metric(1.0, 0.1, bound=2.0)}


def test_a_part_is_measured_once_for_a_config(tmp_path: Path) -> None:
    calls, metrics = counted()

    def measure() -> dict[str, Metric]:
        calls.append(1)
        return metrics

    parts, later = Parts(tmp_path / "parts"), Parts(tmp_path / "parts")
    first = parts.measured("one", {"steps": (1, 2)}, measure)
    again = later.measured("one", {"steps": [1, 2]}, measure)  # as JSON, tuples are lists
    assert first == again == metrics
    assert later.seconds == parts.seconds >= 0
    assert len(calls) == 1
    parts.measured("one", {"steps": [1, 3]}, measure)
    parts.measured("two", {"steps": [1, 3]}, measure)
    assert len(calls) == 3
    parts.measured("one", {"steps": [1, 2]}, measure)  # a part of another config is beside it, not in its place
    assert len(calls) == 3


def test_nothing_is_kept_without_a_folder() -> None:
    calls, metrics = counted()
    for _ in range(2):
        Parts(None).measured("one", {}, lambda: calls.append(1) or metrics)
    assert len(calls) == 2


@pytest.mark.parametrize("held", ['{"config": ', '{"config": {}}', "[]"])
def test_a_damaged_part_is_named(held: str, tmp_path: Path) -> None:
    parts, (_, metrics) = Parts(tmp_path), counted()
    parts.measured("one", {}, lambda: metrics)
    (path,) = tmp_path.iterdir()
    path.write_text(held)
    with pytest.raises(FileFormatError, match=rf"{path.name} is damaged\. Remove it to measure this part anew"):
        parts.measured("one", {}, lambda: metrics)


def test_a_part_that_fails_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Parts(tmp_path).measured("one", {}, lambda: {"x": Metric(1 / 0, 0.0)})
    assert not list(tmp_path.iterdir())
