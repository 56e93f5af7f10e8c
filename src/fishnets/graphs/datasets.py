"""Graphs whose nodes carry labels, read from a folder in the layout of the Open Graph Benchmark.

OGB (Hu et al. 2020, arXiv:2005.00687) keeps one graph in tables without a header, one row for each edge or node::

    raw/edge.csv.gz            source and target of every stored edge, counted from 0
    raw/edge-feat.csv.gz       its features                                  (unless meta.json says there are none)
    raw/node-label.csv.gz      one column for each task; an empty cell is a label that is not known
    raw/node-feat.csv.gz       features of the nodes                                                     (optional)
    raw/node_<name>.csv.gz     more about the nodes, such as node_species                                (optional)
    raw/num-node-list.csv.gz, raw/num-edge-list.csv.gz            how many nodes and stored edges there are
    split/<name>/train.csv.gz, valid.csv.gz, test.csv.gz          the nodes of each part
    meta.json                  whether edges are stored once for both directions, and which split to take

OGB's own downloads have no ``meta.json``: its values are known here for the folders ``ogbn_proteins`` and
``ogbn_arxiv``. Nothing is written and nothing is downloaded.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fishnets.errors import DataError, FileFormatError, MissingExtraError, NonFiniteError, ShapeError, describe_rows

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["read_node_dataset", "sum_of_edges"]

LAYOUT = (
    "OGB's layout is raw/{edge,edge-feat,node-label,num-node-list,num-edge-list}.csv.gz, "
    "split/<name>/{train,valid,test}.csv.gz and meta.json"
)
NAMES = ("add_inverse_edge", "has_edge_attr", "has_node_attr", "split")
KNOWN = {  # as in ogb/nodeproppred/master.csv
    "ogbn_proteins": dict(zip(NAMES, ("True", "True", "False", "species"), strict=True)),
    "ogbn_arxiv": dict(zip(NAMES, ("False", "False", "True", "time"), strict=True)),
}
PARTS = ("train", "valid", "test")


def read_node_dataset(root: str | Path) -> Data:
    """Reads a graph with its node labels and its split.

    Where ``meta.json`` says ``add_inverse_edge``, every stored edge is followed by its reverse, with the same features:
    the order OGB's own reader gives.

    Args:
        root: The folder that holds ``raw`` and ``split``, in the layout this module describes.

    Returns:
        A ``torch_geometric.data.Data`` of N nodes and E directed edges with ``edge_index`` (2, E), ``edge_attr``
        float32 (E, d) or None, ``x`` float32 (N, f) or None, ``y`` (N, tasks), one entry (N, columns) for each
        ``raw/node_<name>.csv.gz``, and ``train_mask``, ``valid_mask``, ``test_mask`` (N,). Labels are int64 or, where
        some are unknown (NaN) or not whole, float32. A node may be in no part of the split, but not in two.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise MissingExtraError("torch_geometric", "graphs", "Reading graphs") from error
    root = Path(root)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}. A data set in OGB's layout was expected: {LAYOUT}.")
    meta, raw = _meta(root), root / "raw"
    num_nodes = _count(raw / "num-node-list.csv.gz")
    edge_index, edge_attr = _edges(raw, meta, num_nodes)
    data = Data(edge_index=edge_index, edge_attr=edge_attr, num_nodes=num_nodes)
    data.x = _features(raw / "node-feat.csv.gz", num_nodes, "node", _flag(root, meta, "has_node_attr", "False"))
    data.y = _labels(raw / "node-label.csv.gz", num_nodes)
    for path in sorted(raw.glob("node_*.csv.gz")):
        data[path.name.removesuffix(".csv.gz")] = _labels(path, num_nodes)
    for part, mask in _masks(_split_folder(root, meta), num_nodes).items():
        data[f"{part}_mask"] = mask
    return data


