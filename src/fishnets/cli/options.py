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


def command_line(*paths: Path | None) -> str:
    """The command as typed, for the record, but with the names of these files and folders in place of their paths."""
    words = list(sys.argv[1:])
    for i, word in enumerate(words):
        option, equals, given = word.partition("=") if word.startswith("--") else ("", "", word)
        for path in paths:
            if path is not None and path.name and given and Path(given) == path:
                words[i] = option + equals + path.name
    return " ".join(["fishnets", *words])


def say(message: str) -> None:
    """A message to the person watching, on stderr."""
    Console(stderr=True, soft_wrap=True).print(message, markup=False, highlight=False)
