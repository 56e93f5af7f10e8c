"""Parts: what an experiment has measured so far, so that an interrupted run continues where it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fishnets.errors import FileFormatError
from fishnets.experiments.records import Metric

__all__ = ["Parts", "read_part"]


def read_part(path: Path) -> dict[str, Any]:
    """What a part was measured for (``"config"``), how long it took (``"seconds"``) and found (``"metrics"``)."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
        stored["config"], stored["seconds"], stored["metrics"]
    except (ValueError, LookupError, TypeError) as error:
        raise FileFormatError(f"{path} is damaged. Remove it to measure this part anew.") from error
    return stored


class Parts:
    """What has been measured, and the seconds it took; of a part that was itself interrupted, since its last start.

    Args:
        folder: Where parts are kept; None to keep nothing.

    Example:
        >>> parts = Parts(None)
        >>> parts.measured("one", {}, lambda: {"x": Metric(1.0, 0.1)})["x"].value
        1.0
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.seconds = folder, 0.0

    def measured(
        self, name: str, config: Mapping[str, Any], measure: Callable[[], dict[str, Metric]]
    ) -> dict[str, Metric]:
        """What was measured, now or by an interrupted run of the same config.

        Args:
            name: Name of the part.
            config: All that the part depends on, in values that JSON can hold.
            measure: Measures it.
        """
        depends, path = json.loads(json.dumps(config)), self.path(name, config)
        if path is not None and path.exists():
            stored = read_part(path)
            self.seconds += stored["seconds"]
            return {key: Metric(**value) for key, value in stored["metrics"].items()}
        started, found = time.monotonic(), measure()
        seconds = time.monotonic() - started
        self.seconds += seconds
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            metrics = {key: asdict(value) for key, value in found.items()}
            beside = path.with_name(path.name + ".part")
            beside.write_text(json.dumps({"config": depends, "seconds": seconds, "metrics": metrics}))
            beside.replace(path)  # an interrupted write leaves nothing half done
        return found

    def path(self, name: str, config: Mapping[str, Any]) -> Path | None:
        """Where a part is kept: parts of other configs have other files, so that none is written over."""
        if self.folder is None:
            return None
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{name}-{digest}.json"
