"""Records: one JSON file per run, the source of the numbers we publish.

``results/<name>/<preset>-<protocol>-<hardware>.json`` holds the config, seeds, versions, hardware and time of a run and
its metrics, each with its error and, where they exist, the paper's value and the exact bound.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fishnets.errors import ConfigError, FileFormatError
from fishnets.inference.efficiency import Measured

__all__ = [
    "Metric",
    "Record",
    "check_records",
    "hardware_name",
    "metric",
    "read_record",
    "record_text",
    "refuse_overwrite",
    "versions",
    "write_benchmark",
    "write_record",
]


@dataclass(frozen=True)
class Metric:
    """A measured number, its standard error, and what it is compared with.

    An error of zero belongs to what is exact, to test statistics, or to what was read off a single run, such as times.
    """

    value: float
    error: float
    paper: float | None = None
    bound: float | None = None


def metric(measured: Measured, paper: float | None = None, bound: float | None = None) -> Metric:
    """Makes a metric of a measured number."""
    return Metric(measured.value, measured.error, paper, bound)


@dataclass(frozen=True)
class Record:
    """One run of an experiment or benchmark."""

    name: str
    preset: str
    protocol: str
    command: str
    config: Mapping[str, Any]
    seeds: list[int]
    versions: Mapping[str, str]
    hardware: str
    seconds: float
    metrics: Mapping[str, Metric]

    @property
    def stem(self) -> str:
        """File name without its ending: preset, protocol and hardware."""
        return f"{self.preset}-{self.protocol}-{self.hardware}"

    def path_in(self, root: str | Path) -> Path:
        """Where the record belongs under a results folder."""
        return Path(root) / self.name / f"{self.stem}.json"


def hardware_name(device: str | torch.device) -> str:
    """A short name for the machine a run used, fit for a file name.

    Example:
        >>> hardware_name("cpu").startswith("cpu-")
        True
    """
    if torch.device(device).type == "cuda":
        return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).strip("-")
    return f"cpu-{torch.get_num_threads()}-threads"


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    import numpy

    import fishnets

    found = {"fishnets": fishnets.__version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    return found | {"numpy": numpy.__version__, "platform": f"{platform.system()}-{platform.machine()}"}


def write_record(record: Record, root: str | Path, overwrite: bool = False) -> Path:
    """Writes a record under a results folder and returns its path; an existing one only when asked to."""
    path = record.path_in(root)
    refuse_overwrite(path, overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record_text(record))
    return path


def write_benchmark(
    name: str,
    config: Mapping[str, Any],
    metrics: Mapping[str, Metric],
    seconds: float,
    device: str,
    out: str | Path,
    overwrite: bool = False,
    preset: str = "paper",
) -> Path:
    """Writes the record of a script that was called from the command line, and returns its path."""
    command, where = "python " + " ".join(sys.argv), hardware_name(device)
    record = Record(name, preset, "clean", command, dict(config), [0], versions(), where, seconds, dict(metrics))
    return write_record(record, out, overwrite)


def record_text(record: Record) -> str:
    """A record as JSON."""
    return json.dumps(asdict(record), indent=1, default=str, allow_nan=False) + "\n"


def refuse_overwrite(path: Path, overwrite: bool) -> None:
    """Raises when a file exists that nobody allowed to replace."""
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} exists. Give --overwrite to replace it, or another --out.")


def read_record(path: str | Path) -> Record:
    """Reads a record, refusing one with missing or unknown fields."""
    try:
        fields = json.loads(Path(path).read_text())
        metrics = {name: Metric(**value) for name, value in fields.pop("metrics").items()}
        return Record(**fields, metrics=metrics)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is not a record: {error}") from error


def check_records(root: str | Path, texts: list[Path]) -> list[str]:
    """Finds what is wrong with the records and with the numbers that texts quote from them.

    Every metric needs an error. Every decimal number in a text, outside code, must be a number of some record rounded
    to as many decimals.

    Args:
        root: Folder of the records.
        texts: Markdown files to check.

    Returns:
        One line per complaint; empty when all is well.
    """
    complaints: list[str] = []
    known: list[float] = []
    for path in sorted(Path(root).glob("*/*.json")):
        try:
            record = read_record(path)
        except FileFormatError as error:
            complaints.append(str(error))
            continue
        known.append(record.seconds)
        for name, entry in record.metrics.items():
            known += [v for v in (entry.value, entry.error, entry.paper, entry.bound) if v is not None]
            if not isinstance(entry.error, int | float):
                complaints.append(f"{path}: metric {name} has no error")
        if path != record.path_in(root):
            complaints.append(f"{path}: its contents belong at {record.path_in(root)}")
    for text in texts:
        complaints += [f"{text}: {number} is in no record" for number in _unknown_numbers(text.read_text(), known)]
    return complaints


def _unknown_numbers(text: str, known: list[float]) -> list[str]:
    """Decimal numbers of a text, code left out, that no known number rounds to."""
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", " ", text, flags=re.DOTALL)
    numbers = re.findall(r"(?<![\w.])[-−]?\d+\.\d+(?![\w.]*\d)", prose)
    return [n for n in numbers if not any(_rounds_to(value, n) for value in known)]


def _rounds_to(value: float, number: str) -> bool:
    decimals = len(number.split(".")[1])
    return f"{value:.{decimals}f}" == number.replace("−", "-")


def main() -> int:
    """Checks `results` and the README from the command line."""
    texts = [Path(name) for name in sys.argv[2:]]
    complaints = check_records(sys.argv[1], texts)
    print("\n".join(complaints) or f"records in {sys.argv[1]} and {len(texts)} texts agree")
    return 1 if complaints else 0
