"""Union2.1: the Supernova Cosmology Project's table of 580 type Ia supernovae, read from its published file.

The file is not part of the package. Its lines hold a name, the redshift, the distance modulus, its error and a
probability that is not used here, separated by white space; lines that start with ``#`` are comments.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fishnets.errors import ConfigError, FileFormatError

__all__ = ["Table", "read_union21"]

EXPECTED = (
    "the Union2.1 compilation of the Supernova Cosmology Project, file SCPUnion2.1_mu_vs_z.txt from "
    "https://supernova.lbl.gov/Union/"
)
NUM_COLUMNS = 5


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of a table of supernovae, and what tells one table from another.

    Args:
        name: Name of the file, without its folder.
        z: Redshifts, float64, shape (n,).
        mu: Distance moduli in magnitudes, float64, shape (n,).
        sigma: Their errors, float64, shape (n,).
        sha256: Hash of the file's contents.
    """

    name: str
    z: Tensor
    mu: Tensor
    sigma: Tensor
    sha256: str

    def to_dict(self) -> dict[str, Any]:
        """What a record says of the table: plain JSON values, no path."""
        return {"name": self.name, "sha256": self.sha256, "num_data": len(self.z)}


def read_union21(path: str | Path | None) -> Table:
    """Reads the table, or says which file is expected and what is wrong with this one.

    Args:
        path: The file; None raises with the name of the one to get.

    Returns:
        The table.
    """
    if path is None:
        raise ConfigError(f"A table of supernovae was expected: give --data PATH, where PATH is {EXPECTED}.")
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}. The table is {EXPECTED}.")
    contents = Path(path).read_bytes()
    lines = contents.decode("utf-8", errors="replace").splitlines()
    rows = [_row(path, i, line) for i, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not rows:
        raise FileFormatError(f"{path} holds no supernovae. The table is {EXPECTED}.")
    z, mu, sigma = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return Table(Path(path).name, z, mu, sigma, hashlib.sha256(contents).hexdigest())


def _row(path: str | Path, number: int, line: str) -> tuple[float, ...]:
    """Redshift, modulus and error of one line, refused where they cannot be."""
    cells = line.split()
    if len(cells) != NUM_COLUMNS:
        raise FileFormatError(
            f"{path}, line {number}, has {len(cells)} columns but {NUM_COLUMNS} (name, z, mu, its error, a "
            f"probability) were expected. The table is {EXPECTED}."
        )
    try:
        z, mu, sigma = (float(cell) for cell in cells[1:4])
    except ValueError as error:
        raise FileFormatError(f"{path}, line {number}: {error}. The table is {EXPECTED}.") from error
    if not all(math.isfinite(x) for x in (z, mu, sigma)) or z <= 0 or sigma <= 0:
        raise FileFormatError(
            f"{path}, line {number}, has (z, mu, sigma) = ({z:g}, {mu:g}, {sigma:g}) but finite numbers with positive "
            f"z and sigma were expected. The table is {EXPECTED}."
        )
    return z, mu, sigma
