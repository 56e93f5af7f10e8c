"""The file every state is kept in: safetensors, with a JSON description in its header. Never pickle.

A file holds named tensors and one JSON object. A SHA-256 digest over both tells a changed file; it is written to a
temporary name and moved into place, so an interrupted write leaves the old file whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fishnets.errors import ConfigError, FileFormatError

__all__ = ["FORMAT_VERSION", "read_container", "write_container"]

FORMAT_VERSION = 1


def write_container(path: str | Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors and their description atomically.

    Args:
        path: File to write.
        kind: What the file holds: ``"model"``, ``"checkpoint"``, ``"summaries"`` or ``"posterior"``.
        header: Plain JSON values.
        tensors: Named tensors, copied to the CPU.
    """
    path = Path(path)
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise ConfigError(f"{path} cannot be written: give the name of a file in a folder that exists.")
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"kind": kind, "format_version": FORMAT_VERSION, **header}, sort_keys=True, allow_nan=True)
    data = safetensors.torch.save(on_cpu, {"fishnets": text, "sha256": _digest(text, on_cpu)})
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_container(path: str | Path, kind: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads a file written by :func:`write_container`, refusing anything else.

    Args:
        path: File to read.
        kind: What the caller expects it to hold; None takes any.

    Returns:
        The JSON description and the tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    _refuse_pickle(path)
    try:
        with safetensors.safe_open(path, framework="pt") as stream:
            metadata = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise FileFormatError(
            f"{path} cannot be read as a fishnets file: {error}. It is truncated or of another kind; restore it from a "
            "copy or save it again."
        ) from error
    return _described(path, kind, metadata, tensors), tensors


def _described(path: Path, kind: str | None, metadata: dict[str, str], tensors: dict[str, Tensor]) -> dict[str, Any]:
    text = metadata.get("fishnets")
    if text is None:
        raise FileFormatError(f"{path} is a safetensors file but not one of fishnets: its header has no description.")
    try:
        header: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path} has a damaged description: {error}.") from error
    if not isinstance(header, dict):
        raise FileFormatError(f"{path} has a damaged description: a JSON object was expected.")
    version = header.get("format_version")
    if not isinstance(version, int):
        raise FileFormatError(f"{path} has a damaged description: its format version is {version!r}.")
    if version > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format version {version}, newer than the {FORMAT_VERSION} this release reads. "
            "Upgrade fishnets: `pip install --upgrade fishnets`."
        )
    if metadata.get("sha256") != _digest(text, tensors):
        raise FileFormatError(f"{path} was changed after it was written: its contents do not match their digest.")
    if kind is not None and header.get("kind") != kind:
        raise FileFormatError(f"{path} is of kind {header.get('kind')!r} but {kind!r} was expected.")
    return header


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as stream:
        start = stream.read(9)
    is_pickle = len(start) > 1 and start[0] == 0x80 and start[1] <= 5 and start[8:9] != b"{"
    if is_pickle or start.startswith(b"PK"):
        raise FileFormatError(
            f"{path} is a pickle or a `torch.save` archive. Such files can run code when read, so fishnets neither "
            "writes nor reads them; save the model with `model.save(path)`."
        )


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
