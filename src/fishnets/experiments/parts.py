"""Parts: what an experiment has measured so far, so that an interrupted run continues where it was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fishnets.experiments.records import Metric

__all__ = ["remembered"]


def remembered(
    folder: Path | None, name: str, config: Mapping[str, Any], measure: Callable[[], dict[str, Metric]]
) -> tuple[dict[str, Metric], float]:
    """What was measured, now or by an interrupted run of the same config, and the seconds that took.

    Args:
        folder: Where parts are kept; None to keep nothing.
        name: Name of the part.
        config: All that the part depends on, in values that JSON can hold.
        measure: Measures it.

    Example:
        >>> remembered(None, "one", {}, lambda: {"x": Metric(1.0, 0.1)})[0]["x"].value
        1.0
    """
    depends = json.loads(json.dumps(config))
    path = None if folder is None else folder / f"{name}.json"
    if path is not None and path.exists():
        stored = json.loads(path.read_text())
        if stored["config"] == depends:
            return {key: Metric(**value) for key, value in stored["metrics"].items()}, stored["seconds"]
    started, found = time.monotonic(), measure()
    seconds = time.monotonic() - started
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        metrics = {key: asdict(value) for key, value in found.items()}
        path.write_text(json.dumps({"config": depends, "seconds": seconds, "metrics": metrics}))
    return found, seconds
