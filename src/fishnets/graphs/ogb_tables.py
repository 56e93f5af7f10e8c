"""Tables of a folder in the layout of the Open Graph Benchmark, which data sets of nodes and of graphs share.

OGB (Hu et al. 2020, arXiv:2005.00687) keeps numbers between commas, without a header, compressed with gzip; a folder
``split/<name>`` with the numbers of what is in each part; and, outside of its own downloads, a ``meta.json`` that says
whether edges are stored once for both directions and which split to take. Nothing is written and nothing is downloaded.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fishnets.errors import DataError, FileFormatError, NonFiniteError, describe_rows

__all__ = ["PARTS", "Tables", "expect_rows", "open_tables", "whole_or_float32", "with_reverses"]

PARTS = ("train", "valid", "test")
LARGEST = 2**53  # whole numbers beyond are not told apart in float64


def open_tables(root: str | Path, layout: str, known: Mapping[str, Mapping[str, str]], source: str = "") -> Tables:
    """Finds a folder and what its ``meta.json`` says.

    Args:
        root: The folder that holds ``raw`` and ``split``.
        layout: The files that were expected, for messages.
        known: What ``meta.json`` would say, for the names of folders that need none.
        source: Where the folder comes from, for the message when there is none.
    """
    root = Path(root)
    if not root.is_dir():
        message = f"There is no folder {root}. A data set in OGB's layout was expected: {layout}. {source}"
        raise FileNotFoundError(message.rstrip())
    return Tables(root, layout, _meta(root, layout, known))


@dataclass(frozen=True)
class Tables:
    """A folder in OGB's layout. Tables are named by their path without the ending, such as ``raw/edge``.

    Args:
        root: The folder.
        layout: The files that were expected, for messages.
        meta: What ``meta.json`` says.
    """

    root: Path
    layout: str
    meta: Mapping[str, Any]

    def path(self, name: str) -> Path:
        """The file of a table."""
        return self.root / f"{name}.csv.gz"

    def flag(self, name: str, default: str | None = None) -> bool:
        """A yes or no of ``meta.json``, which OGB writes as text."""
        value = str(self.meta.get(name, default))
        if value not in ("True", "False"):
            raise FileFormatError(
                f'{self.root / "meta.json"} gives "{name}" as {value} but "True" or "False" was expected.'
            )
        return value == "True"

    def table(self, name: str, dtype: type[np.floating[Any]], blank_rows: bool = False) -> NDArray[Any]:
        """Numbers of a compressed table, shape (rows, columns), an empty cell as NaN.

        A blank line is passed over or, with ``blank_rows``, the row of a table of one column whose cell is empty.
        """
        path = self.path(name)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {path}. {self.layout}.")
        try:
            try:
                return _parsed(path, dtype, blank_rows)
            except ValueError:  # an empty cell, perhaps: slower by a call for each cell, so not the first choice
                return _parsed(path, dtype, blank_rows, converters=_number)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FileFormatError(f"{path} is damaged or not compressed with gzip: {error}.") from error
        except ValueError as error:
            raise FileFormatError(
                f"{path} is not a table of numbers between commas, without a header and with as many columns in each "
                f"row: {_from_one(error)}"
            ) from error

    def whole_numbers(self, name: str, columns: int) -> NDArray[np.int64]:
        """A table of counts, nodes or graphs, shape (rows, columns)."""
        path, table = self.path(name), self.table(name, np.float64)
        if len(table) and table.shape[1] != columns:
            raise FileFormatError(f"{path} has {table.shape[1]} columns but {columns} were expected. {self.layout}.")
        _expect(path, table, _is_whole(table), "whole numbers")
        _expect(path, table, np.abs(table) <= LARGEST, "whole numbers up to 2^53")
        return table.astype(np.int64).reshape(-1, columns)

    def features(self, name: str, num_rows: int, owner: str, dtype: type[np.floating[Any]] = np.float32) -> Tensor:
        """Finite features, a row for each edge or node."""
        path, table = self.path(name), self.table(name, dtype)
        expect_rows(path, table, num_rows, owner)
        broken = np.flatnonzero(~np.isfinite(table).all(1))
        if broken.size:
            raise NonFiniteError(
                f"{path} has {broken.size} rows with empty, NaN or infinite cells: "
                f"{describe_rows((broken + 1).tolist())}. Features must be finite."
            )
        return torch.from_numpy(table)

    def optional_features(
        self, name: str, num_rows: int, owner: str, required: bool, dtype: type[np.floating[Any]] = np.float32
    ) -> Tensor | None:
        """As :meth:`features`, but None where there is no file and none is required."""
        if not required and not self.path(name).is_file():
            return None
        return self.features(name, num_rows, owner, dtype)

    def labels(self, name: str, num_rows: int, owner: str) -> Tensor:
        """Labels (rows, tasks), as many as ``meta.json`` says, as :meth:`numbers`."""
        labels, tasks = self.numbers(name, num_rows, owner), self.meta.get("num tasks")
        if tasks is not None and len(labels) and str(tasks) != str(labels.shape[1]):
            raise DataError(
                f'{self.path(name)} has {labels.shape[1]} columns but {self.root / "meta.json"} gives "num tasks" as '
                f"{tasks}, one column for each task."
            )
        return labels

    def numbers(self, name: str, num_rows: int, owner: str) -> Tensor:
        """What is known of nodes or graphs (rows, columns): int64 if all are whole, else float32, NaN if unknown."""
        path, table = self.path(name), self.table(name, np.float64, blank_rows=True)
        expect_rows(path, table, num_rows, owner)
        _expect(path, table, ~np.isfinite(table) | (np.abs(table) <= LARGEST), "numbers up to 2^53")
        return whole_or_float32(torch.from_numpy(table))

    def split(self) -> str:
        """The folder of the split that ``meta.json`` names or, where it names none, the only one."""
        if "split" in self.meta:
            return f"split/{self.meta['split']}"
        folders = sorted(path.name for path in self.root.glob("split/*") if path.is_dir())
        if len(folders) != 1:
            raise DataError(
                f"{self.root / 'split'} was expected to hold one split but has {', '.join(folders) or 'none'}. "
                f'Name the one to take as "split" in {self.root / "meta.json"}. {self.layout}.'
            )
        return f"split/{folders[0]}"

    def parts(self, total: int, owner: str) -> dict[str, NDArray[np.int64]]:
        """What is in each part of the split, as listed: numbers below ``total``, none in two parts."""
        folder = self.split()
        parts = {part: self._part(f"{folder}/{part}", total, owner) for part in PARTS}
        used = np.bincount(np.concatenate([np.unique(numbers) for numbers in parts.values()]), minlength=total)
        shared = np.flatnonzero(used > 1).tolist()
        if shared:
            raise DataError(
                f"{self.root / folder} puts {len(shared)} {owner}s into more than one part: {describe_rows(shared)}."
            )
        return parts

    def _part(self, name: str, total: int, owner: str) -> NDArray[np.int64]:
        numbers = self.whole_numbers(name, columns=1)[:, 0]
        strangers = numbers[(numbers < 0) | (numbers >= total)]
        if strangers.size:
            raise DataError(
                f"{self.path(name)} lists {strangers.size} {owner}s that do not exist: "
                f"{describe_rows(strangers.tolist())}. num-node-list.csv.gz counts {total} {owner}s, 0 to {total - 1}."
            )
        return numbers


def expect_rows(path: Path, table: NDArray[Any], num_rows: int, owner: str) -> None:
    """Raises :class:`DataError` unless a table has a row for each of its owners."""
    if len(table) != num_rows:
        raise DataError(f"{path} has {len(table)} rows but {num_rows} were expected, one for each {owner}.")


def whole_or_float32(numbers: Tensor) -> Tensor:
    """Numbers as int64 where all are whole, else as float32.

    Example:
        >>> whole_or_float32(torch.tensor([2.0, 0.0])), whole_or_float32(torch.tensor([2.0, 0.5]))
        (tensor([2, 0]), tensor([2.0000, 0.5000]))
    """
    return numbers.to(torch.int64 if _is_whole(numbers.numpy()).all() else torch.float32)


def with_reverses(edges: NDArray[np.int64], features: Tensor | None) -> tuple[NDArray[np.int64], Tensor | None]:
    """Edges (2 E, 2), each followed by its reverse, and their features (2 E, d), the same for both.

    Example:
        >>> with_reverses(np.array([[0, 1], [2, 1]]), None)[0].tolist()
        [[0, 1], [1, 0], [2, 1], [1, 2]]
    """
    # interleaved, as in OGB: halves of the list are then halves of the undirected edges
    both = np.stack([edges, edges[:, ::-1]], axis=1).reshape(-1, 2)
    return both, None if features is None else features.repeat_interleave(2, dim=0)


def _meta(root: Path, layout: str, known: Mapping[str, Mapping[str, str]]) -> Mapping[str, Any]:
    """What ``meta.json`` says or, without one, what is known of OGB's own folders."""
    path = root / "meta.json"
    if not path.is_file():
        if root.resolve().name in known:
            return known[root.resolve().name]
        raise FileNotFoundError(
            f"There is no file {path}, which says at least whether edges are stored once for both directions: "
            f'{{"add_inverse_edge": "True"}} or "False". Only folders named {" or ".join(known)} need none. {layout}.'
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON: {error}.") from error
    if not isinstance(meta, dict):
        raise FileFormatError(f"{path} holds a {type(meta).__name__} but an object with names and values was expected.")
    return meta


def _expect(path: Path, table: NDArray[Any], fits: NDArray[np.bool_], expected: str) -> None:
    """Raises :class:`FileFormatError` with the first row of a table that does not fit."""
    broken = np.flatnonzero(~fits.all(1))
    if broken.size:
        raise FileFormatError(f"{path}, row {broken[0] + 1}, is {table[broken[0]]} but {expected} were expected.")


def _is_whole(table: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    whole: NDArray[np.bool_] = np.isfinite(table) & (table == np.rint(table))
    return whole


def _from_one(error: ValueError) -> str:
    """What NumPy says, which counts rows from 0, with rows as an editor counts them."""
    return re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + 1}", str(error))


def _number(cell: str) -> float:
    return math.nan if cell in ("", '""') else float(cell)


def _parsed(path: Path, dtype: type[np.floating[Any]], blank_rows: bool, **options: Any) -> NDArray[Any]:
    with gzip.open(path) as handle:
        if not handle.peek(1).strip():  # NumPy warns of a table without rows
            return np.empty((0, 0), dtype)
        lines: Iterable[str] = io.TextIOWrapper(handle, encoding="utf-8")
        if blank_rows and b"," not in handle.peek(1).split(b"\n")[0]:
            lines = (line if line.strip() else "nan" for line in lines)
        return np.loadtxt(lines, dtype, comments=None, delimiter=",", ndmin=2, **options)
