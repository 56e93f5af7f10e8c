"""The reader of OGB's folders: what it reads, and what it refuses."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.graphs.folders import write_folder
from torch_geometric.data import Data

from fishnets.errors import DataError, FileFormatError, MissingExtraError, NonFiniteError, ShapeError
from fishnets.graphs.datasets import read_node_dataset, sum_of_edges

META = {"add_inverse_edge": "True", "has_edge_attr": "True", "has_node_attr": "False", "split": "species"}
FILES = {
    "raw/edge": "0,1\n2,1\n3,0\n",
    "raw/edge-feat": "0.5,0\n0.25,1\n1e-3,0.75\n",
    "raw/node-label": "0,1\n1,1\n0,0\n1,0\n0,0\n",
    "raw/node_species": "7\n7\n9\n9\n9\n",
    "raw/num-node-list": "5\n",
    "raw/num-edge-list": "3\n",
    "split/species/train": "3\n0\n",
    "split/species/valid": "1\n",
    "split/species/test": "2\n",
}


def folder(tmp_path: Path, changes: dict[str, str | None] | None = None, meta: object = META) -> Path:
    """A small graph in OGB's layout; a change of None leaves the file out."""
    return write_folder(tmp_path / "graph", FILES | (changes or {}), meta)


def test_graph_labels_and_split_are_read(tmp_path):
    data = read_node_dataset(str(folder(tmp_path)))
    data.validate()
    assert data.num_nodes == 5  # the last one has no edge
    assert data.edge_attr.dtype == torch.float32
    assert data.y.tolist() == [[0, 1], [1, 1], [0, 0], [1, 0], [0, 0]]
    assert data.y.dtype == data.edge_index.dtype == torch.int64
    assert data.node_species.tolist() == [[7], [7], [9], [9], [9]]
    assert data.x is None
    masks = [data.train_mask, data.valid_mask, data.test_mask]
    assert [mask.nonzero().flatten().tolist() for mask in masks] == [[0, 3], [1], [2]]


def test_reverse_follows_each_stored_edge_with_the_same_features(tmp_path):
    data = read_node_dataset(folder(tmp_path))
    assert data.edge_index.tolist() == [[0, 1, 2, 1, 3, 0], [1, 0, 1, 2, 0, 3]]
    rows = torch.tensor([[0.5, 0.0], [0.25, 1.0], [1e-3, 0.75]])
    assert torch.equal(data.edge_attr, rows.repeat_interleave(2, 0))
    assert data.edge_index.is_contiguous()


@pytest.mark.parametrize("value", ["False", False])
def test_directed_edges_stay_as_they_are(tmp_path, value):
    data = read_node_dataset(folder(tmp_path, meta={**META, "add_inverse_edge": value}))
    assert data.edge_index.tolist() == [[0, 2, 3], [1, 1, 0]]
    assert data.edge_attr.shape == (3, 2)


def test_node_features_are_read_and_edge_features_may_be_absent(tmp_path):
    changes = {"raw/edge-feat": None, "raw/node-feat": "1,2\n3,4\n5,6\n7,8\n-9,.5\n"}
    data = read_node_dataset(folder(tmp_path, changes, {**META, "has_edge_attr": "False", "has_node_attr": "True"}))
    assert data.x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8], [-9, 0.5]]
    assert data.x.dtype == torch.float32
    assert data.edge_attr is None


def test_empty_label_is_unknown(tmp_path):
    y = read_node_dataset(folder(tmp_path, {"raw/node-label": ",1,0\n1,,\n,,\nnan,0,1\n0,0,\n"})).y
    nan = math.nan
    expected = [[nan, 1, 0], [1, nan, nan], [nan, nan, nan], [nan, 0, 1], [0, 0, nan]]
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float32), equal_nan=True)


def test_line_ends_and_a_missing_last_one_do_not_matter(tmp_path):
    plain = read_node_dataset(folder(tmp_path / "plain"))
    windows = {name: text.replace("\n", "\r\n") for name, text in FILES.items()}
    cut = {name: text.removesuffix("\n") for name, text in FILES.items()}
    for i, changes in enumerate((windows, cut)):
        other = read_node_dataset(folder(tmp_path / str(i), changes))
        assert all(torch.equal(other[key], plain[key]) for key in ("edge_index", "edge_attr", "y", "train_mask"))


def test_graph_without_edges_is_read(tmp_path):
    data = read_node_dataset(folder(tmp_path, {"raw/edge": "", "raw/edge-feat": "", "raw/num-edge-list": "0\n"}))
    assert data.edge_index.shape == (2, 0)