def sum_of_edges(data: Data) -> Tensor:
    r"""Sums the features of the edges that end in each node: the node features of ogbn-proteins, which has none.

    .. math:: x_i = \sum_{(j, i) \in E} e_{ji}

    Args:
        data: A graph of N nodes with ``edge_index`` (2, E) and ``edge_attr`` (E, d).

    Returns:
        Features of the nodes, shape (N, d); zero where no edge ends.

    Example:
        >>> from torch_geometric.data import Data
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 1]])
        >>> sum_of_edges(Data(edge_index=edge_index, edge_attr=torch.tensor([[1.0], [2.0], [4.0]]), num_nodes=3))
        tensor([[0.],
                [5.],
                [2.]])
    """
    edge_index, edge_attr = data.edge_index, data.edge_attr
    if edge_attr is None:
        raise DataError("`data` has no `edge_attr`, so there are no edge features to sum.")
    if edge_attr.ndim != 2 or edge_attr.shape[0] != edge_index.shape[1]:
        raise ShapeError(
            f"`edge_attr` has shape {tuple(edge_attr.shape)} but ({edge_index.shape[1]}, d) was expected, a row for "
            "each edge."
        )
    total: Tensor = edge_attr.new_zeros(data.num_nodes, edge_attr.shape[1])
    return total.index_add(0, edge_index[1], edge_attr)


