"""Readers and the ROC-AUC against the `ogb` package, where that is installed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fishnets.graphs.datasets import read_node_dataset
from fishnets.graphs.graph_datasets import read_graph_dataset
from fishnets.graphs.metrics import roc_auc


@pytest.fixture
def ogb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("OUTDATED_IGNORE", "1")
    return pytest.importorskip("ogb", reason="compares with the ogb package")


@pytest.fixture
def real_data(tmp_path: Path) -> Path:
    """A copy: ogb writes beside what it reads."""
    if "FISHNETS_DATA" not in os.environ:
        pytest.skip("needs real data; set FISHNETS_DATA to the folder that holds ogbg_molhiv and string_yeast")
    for name in ("ogbg_molhiv", "string_yeast"):
        shutil.copytree(Path(os.environ["FISHNETS_DATA"]) / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def trusted() -> Any:
    """What ogb's own files hold, which it reads without saying so."""
    from torch_geometric.data.data import Data, DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
        yield


def test_areas_are_those_of_the_evaluator(ogb: ModuleType) -> None:
    from ogb.nodeproppred import Evaluator

    generator = torch.Generator().manual_seed(0)
    score = torch.randint(20, (300, 112), generator=generator).float()  # with ties
    label = (torch.rand(300, 112, generator=generator) < 0.1).long()
    label[:, 5] = 0  # skipped, as no positive is in it
    found = Evaluator("ogbn-proteins").eval({"y_true": label, "y_pred": score})["rocauc"]
    assert float(roc_auc(score, label)) == pytest.approx(found, abs=1e-12)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # in ogb
def test_molecules_are_those_that_ogb_reads(ogb: ModuleType, real_data: Path, trusted: None) -> None:
    from ogb.graphproppred import PygGraphPropPredDataset

    ours = read_graph_dataset(real_data / "ogbg_molhiv")
    theirs = PygGraphPropPredDataset("ogbg-molhiv", root=str(real_data))
    for name, rows in theirs.get_idx_split().items():
        assert torch.equal(ours.parts[name], rows)
    for i in range(0, len(ours), 97):
        one, other = theirs[i], ours.batch(torch.tensor([i]))
        order = one.edge_index[1].argsort(stable=True)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index[:, order], other.edge_index)
        assert torch.equal(one.edge_attr[order], other.edge_attr)
        assert torch.equal(one.y, other.y)


def test_proteins_are_those_that_ogb_reads(ogb: ModuleType, real_data: Path, trusted: None) -> None:
    from ogb.nodeproppred import PygNodePropPredDataset

    folder = real_data / "string_yeast"
    meta = json.loads((folder / "meta.json").read_text()) | {"dir_path": str(folder)}
    theirs = PygNodePropPredDataset("string-yeast", root=str(real_data), meta_dict=meta)
    one, other = theirs[0], read_node_dataset(folder)
    assert torch.equal(one.edge_index, other.edge_index)
    assert torch.equal(one.edge_attr, other.edge_attr)
    assert torch.equal(one.y, other.y)
    for name, rows in theirs.get_idx_split().items():
        assert torch.equal(other[f"{name}_mask"].nonzero().flatten(), rows.sort().values)
