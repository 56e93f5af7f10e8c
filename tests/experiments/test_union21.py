"""The reader of the supernovae's table: what it reads, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from fishnets.errors import ConfigError, FileFormatError
from fishnets.experiments.union21 import read_union21

LINES = "# a comment\n1993ah\t0.028\t35.35\t0.22\t0.13\n\n1993ag 0.05 36.68 0.17 0.13\n"
EXPECTED = r"the Union2.1 compilation of the Supernova Cosmology Project, file SCPUnion2.1_mu_vs_z.txt from https"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.txt"
    path.write_text(text)
    return path


def test_columns_are_read_and_comments_are_not(tmp_path: Path) -> None:
    table = read_union21(written(tmp_path, LINES))
    assert table.z.tolist() == [0.028, 0.05]
    assert table.mu.tolist() == [35.35, 36.68]
    assert table.sigma.tolist() == [0.22, 0.17]
    assert table.z.dtype == torch.float64


def test_a_record_names_the_table_without_its_folder(tmp_path: Path) -> None:
    found = read_union21(str(written(tmp_path, LINES))).to_dict()
    assert found == {"name": "table.txt", "sha256": hashlib.sha256(LINES.encode()).hexdigest(), "num_data": 2}
    assert str(tmp_path) not in json.dumps(found)


def test_no_path_and_no_file_name_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"A table of supernovae was expected: give --data PATH, .* {EXPECTED}"):
        read_union21(None)
    with pytest.raises(FileNotFoundError, match=f"There is no file .*nothing.txt. The table is {EXPECTED}"):
        read_union21(tmp_path / "nothing.txt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no supernovae"),
        ("# only a comment\n", "holds no supernovae"),
        ("a 0.1 38.0 0.2 0.1\nb 0.1 38.0 0.2\n", r"line 2, has 4 columns but 5 \(name, z, mu, its error, a prob"),
        ("a 0.1 38.0 nought 0.1\n", "line 1: could not convert string to float: 'nought'"),
        ("a 0.1 38.0 0.0 0.1\n", r"line 1, has \(z, mu, sigma\) = \(0.1, 38, 0\) but finite numbers with positive"),
        ("a 0.1 38.0 -0.2 0.1\n", r"= \(0.1, 38, -0.2\) but"),
        ("a -0.1 38.0 0.2 0.1\n", r"= \(-0.1, 38, 0.2\) but"),
        ("# first\na 0.1 nan 0.2 0.1\n", r"line 2, has \(z, mu, sigma\) = \(0.1, nan, 0.2\) but"),
        ("a 0.1 38.0 inf 0.1\n", r"= \(0.1, 38, inf\) but"),
    ],
)
def test_a_malformed_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileFormatError, match=f"table.txt.*{message}.*The table is {EXPECTED}"):
        read_union21(written(tmp_path, text))
