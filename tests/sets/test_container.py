"""The file format: exact, atomic, readable by eye, and refused when it is anything else."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.sets.helpers import generator

from fishnets.errors import ConfigError, FileFormatError
from fishnets.sets.container import FORMAT_VERSION, read_container, write_container

HEADER = {"name": "a model", "rate": 0.1, "steps": [1, 2], "nothing": None, "infinite": float("inf")}
TENSORS = {
    "weight": torch.randn((3, 4), generator=generator()),
    "double": torch.randn((2, 1, 5), generator=generator(), dtype=torch.float64),
    "integers": torch.tensor([1, -2, 2**60]),
    "bytes": torch.arange(7, dtype=torch.uint8),
    "scalar": torch.tensor(3.0),
    "flags": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_container(tmp_path / "file", "model", HEADER, TENSORS)
    return tmp_path / "file"


def json_header(path: Path) -> dict[str, Any]:
    """Reads the header as the safetensors format defines it: a length of 8 bytes, then JSON."""
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def test_everything_comes_back_bit_for_bit(path: Path) -> None:
    header, tensors = read_container(path, "model")
    assert header == HEADER | {"kind": "model", "format_version": FORMAT_VERSION}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_strides_views_and_gradients_do_not_matter(tmp_path: Path) -> None:
    base = torch.randn((4, 6), generator=generator())
    tensors = {"turned": base.mT, "strided": base[:, ::2], "shared": base, "wide": base[:1].expand(3, 6)}
    write_container(tmp_path / "file", "model", {}, tensors | {"learned": base.clone().requires_grad_()})
    _, read = read_container(str(tmp_path / "file"), "model")
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    assert not read["learned"].requires_grad


def test_description_is_json_that_anyone_can_read(path: Path) -> None:
    metadata = json_header(path)["__metadata__"]
    assert json.loads(metadata["fishnets"]) == HEADER | {"kind": "model", "format_version": FORMAT_VERSION}
    assert len(metadata["sha256"]) == 64


def test_the_same_contents_make_the_same_file(path: Path, tmp_path: Path) -> None:
    write_container(tmp_path / "again", "model", dict(reversed(HEADER.items())), TENSORS)
    assert read_container(tmp_path / "again", "model")[0] == read_container(path, "model")[0]
    assert json_header(tmp_path / "again") == json_header(path)


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_file_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match=r"file cannot be read as a fishnets file: .* truncated or of another"):
        read_container(path, "model")


def test_file_with_something_appended_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(FileFormatError, match=r"cannot be read as a fishnets file"):
        read_container(path, "model")


def test_any_changed_byte_of_the_tensors_is_refused(path: Path) -> None:
    good = path.read_bytes()
    start = 8 + int.from_bytes(good[:8], "little")
    for position in range(start, len(good), 7):
        path.write_bytes(flipped(good, position, 0x10))
        with pytest.raises(FileFormatError, match=r"was changed after it was written: its contents do not match"):
            read_container(path, "model")


@pytest.mark.parametrize("bit", [0x01, 0x08, 0x80])
def test_any_changed_byte_of_the_header_is_refused(path: Path, bit: int) -> None:
    good = path.read_bytes()
    for position in range(8 + int.from_bytes(good[:8], "little")):
        path.write_bytes(flipped(good, position, bit))
        with pytest.raises(FileFormatError, match=str(path)):
            read_container(path, "model")


def test_changed_word_of_the_description_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"a model", b"a mouse"))
    with pytest.raises(FileFormatError, match=r"was changed after it was written: its contents do not match their dig"):
        read_container(path, "model")


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]


def foreign(path: Path, metadata: dict[str, str] | None) -> Path:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, metadata)
    return path


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_safetensors_file_of_another_program_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    with pytest.raises(FileFormatError, match=r"is a safetensors file but not one of fishnets: its header has no desc"):
        read_container(foreign(tmp_path / "file", metadata), "model")


@pytest.mark.parametrize("text", ["{", "[1]", "null"])
def test_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileFormatError, match=r"has a damaged description"):
        read_container(foreign(tmp_path / "file", {"fishnets": text}), "model")


def test_newer_format_is_refused_with_advice(path: Path) -> None:
    version = f'\\"format_version\\": {FORMAT_VERSION}'.encode()
    path.write_bytes(path.read_bytes().replace(version, version[:-1] + b"9"))
    with pytest.raises(FileFormatError, match=r"has format version 9, newer than the 1 this release reads. Upgrade"):
        read_container(path, "model")


def test_another_kind_of_contents_is_refused(path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"file is of kind 'model' but 'checkpoint' was expected"):
        read_container(path, "checkpoint")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_is_refused_unread(tmp_path: Path, protocol: int) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    (tmp_path / "file").write_bytes(pickle.dumps(Trap(), protocol))
    with pytest.raises(FileFormatError, match=r"is a pickle or a `torch.save` archive. Such files can run code"):
        read_container(tmp_path / "file", "model")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_torch_save_file_is_refused(tmp_path: Path, zipped: bool) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "file", _use_new_zipfile_serialization=zipped)
    with pytest.raises(FileFormatError, match=r"is a pickle or a `torch.save` archive.* `model.save\(path\)`"):
        read_container(tmp_path / "file", "model")


@pytest.mark.parametrize("contents", [b"hello, world", b"\x00" * 100, b"{}"])
def test_other_files_are_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "file").write_bytes(contents)
    with pytest.raises(FileFormatError, match=r"cannot be read as a fishnets file"):
        read_container(tmp_path / "file", "model")


def test_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    starts = set()
    for length in range(0, 300, 8):
        write_container(tmp_path / "file", "model", {"padding": "x" * length}, {})
        starts.add((tmp_path / "file").read_bytes()[0])
        assert read_container(tmp_path / "file", "model")[0]["padding"] == "x" * length
    assert 0x80 in starts, "the first byte of a pickle"


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*absent"):
        read_container(tmp_path / "absent", "model")


def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file"):
        read_container(tmp_path, "model")


def test_nothing_in_the_file_is_a_pickle(path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(path.read_bytes())
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_interrupted_write_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(OSError, match="no space left"):
            write_container(path, "model", {"name": "another"}, {})
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_written_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_container(tmp_path / "file", "model", {}, {})
        assert os.umask(0o027) == 0o027, "the umask itself is left alone"
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_file_goes_into_a_folder_that_exists(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "x.fishnet", tmp_path):
        with pytest.raises(ConfigError, match="cannot be written: give the name of a file in a folder that exists"):
            write_container(path, "model", {}, {})
