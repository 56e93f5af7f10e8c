"""Papers that cite each other, read from one file of plain arrays, and split by class.

The files of Bojchevski and Guennemann (2018, arXiv:1707.03815), such as ``dblp.npz`` and ``cora_ml.npz``, keep who
cites whom and the words of each paper as compressed rows: entries ``indptr[i]:indptr[i + 1]`` are those of paper i. ::

    adj_indptr (N + 1,), adj_indices (E,)                         papers that paper i cites
    attr_indptr (N + 1,), attr_indices, attr_data (entries,)      its words and their weights
    attr_shape (2,)                                               N and the number of words
    labels (N,)                                                   its field

They come without a split. Nothing is unpickled, written or downloaded.
"""

from __future__ import annotations

import copy
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from fishnets.errors import ConfigError, DataError, FileFormatError, NonFiniteError, ShapeError, describe_rows
from fishnets.rows import offsets_from_sizes

__all__ = ["random_split", "read_citation"]

WHOLE = ("adj_indptr", "adj_indices", "attr_indptr", "attr_indices", "attr_shape", "labels")
NAMES = (*WHOLE, "attr_data")
SOURCE = "Such files are dblp.npz and cora_ml.npz of https://github.com/abojchevski/graph2gauss/tree/master/data"


def read_citation(path: str | Path) -> Data:
    """Reads papers, their words, their fields, and who cites whom or is cited.

    Args:
        path: An ``.npz`` file with the arrays this module describes; others in it are not read.

    Returns:
        A ``torch_geometric.data.Data`` of N papers with ``x`` float32 (N, words), weights as stored, ``edge_index``
        (2, E), every citation once in each direction, none of a paper by itself, in the order of targets and then of
        sources, and ``y`` int64 (N,).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:  # 0 cites 1, and 1 cites 0 and 2
        ...     np.savez(Path(folder) / "three.npz", adj_indptr=[0, 1, 3, 3], adj_indices=[1, 0, 2],
        ...              attr_indptr=[0, 1, 1, 2], attr_indices=[1, 0], attr_data=[0.5, 1.0], attr_shape=[3, 2],
        ...              labels=[0, 1, 1])
        ...     data = read_citation(Path(folder) / "three.npz")
        >>> data.x.tolist(), data.edge_index.tolist(), data.y.tolist()
        ([[0.0, 0.5], [0.0, 0.0], [1.0, 0.0]], [[1, 0, 2, 1], [0, 1, 1, 2]], [0, 1, 1])
    """
    path = Path(path)
    arrays = _arrays(path)
    num_nodes = len(arrays["labels"])
    shape = arrays["attr_shape"].tolist()
    if len(shape) != 2 or shape[0] != num_nodes or shape[1] < 0:
        raise DataError(
            f"{path}: `attr_shape` is {shape} but [{num_nodes}, words] was expected, a row for each of the "
            f"{num_nodes} `labels`."
        )
    if num_nodes and arrays["labels"].min() < 0:
        raise DataError(f"{path}: `labels` go down to {arrays['labels'].min()} but classes from 0 were expected.")
    citing, cited = _entries(path, arrays, "adj", num_nodes, num_nodes)
    return Data(
        x=_words(path, arrays, num_nodes, shape[1]),
        edge_index=_both_directions(citing, cited, num_nodes),
        y=torch.from_numpy(arrays["labels"]),
    )


def random_split(data: Data, seed: int, train: float = 0.6, valid: float = 0.2) -> Data:
    """Draws training, validation and test nodes, each class in the same proportions.

    Of a class of n nodes, ``round(train * n)`` are for training, ``round((train + valid) * n)`` for training or
    validation, and the rest for testing.

    Args:
        data: A graph with classes ``y``, int64 (N,), from 0.
        seed: Seed of the draw, which is the same on every device.
        train: Fraction for training.
        valid: Fraction for validation.

    Returns:
        The graph, sharing its tensors, with ``train_mask``, ``valid_mask`` and ``test_mask``, bool (N,): every node is
        in one.

    Example:
        >>> split = random_split(Data(y=torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1])), seed=1)
        >>> [split.y[mask].bincount().tolist() for mask in (split.train_mask, split.valid_mask, split.test_mask)]
        [[3, 3], [1, 1], [1, 1]]
    """
    if not (train > 0 and valid > 0 and train + valid < 1):
        raise ConfigError(
            f"`train` is {train} and `valid` is {valid} but positive fractions that leave some nodes for testing were "
            "expected."
        )
    classes = _classes(data)
    shuffled = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    order = shuffled[torch.argsort(classes[shuffled], stable=True)]  # class by class, shuffled within each
    sizes = classes.bincount()
    of_class = classes[order]
    place = torch.arange(len(classes)) - offsets_from_sizes(sizes)[of_class]
    # (2, N): where the training nodes of each node's class end, and where the validation nodes do
    bounds = torch.stack([(sizes.double() * share).round() for share in (train, train + valid)])[:, of_class]
    part = torch.empty_like(classes)
    part[order] = (place >= bounds).sum(0)  # 0, 1, 2
    split = copy.copy(data)
    for number, name in enumerate(("train", "valid", "test")):
        split[f"{name}_mask"] = (part == number).to(data.y.device)
    return split


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name, indices as int64 and weights as float32."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. An .npz file of citations was expected. {SOURCE}.")
    if not zipfile.is_zipfile(path):
        raise FileFormatError(f"{path} is damaged or not an .npz file. {SOURCE}.")
    with np.load(path, allow_pickle=False) as stored:
        missing = [name for name in NAMES if name not in stored.files]
        if missing:
            found = ", ".join(stored.files) or "none"
            raise DataError(f"{path} has the arrays {found} but not {', '.join(missing)}. {SOURCE}.")
        return {name: _array(path, stored, name) for name in NAMES}


