"""Small data sets in OGB's layout, for tests that read one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

__all__ = ["LABELS", "MOLECULES", "NODES", "molecule_folder", "protein_folder", "write_folder"]

NODES, EDGES, LABELS = 40, 150, 3
MOLECULES = 24
ATOM_CATEGORIES = (92, 1, 11, 9, 5, 3, 6, 2, 2)  # those that ogbg-molhiv has
BOND_CATEGORIES = (4, 1, 2)


def protein_folder(parent: Path) -> Path:
    """Random edges with eight scores, labels and a split, in a new folder."""
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(NODES, (EDGES, 2), generator=generator)
    labels = torch.randint(2, (NODES, LABELS), generator=generator)
    scores = torch.rand((EDGES, 8), generator=generator)
    parts = {"train": range(20), "valid": range(20, 30), "test": range(30, 40)}
    tables = {
        "raw/edge": edges.tolist(),
        "raw/edge-feat": scores.tolist(),
        "raw/node-label": labels.tolist(),
        "raw/num-node-list": [[NODES]],
        "raw/num-edge-list": [[EDGES]],
        **{f"split/random/{name}": [[i] for i in rows] for name, rows in parts.items()},
    }
    meta = {"add_inverse_edge": "True", "has_edge_attr": "True", "has_node_attr": "False", "split": "random"}
    return _written(parent / "small-graph", tables, meta)


def molecule_folder(parent: Path) -> Path:
    """Chains and rings of atoms of random kinds, in a new folder; every other one is positive, in every part."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 9, (MOLECULES,), generator=generator).tolist()
    bonds = [
        [[i, i + 1] for i in range(size - 1)] + [[size - 1, 0]] * (number % 3 == 0 and size > 2)
        for number, size in enumerate(sizes)
    ]
    num_bonds = sum(map(len, bonds))
    parts = {"train": range(8, MOLECULES), "valid": range(4), "test": range(4, 8)}
    tables = {
        "raw/edge": [pair for pairs in bonds for pair in pairs],
        "raw/edge-feat": _categories(num_bonds, BOND_CATEGORIES, generator),
        "raw/node-feat": _categories(sum(sizes), ATOM_CATEGORIES, generator),
        "raw/graph-label": [[i % 2] for i in range(MOLECULES)],
        "raw/num-node-list": [[size] for size in sizes],
        "raw/num-edge-list": [[len(pairs)] for pairs in bonds],
        **{f"split/scaffold/{name}": [[i] for i in rows] for name, rows in parts.items()},
    }
    meta = {"add_inverse_edge": "True", "has_edge_attr": "True", "has_node_attr": "True", "split": "scaffold"}
    return _written(parent / "small-molecules", tables, meta)


def _categories(rows: int, limits: Sequence[int], generator: torch.Generator) -> list[list[int]]:
    columns: list[torch.Tensor] = [torch.randint(limit, (rows,), generator=generator) for limit in limits]
    return torch.stack(columns, 1).tolist()


def _written(root: Path, tables: dict[str, list[list[float]]], meta: dict[str, str]) -> Path:
    texts = {name: "".join(",".join(map(str, row)) + "\n" for row in rows) for name, rows in tables.items()}
    return write_folder(root, texts, meta)


def write_folder(root: Path, texts: Mapping[str, str | None], meta: object) -> Path:
    """Compressed tables by name, and ``meta.json``; what is None is left out."""
    for name, text in texts.items():
        if text is not None:
            path = root / f"{name}.csv.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(text.encode()))
    if meta is not None:
        (root / "meta.json").write_text(json.dumps(meta))
    return root