def test_folders_of_ogb_need_no_meta(tmp_path):
    proteins = folder(tmp_path, meta=None).rename(tmp_path / "ogbn_proteins")
    assert read_node_dataset(proteins).num_edges == 6
    features = {"raw/edge-feat": None, "raw/node-feat": "1\n2\n3\n4\n5\n"}
    arxiv = folder(tmp_path, features, meta=None).rename(tmp_path / "ogbn_arxiv")
    (arxiv / "split" / "species").rename(arxiv / "split" / "time")
    assert read_node_dataset(arxiv).num_edges == 3


def test_the_only_split_is_taken_where_none_is_named(tmp_path):
    root = folder(tmp_path, meta={"add_inverse_edge": "True"})
    assert read_node_dataset(root).train_mask.sum() == 2
    (root / "split" / "random").mkdir()
    message = r'split was expected to hold one split but has random, species\. Name the one to take as "split"'
    with pytest.raises(DataError, match=message):
        read_node_dataset(root)


def test_nothing_is_written(tmp_path):
    root = folder(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    read_node_dataset(root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_missing_folder_and_files_are_named_with_the_layout(tmp_path):
    layout = r"OGB's layout is raw/\{edge,edge-feat,node-label,num-node-list,num-edge-list\}.csv.gz, split/<name>/"
    with pytest.raises(FileNotFoundError, match=rf"There is no folder .*nothing\. .*{layout}"):
        read_node_dataset(tmp_path / "nothing")
    for i, name in enumerate(FILES):
        if name != "raw/node_species":
            root = folder(tmp_path / str(i), {name: None})
            with pytest.raises(FileNotFoundError, match=rf"There is no file .*{name}.csv.gz\. {layout}"):
                read_node_dataset(root)
    with pytest.raises(FileNotFoundError, match=r"There is no file .*raw/node-feat.csv.gz"):
        read_node_dataset(folder(tmp_path, meta={**META, "has_node_attr": "True"}))


@pytest.mark.parametrize(
    ("meta", "kind", "message"),
    [
        (None, FileNotFoundError, r"no file .*meta.json, which says .* Only folders named ogbn_proteins or ogbn_arxiv"),
        ([1], FileFormatError, r"meta.json holds a list but an object with names and values was expected"),
        ({"split": "species"}, FileFormatError, r'meta.json gives "add_inverse_edge" as None but "True" or "False"'),
        ({**META, "has_edge_attr": "yes"}, FileFormatError, r'gives "has_edge_attr" as yes but "True" or "False"'),
        ({**META, "split": "time"}, FileNotFoundError, r"There is no file .*split/time/train.csv.gz"),
    ],
)
def test_wrong_meta_is_refused(tmp_path, meta, kind, message):
    with pytest.raises(kind, match=message):
        read_node_dataset(folder(tmp_path, meta=meta))


def test_meta_that_is_not_json_is_refused(tmp_path):
    root = folder(tmp_path)
    (root / "meta.json").write_text("{split: species}")
    with pytest.raises(FileFormatError, match=r"meta.json is not JSON: "):
        read_node_dataset(root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw/num-edge-list": "4\n"}, r"edge.csv.gz has 3 rows but 4 were expected, one for each edge that num-e"),
        ({"raw/edge-feat": "1,2\n3,4\n"}, r"edge-feat.csv.gz has 2 rows but 3 were expected, one for each edge"),
        ({"raw/node-label": "0\n1\n"}, r"node-label.csv.gz has 2 rows but 5 were expected, one for each node"),
        ({"raw/node_species": "0\n1\n"}, r"node_species.csv.gz has 2 rows but 5 were expected, one for each node"),
        ({"raw/node-feat": "0\n1\n"}, r"node-feat.csv.gz has 2 rows but 5 were expected, one for each node"),
        ({"raw/num-node-list": "5\n6\n"}, r"num-node-list.csv.gz has the rows \[5, 6\] but one count was expected"),
        ({"raw/num-node-list": ""}, r"num-node-list.csv.gz has the rows \[\] but one count was expected"),
        (
            {"raw/edge": "0,1\n2,5\n-1,0\n"},
            r"edge.csv.gz has 2 edges with nodes that do not exist, the first in row 2: 2, 5\. "
            r"num-node-list.csv.gz counts 5 nodes, 0 to 4",
        ),
        ({"split/species/valid": "5\n-1\n1\n"}, r"valid.csv.gz lists 2 nodes that do not exist: 5, -1\. .* 0 to 4"),
        ({"split/species/test": "0\n2\n3\n"}, r"species puts 2 nodes into more than one part: 0, 3\."),
    ],
)
def test_files_that_do_not_agree_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_node_dataset(folder(tmp_path, changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw/edge": "source,target\n0,1\n2,1\n"}, r"edge.csv.gz is not a table of numbers .* without a header"),
        ({"raw/edge": "0,1\n2,1\n3,0.5\n"}, r"edge.csv.gz, row 3, is \[3\. +0\.5\] but whole numbers were expected"),
        ({"raw/edge": "0,1\n2,\n3,0\n"}, r"edge.csv.gz, row 2, is \[ *2\. +nan\] but whole numbers"),
        ({"raw/edge": "0,1,2\n2,1,2\n3,0,2\n"}, r"edge.csv.gz has 3 columns but 2 were expected\. OGB's layout"),
        ({"raw/edge-feat": "1,2\n3\n4,5,6\n"}, r"edge-feat.csv.gz is not a table .* as many columns in each row"),
        ({"raw/node-label": "0\n1\nyes\n0\n1\n"}, r"node-label.csv.gz is not a table of numbers .*'yes'.* row 3"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(tmp_path, changes, message):
    with pytest.raises(FileFormatError, match=message):
        read_node_dataset(folder(tmp_path, changes))


@pytest.mark.parametrize("name", ["raw/edge-feat", "raw/node-feat"])
def test_features_must_be_finite(tmp_path, name):
    text = "1,2\n,3\n4,inf\n" + ("5,6\n7,8\n" if name == "raw/node-feat" else "")
    with pytest.raises(NonFiniteError, match=rf"{name}.csv.gz has 2 rows with empty, NaN or infinite cells: 2, 3\."):
        read_node_dataset(folder(tmp_path, {name: text}))


def test_damaged_files_are_refused(tmp_path):
    root = folder(tmp_path)
    path = root / "raw" / "edge.csv.gz"
    contents = path.read_bytes()
    for damaged in (b"0,1\n2,1\n", contents[:-9], contents[:12] + b"\xff\xff" + contents[14:]):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"edge.csv.gz is damaged or not compressed with gzip: "):
            read_node_dataset(root)


def test_missing_torch_geometric_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(MissingExtraError, match=r"Reading graphs needs `torch_geometric`.*'fishnets\[graphs\]'"):
        read_node_dataset(folder(tmp_path))


def test_edges_are_summed_by_target(generator, dtype, device, close):
    edge_index = torch.randint(6, (2, 40), generator=generator, device=device)
    edge_attr = torch.randn(40, 3, generator=generator, device=device, dtype=dtype)
    incidence = torch.nn.functional.one_hot(edge_index[1], 8).to(dtype)  # (edges, nodes); two nodes have no edge
    total = sum_of_edges(Data(edge_index=edge_index, edge_attr=edge_attr, num_nodes=8))
    close(total, incidence.mT @ edge_attr)


def test_sum_of_edges_needs_a_row_of_features_for_each_edge():
    edge_index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(DataError, match=r"`data` has no `edge_attr`"):
        sum_of_edges(Data(edge_index=edge_index, num_nodes=2))
    for shape in ((2,), (3, 1)):
        with pytest.raises(ShapeError, match=r"`edge_attr` has shape .* but \(2, d\) was expected, a row for each"):
            sum_of_edges(Data(edge_index=edge_index, edge_attr=torch.zeros(shape), num_nodes=2))


def test_string_yeast_is_read_whole():
    root = Path(os.environ.get("FISHNETS_DATA", "")) / "string_yeast"
    if "FISHNETS_DATA" not in os.environ or not root.is_dir():
        pytest.skip("needs real data; set FISHNETS_DATA to the folder that holds string_yeast")
    data = read_node_dataset(root)
    data.validate()
    assert (data.num_nodes, data.num_edges, data.edge_attr.shape[1]) == (5409, 331_786, 8)
    assert data.y.shape == (5409, 112)
    assert [int(mask.sum()) for mask in (data.train_mask, data.valid_mask, data.test_mask)] == [3060, 590, 1440]
    assert data.is_undirected()
    assert sum_of_edges(data).sum(0).tolist() == pytest.approx(data.edge_attr.double().sum(0).tolist(), rel=1e-4)
