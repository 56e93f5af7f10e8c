"""Options that mean the same in every verb."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path

import torch
from rich.console import Console

from fishnets.errors import BackendUnavailableError

__all__ = ["Device", "command_line", "resolve_device", "say"]


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def resolve_device(device: Device) -> str:
    """The device to use; asking for a GPU that is not there is an error."""
    available = torch.cuda.is_available()
    if device is Device.cuda and not available:
        raise BackendUnavailableError("--device cuda was asked for but torch sees no GPU; use --device cpu.")
    return "cuda" if available and device is not Device.cpu else "cpu"


def command_line(data: Path | None = None) -> str:
    """The command as typed, for the record, but with the name of a data file in place of its path."""
    words = list(sys.argv[1:])
    for i, word in enumerate(words):
        given = word.removeprefix("--data=")
        if data is not None and Path(given) == data:
            words[i] = word.removesuffix(given) + data.name
    return " ".join(["fishnets", *words])


def say(message: str) -> None:
    """A message to the person watching, on stderr."""
    Console(stderr=True, soft_wrap=True).print(message, markup=False, highlight=False)
