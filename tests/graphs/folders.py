"""A small graph in OGB's layout, for tests that read one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

__all__ = ["NODES", "protein_folder"]

NODES, EDGES, LABELS = 40, 150, 3


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
    root = parent / "small-graph"
    for name, rows in tables.items():
        path = root / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(",".join(map(str, row)) + "\n" for row in rows).encode()))
    meta = {"add_inverse_edge": "True", "has_edge_attr": "True", "has_node_attr": "False", "split": "random"}
    (root / "meta.json").write_text(json.dumps(meta))
    return root
