"""Citations: what is read, what is refused, and splits by class."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from fishnets.errors import ConfigError, DataError, FileFormatError, NonFiniteError, ShapeError
from fishnets.graphs import random_split, read_citation

# 0 cites 1, itself and 1 again; 1 cites 0 and 3; 3 cites 2
ARRAYS = {
    "adj_indptr": np.array([0, 3, 5, 5, 6], np.int32),
    "adj_indices": np.array([1, 0, 1, 3, 0, 2], np.int32),
    "attr_indptr": np.array([0, 2, 2, 3, 4], np.int32),
    "attr_indices": np.array([2, 0, 1, 2], np.int32),
    "attr_data": np.array([0.25, 1.0, 0.5, 0.75], np.float32),
    "attr_shape": np.array([4, 3]),
    "labels": np.array([1, 0, 1, 2], np.int16),
}
MASKS = ("train_mask", "valid_mask", "test_mask")


def archive(tmp_path: Path, **changes: object) -> Path:
    """A small file of citations; a change of None leaves the array out."""
    arrays = {name: np.asarray(array) for name, array in {**ARRAYS, **changes}.items() if array is not None}
    np.savez(tmp_path / "papers.npz", **arrays)
    return tmp_path / "papers.npz"


def test_words_and_fields_are_read_as_stored(tmp_path):
    data = read_citation(str(archive(tmp_path)))
    data.validate()
    assert data.x.tolist() == [[1.0, 0.0, 0.25], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.75]]
    assert data.x.dtype == torch.float32
    assert data.y.tolist() == [1, 0, 1, 2]
    assert data.y.dtype == torch.int64


def test_each_citation_is_once_in_each_direction_in_the_order_of_targets(tmp_path):
    data = read_citation(archive(tmp_path))
    assert data.edge_index.tolist() == [[1, 0, 3, 3, 1, 2], [0, 1, 1, 2, 3, 3]]
    assert data.edge_index.dtype == torch.int64
    assert data.edge_index.is_contiguous()
    assert data.is_undirected()


def test_papers_without_citations_or_words_are_read(tmp_path):
    empty = {"adj_indptr": [0] * 5, "adj_indices": np.zeros(0, int), "attr_indptr": [0] * 5}
    empty |= {"attr_indices": np.zeros(0, int), "attr_data": np.zeros(0)}
    data = read_citation(archive(tmp_path, **empty))
    assert data.edge_index.shape == (2, 0)
    assert data.x.tolist() == [[0.0] * 3] * 4


def test_word_listed_twice_counts_twice(tmp_path):
    data = read_citation(archive(tmp_path, attr_indices=[2, 2, 1, 2]))
    assert data.x[0].tolist() == [0.0, 0.0, 1.25]


def test_other_arrays_are_not_read(tmp_path):
    path = archive(tmp_path)
    names = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "more.npz", allow_pickle=True, names=names, **ARRAYS)
    assert torch.equal(read_citation(tmp_path / "more.npz").edge_index, read_citation(path).edge_index)


def test_missing_file_is_named_with_its_source(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*none.npz\. An .npz file .*graph2gauss"):
        read_citation(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None, "adj_indptr": None}, r"npz has the arrays adj_indices, .* but not adj_indptr, labels\."),
        ({"labels": [1, 0, 1]}, r"`attr_shape` is \[4, 3\] but \[3, words\] was expected, a row for each of the 3 `la"),
        ({"labels": [1, 0, -1, 2]}, r"`labels` go down to -1 but classes from 0 were expected"),
        ({"labels": [1.0, 0.0, 1.0, 2.0]}, r"`labels` has shape \(4,\) and dtype float64 but one dimension and whole"),
        ({"attr_shape": [4]}, r"`attr_shape` is \[4\] but \[4, words\] was expected"),
        ({"attr_data": [[1.0]]}, r"`attr_data` has shape \(1, 1\) and dtype float64 but one dimension and numbers"),
        ({"attr_data": [1.0]}, r"`attr_data` has 1 entries but 4 were expected, one for each of `attr_indices`"),
        ({"attr_indices": [2, 0, 3, -1]}, r"`attr_indices` has 2 entries outside 0 to 2: 3, -1\."),
        ({"adj_indices": [1, 0, 1, 3, 0, 4]}, r"`adj_indices` has 1 entries outside 0 to 3: 4\."),
        ({"adj_indptr": [0, 3, 6]}, r"`adj_indptr` has 3 bounds from 0 to 6 but 5 that never decrease, from 0 to 6,"),
        ({"adj_indptr": [0, 3, 2, 5, 6]}, r"`adj_indptr` has 5 bounds from 0 to 6 but 5 that never decrease"),
        ({"attr_indptr": [1, 2, 2, 3, 4]}, r"`attr_indptr` has 5 bounds from 1 to 4 but .* from 0 to 4"),
        ({"attr_indptr": np.zeros(0, int)}, r"`attr_indptr` has 0 bounds without bounds but 5"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_citation(archive(tmp_path, **changes))


def test_weights_must_be_finite(tmp_path):
    with pytest.raises(NonFiniteError, match=r"`attr_data` has 2 NaN or infinite entries: 1, 3\. Weights must be"):
        read_citation(archive(tmp_path, attr_data=[1.0, np.nan, 1.0, np.inf]))


def test_files_that_are_not_plain_arrays_are_refused(tmp_path):
    path = tmp_path / "papers.npz"
    for content in (b"", b"1,2\n", archive(tmp_path).read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"papers.npz is damaged or not an .npz file\. Such files are"):
            read_citation(path)
    objects = archive(tmp_path, labels=np.array([None], dtype=object))
    with pytest.raises(FileFormatError, match=r"`labels` is damaged or not an array of plain numbers: Object arrays"):
        read_citation(objects)
    archive(tmp_path, labels=None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("labels.npy", b"\x93NUMPY\x01\x00")
    with pytest.raises(FileFormatError, match=r"`labels` is damaged"):
        read_citation(path)


def labelled(sizes: list[int], device: torch.device) -> Data:
    """Nodes of classes of given sizes, in some order."""
    y = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Data(y=y[torch.randperm(len(y), generator=torch.Generator().manual_seed(5))].to(device))


def test_every_class_is_split_in_the_same_proportions(device):
    data = labelled([10, 25, 0, 50, 1], device)
    split = random_split(data, seed=0)
    masks = torch.stack([split[name] for name in MASKS])
    assert masks.device.type == device.type
    assert torch.equal(masks.sum(0), torch.ones_like(data.y))
    counts = [data.y[mask].bincount(minlength=5).tolist() for mask in masks]
    assert counts == [[6, 15, 0, 30, 1], [2, 5, 0, 10, 0], [2, 5, 0, 10, 0]]


def test_fractions_are_those_asked_for(device):
    split = random_split(labelled([100, 40], device), seed=0, train=0.5, valid=0.1)
    assert [int(split[name].sum()) for name in MASKS] == [70, 14, 56]


def test_split_depends_on_its_seed_alone(device):
    data = labelled([30, 20], device)
    first, again, other = (random_split(data, seed) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in MASKS)
    assert not torch.equal(first.train_mask, other.train_mask)


def test_every_node_is_as_likely_to_be_drawn(device):
    data = labelled([10, 30], device)
    share = torch.stack([random_split(data, seed).train_mask for seed in range(500)]).double().mean(0)
    assert float((share - 0.6).abs().max()) < 0.1  # 4.6 standard deviations


def test_graph_given_to_a_split_is_not_changed(device):
    data = labelled([5, 5], device)
    split = random_split(data, seed=0)
    assert "train_mask" not in data
    assert split.y is data.y


@pytest.mark.parametrize(("train", "valid"), [(0.0, 0.2), (0.6, 0.0), (0.8, 0.2), (0.6, -0.1), (float("nan"), 0.2)])
def test_fractions_must_leave_something_for_each_part(device, train, valid):
    with pytest.raises(ConfigError, match=rf"`train` is {train} and `valid` is {valid} but positive fractions that"):
        random_split(labelled([5], device), 0, train, valid)


def test_split_needs_a_class_for_each_node():
    with pytest.raises(ShapeError, match=r"`data.y` is None but a class for each node, \(N,\) and torch.int64"):
        random_split(Data(), 0)
    with pytest.raises(ShapeError, match=r"`data.y` has shape \(2, 1\) and dtype torch.float32 but a class for each"):
        random_split(Data(y=torch.zeros(2, 1)), 0)
    with pytest.raises(DataError, match=r"`data.y` is negative at 1 but classes from 0 were expected"):
        random_split(Data(y=torch.tensor([0, -1])), 0)


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "words", "classes", "wordless"),
    [("dblp", 17_716, 105_734, 1639, 4, 64), ("cora_ml", 2995, 16_316, 2879, 7, 0)],
)
def test_real_citations_are_read_whole(name, nodes, edges, words, classes, wordless):
    path = Path(os.environ.get("FISHNETS_DATA", "")) / "citation" / f"{name}.npz"
    if "FISHNETS_DATA" not in os.environ or not path.is_file():
        pytest.skip(f"needs real data; set FISHNETS_DATA to the folder that holds citation/{name}.npz")
    data = read_citation(path)
    data.validate()
    assert (data.x.shape, data.num_edges, int(data.y.max()) + 1) == ((nodes, words), edges, classes)
    assert data.is_undirected()
    assert not data.has_self_loops()
    length = data.x.norm(dim=1)
    torch.testing.assert_close(length[length > 0], torch.ones(nodes - wordless))  # as stored
    split = random_split(data, seed=0)
    assert int(split.train_mask.sum()) == pytest.approx(0.6 * nodes, abs=classes)