def _array(path: Path, stored: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    try:
        array = stored[name]
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileFormatError(f"{path}: `{name}` is damaged or not an array of plain numbers: {error}") from error
    kinds, words = ("iu", "whole numbers") if name in WHOLE else ("iuf", "numbers")
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise DataError(
            f"{path}: `{name}` has shape {array.shape} and dtype {array.dtype} but one dimension and {words} were "
            "expected."
        )
    return array.astype(np.int64 if name in WHOLE else np.float32)


def _entries(
    path: Path, arrays: dict[str, NDArray[Any]], name: str, rows: int, columns: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of each entry of a matrix in compressed rows."""
    bounds, column = arrays[f"{name}_indptr"], arrays[f"{name}_indices"]
    if len(bounds) != rows + 1 or bounds[0] != 0 or bounds[-1] != len(column) or (np.diff(bounds) < 0).any():
        ends = f"from {bounds[0]} to {bounds[-1]}" if len(bounds) else "without bounds"
        raise DataError(
            f"{path}: `{name}_indptr` has {len(bounds)} bounds {ends} but {rows + 1} that never decrease, from 0 to "
            f"{len(column)}, were expected: one more than `labels`, and as many entries as `{name}_indices`."
        )
    strangers = column[(column < 0) | (column >= columns)].tolist()
    if strangers:
        raise DataError(
            f"{path}: `{name}_indices` has {len(strangers)} entries outside 0 to {columns - 1}: "
            f"{describe_rows(strangers)}."
        )
    return np.repeat(np.arange(rows), np.diff(bounds)), column


def _words(path: Path, arrays: dict[str, NDArray[Any]], num_nodes: int, num_words: int) -> Tensor:
    """Weights of the words of each paper, float32 (N, words); those of a word listed twice add."""
    row, column = _entries(path, arrays, "attr", num_nodes, num_words)
    weights = arrays["attr_data"]
    if len(weights) != len(column):
        raise DataError(
            f"{path}: `attr_data` has {len(weights)} entries but {len(column)} were expected, one for each of "
            "`attr_indices`."
        )
    broken = np.flatnonzero(~np.isfinite(weights)).tolist()
    if broken:
        raise NonFiniteError(
            f"{path}: `attr_data` has {len(broken)} NaN or infinite entries: {describe_rows(broken)}. Weights must be "
            "finite."
        )
    places = torch.from_numpy(row), torch.from_numpy(column)
    return torch.zeros(num_nodes, num_words).index_put(places, torch.from_numpy(weights), accumulate=True)


def _both_directions(source: NDArray[np.int64], target: NDArray[np.int64], num_nodes: int) -> Tensor:
    """Edges in both directions (2, E), each once, without those from a node to itself, by target and then source."""
    source, target = np.concatenate([source, target]), np.concatenate([target, source])
    apart = source != target
    edge = np.unique(target[apart] * num_nodes + source[apart])
    return torch.from_numpy(np.stack([edge % num_nodes, edge // num_nodes]))


def _classes(data: Data) -> Tensor:
    y = data.y
    if not isinstance(y, Tensor) or y.ndim != 1 or y.dtype != torch.int64:
        found = f"has shape {tuple(y.shape)} and dtype {y.dtype}" if isinstance(y, Tensor) else f"is {y}"
        raise ShapeError(f"`data.y` {found} but a class for each node, (N,) and torch.int64, was expected.")
    unknown = (y < 0).nonzero().flatten().tolist()
    if unknown:
        raise DataError(f"`data.y` is negative at {describe_rows(unknown)} but classes from 0 were expected.")
    return y.cpu()