def _meta(root: Path) -> dict[str, Any]:
    """What ``meta.json`` says or, without one, what is known of OGB's own folders."""
    path = root / "meta.json"
    if not path.is_file():
        if root.resolve().name in KNOWN:
            return dict(KNOWN[root.resolve().name])
        raise FileNotFoundError(
            f"There is no file {path}, which says at least whether edges are stored once for both directions: "
            f'{{"add_inverse_edge": "True"}} or "False". Only folders named {" or ".join(KNOWN)} need none. {LAYOUT}.'
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON: {error}.") from error
    if not isinstance(meta, dict):
        raise FileFormatError(f"{path} holds a {type(meta).__name__} but an object with names and values was expected.")
    return meta


def _flag(root: Path, meta: dict[str, Any], name: str, default: str | None = None) -> bool:
    """A yes or no of ``meta.json``, which OGB writes as text."""
    value = str(meta.get(name, default))
    if value not in ("True", "False"):
        raise FileFormatError(f'{root / "meta.json"} gives "{name}" as {value} but "True" or "False" was expected.')
    return value == "True"


def _edges(raw: Path, meta: dict[str, Any], num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Directed edges (2, E) and their features (E, d)."""
    both_directions = _flag(raw.parent, meta, "add_inverse_edge")
    num_stored = _count(raw / "num-edge-list.csv.gz")
    edges = _whole_numbers(raw / "edge.csv.gz", columns=2)
    _expect_rows(raw / "edge.csv.gz", edges, num_stored, "edge that num-edge-list.csv.gz counts")
    strangers = np.flatnonzero(((edges < 0) | (edges >= num_nodes)).any(1))
    if strangers.size:
        first = edges[strangers[0]].tolist()
        raise DataError(
            f"{raw / 'edge.csv.gz'} has {strangers.size} edges with nodes that do not exist, the first in row "
            f"{strangers[0] + 1}: {first[0]}, {first[1]}. "
            f"num-node-list.csv.gz counts {num_nodes} nodes, 0 to {num_nodes - 1}."
        )
    has_features = _flag(raw.parent, meta, "has_edge_attr", "True")
    features = _features(raw / "edge-feat.csv.gz", num_stored, "edge", has_features)
    if both_directions:  # reverses interleaved, as in OGB: halves of the list are then halves of the undirected edges
        edges = np.stack([edges, edges[:, ::-1]], axis=1).reshape(-1, 2)
        features = None if features is None else features.repeat_interleave(2, dim=0)
    return torch.from_numpy(np.ascontiguousarray(edges.T)), features


def _features(path: Path, num_rows: int, owner: str, required: bool) -> Tensor | None:
    """Finite float32 features, a row for each edge or node; None where there is no file and none is required."""
    if not required and not path.is_file():
        return None
    table = _table(path, np.float32)
    _expect_rows(path, table, num_rows, owner)
    broken = np.flatnonzero(~np.isfinite(table).all(1))
    if broken.size:
        raise NonFiniteError(
            f"{path} has {broken.size} rows with empty, NaN or infinite cells: {describe_rows((broken + 1).tolist())}. "
            "Features must be finite."
        )
    return torch.from_numpy(table)


def _labels(path: Path, num_nodes: int) -> Tensor:
    """Labels (N, columns): int64 where all are whole, else float32 with NaN for the unknown."""
    table = _table(path, np.float64)
    _expect_rows(path, table, num_nodes, "node")
    return torch.from_numpy(table).to(torch.int64 if _is_whole(table).all() else torch.float32)


def _split_folder(root: Path, meta: dict[str, Any]) -> Path:
    """The folder of the split that ``meta.json`` names or, where it names none, the only one."""
    if "split" in meta:
        return root / "split" / str(meta["split"])
    folders = sorted(path for path in root.glob("split/*") if path.is_dir())
    if len(folders) != 1:
        found = ", ".join(path.name for path in folders) or "none"
        raise DataError(
            f'{root / "split"} was expected to hold one split but has {found}. Name the one to take as "split" in '
            f"{root / 'meta.json'}. {LAYOUT}."
        )
    return folders[0]


def _masks(folder: Path, num_nodes: int) -> dict[str, Tensor]:
    """The nodes of each part of a split, bool (N,)."""
    masks = {}
    for part in PARTS:
        path = folder / f"{part}.csv.gz"
        nodes = _whole_numbers(path, columns=1)[:, 0]
        strangers = nodes[(nodes < 0) | (nodes >= num_nodes)]
        if strangers.size:
            raise DataError(
                f"{path} lists {strangers.size} nodes that do not exist: {describe_rows(strangers.tolist())}. "
                f"num-node-list.csv.gz counts {num_nodes} nodes, 0 to {num_nodes - 1}."
            )
        masks[part] = torch.zeros(num_nodes, dtype=torch.bool)
        masks[part][torch.from_numpy(nodes)] = True
    shared = torch.stack(list(masks.values())).sum(0).gt(1).nonzero().flatten().tolist()
    if shared:
        raise DataError(f"{folder} puts {len(shared)} nodes into more than one part: {describe_rows(shared)}.")
    return masks


def _count(path: Path) -> int:
    """The one number of a file that counts nodes or edges."""
    table = _whole_numbers(path, columns=1)
    if table.size != 1 or table[0, 0] < 0:
        raise DataError(
            f"{path} has the rows [{describe_rows(table[:, 0].tolist())}] but one count was expected: a folder with "
            "labelled nodes holds one graph."
        )
    return int(table[0, 0])


def _expect_rows(path: Path, table: NDArray[Any], num_rows: int, owner: str) -> None:
    if len(table) != num_rows:
        raise DataError(f"{path} has {len(table)} rows but {num_rows} were expected, one for each {owner}.")


def _whole_numbers(path: Path, columns: int) -> NDArray[np.int64]:
    """A table of counts or of nodes, shape (rows, columns)."""
    table = _table(path, np.float64)
    if len(table) and table.shape[1] != columns:
        raise FileFormatError(f"{path} has {table.shape[1]} columns but {columns} were expected. {LAYOUT}.")
    broken = np.flatnonzero(~_is_whole(table).all(1))
    if broken.size:
        raise FileFormatError(f"{path}, row {broken[0] + 1}, is {table[broken[0]]} but whole numbers were expected.")
    return table.astype(np.int64).reshape(-1, columns)


def _is_whole(table: NDArray[np.float64]) -> NDArray[np.bool_]:
    whole: NDArray[np.bool_] = np.isfinite(table) & (table == np.rint(table))
    return whole


def _table(path: Path, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """Numbers of a compressed table, shape (rows, columns), an empty cell as NaN."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. {LAYOUT}.")
    try:
        try:
            return _parsed(path, dtype)
        except ValueError:  # an empty cell, perhaps: slower by a call for each cell, so not the first choice
            return _parsed(path, dtype, converters=lambda cell: float(cell or "nan"))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileFormatError(f"{path} is damaged or not compressed with gzip: {error}.") from error
    except ValueError as error:
        raise FileFormatError(
            f"{path} is not a table of numbers between commas, without a header and with as many columns in each row: "
            f"{error}"
        ) from error


def _parsed(path: Path, dtype: type[np.floating[Any]], **options: Any) -> NDArray[Any]:
    with gzip.open(path) as handle:
        if not handle.peek(1).strip():  # NumPy warns of a table without rows
            return np.empty((0, 0), dtype)
        lines = io.TextIOWrapper(handle, encoding="utf-8")
        return np.loadtxt(lines, dtype, comments=None, delimiter=",", ndmin=2, **options)
