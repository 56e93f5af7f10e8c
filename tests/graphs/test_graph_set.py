"""Sets of graphs: batches against PyG's own, what is read from OGB's folders, and what is refused."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.graphs.folders import MOLECULES, molecule_folder, write_folder
from torch_geometric.data import Batch, Data

from fishnets.errors import ConfigError, DataError, FileFormatError, NonFiniteError, ShapeError
from fishnets.graphs import GraphSet, read_graph_dataset

SIZES = [3, 1, 0, 5, 2, 4]
NUM_EDGES = [4, 0, 0, 7, 1, 3]
PARTS = {"train": [4, 0, 3], "valid": [1], "test": []}


def arguments(device: torch.device, seed: int = 0) -> dict[str, object]:
    """Random graphs, an empty one and one without edges among them."""
    generator = torch.Generator().manual_seed(seed)
    pairs = zip(SIZES, NUM_EDGES, strict=True)
    edges = [torch.randint(max(size, 1), (2, count), generator=generator) for size, count in pairs]
    drawn = {
        "x": torch.randint(9, (sum(SIZES), 2), generator=generator),
        "edge_index": torch.cat(edges, 1),
        "edge_attr": torch.randn(sum(NUM_EDGES), 3, generator=generator),
        "y": torch.arange(6).unsqueeze(1),
        "num_nodes": torch.tensor(SIZES),
        "num_edges": torch.tensor(NUM_EDGES),
    }
    parts = {name: torch.tensor(graphs, dtype=torch.int64) for name, graphs in PARTS.items()}
    return {**{name: tensor.to(device) for name, tensor in drawn.items()}, "parts": parts}


def one_by_one(given: dict[str, object]) -> list[Data]:
    """The same graphs as a list, edges sorted by Python."""
    graphs, node, edge = [], 0, 0
    for g, (size, count) in enumerate(zip(SIZES, NUM_EDGES, strict=True)):
        pairs = given["edge_index"][:, edge : edge + count]
        order = sorted(range(count), key=lambda i, pairs=pairs: int(pairs[1, i]))
        rows = given["edge_attr"][edge : edge + count]
        graphs.append(
            Data(given["x"][node : node + size], pairs[:, order], rows[order], y=given["y"][g : g + 1], num_nodes=size)
        )
        node, edge = node + size, edge + count
    return graphs


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4, 5], [3], [5, 0, 3], [4, 4, 0, 4], [2], [2, 1, 2], []])
def test_batch_is_that_of_torch_geometric(device, numbers):
    given = arguments(device)
    batch = GraphSet.from_sizes(**given).batch(torch.tensor(numbers, dtype=torch.int64))
    batch.validate()
    assert batch.x.device.type == batch.edge_index.device.type == batch.batch.device.type == device.type
    assert batch.num_graphs == len(numbers)
    if not numbers:
        assert (batch.num_nodes, batch.num_edges, len(batch.y)) == (0, 0, 0)
        return
    graphs = one_by_one(given)
    expected = Batch.from_data_list([graphs[g] for g in numbers])
    for name in ("x", "edge_index", "edge_attr", "y", "batch", "ptr"):
        assert torch.equal(batch[name], expected[name]), name
        assert batch[name].dtype == expected[name].dtype


def test_graphs_of_torch_geometric_are_taken(device):
    given = arguments(device)
    wanted = GraphSet.from_sizes(**given)
    found = GraphSet.from_data_list(one_by_one(given), given["parts"])
    for name in ("x", "edge_index", "edge_attr", "y", "node_ptr", "edge_ptr"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert found.parts.keys() == wanted.parts.keys()


def test_graphs_of_torch_geometric_that_do_not_agree_are_refused(device):
    one, other = (Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([1])) for _ in range(2))
    other.edge_attr = torch.ones(1, 2)
    expected = (
        r"`graphs\[1\]` has `x` of shape \(N, 3\), `edge_attr` of shape \(E, 2\) and 1 labels but `graphs\[0\]` has "
        r"`x` of shape \(N, 3\), no `edge_attr` and 1 labels"
    )
    with pytest.raises(ShapeError, match=expected):
        GraphSet.from_data_list([one, other], {})
    with pytest.raises(ShapeError, match=r"\(N, 4\).* and 2 labels but"):
        GraphSet.from_data_list([one, Data(x=torch.ones(1, 4), edge_index=one.edge_index, y=torch.ones(2))], {})
    with pytest.raises(ShapeError, match=r"`graphs\[1\]\.edge_attr` has 3 rows but 1 were expected, one for each edge"):
        GraphSet.from_data_list([other, other.clone().update({"edge_attr": torch.ones(3, 2)})], {})
    with pytest.raises(DataError, match=r"`graphs\[1\]` has no `x`, `y`"):
        GraphSet.from_data_list([one, Data(edge_index=one.edge_index)], {})
    with pytest.raises(DataError, match=r"`graphs\[0\]\.y` is a int but a tensor of labels was expected"):
        GraphSet.from_data_list([Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.int64), y=1)], {})
    with pytest.raises(DataError, match="`graphs` is empty"):
        GraphSet.from_data_list([], {})


def test_edges_of_a_batch_are_in_the_order_of_targets(device):
    graphs = GraphSet.from_sizes(**arguments(device))
    for numbers in ([0, 1, 2, 3, 4, 5], [5, 3, 0]):
        assert bool((graphs.batch(torch.tensor(numbers)).edge_index[1].diff() >= 0).all())


def test_numbers_of_graphs_may_be_on_the_device(device):
    graphs = GraphSet.from_sizes(**arguments(device))
    numbers = torch.tensor([3, 0])
    assert torch.equal(graphs.batch(numbers.to(device)).edge_index, graphs.batch(numbers).edge_index)


def test_edges_may_have_no_features(device):
    graphs = GraphSet.from_sizes(**{**arguments(device), "edge_attr": None})
    assert graphs.batch(torch.tensor([0, 3])).edge_attr is None


def test_set_moves_to_a_device(device):
    graphs = GraphSet.from_sizes(**arguments(torch.device("cpu"))).to(device)
    assert len(graphs) == 6
    assert graphs.device.type == graphs.edge_attr.device.type == graphs.y.device.type == device.type
    assert graphs.node_ptr.device.type == graphs.parts["train"].device.type == "cpu"
    assert torch.equal(graphs.batch(torch.tensor([3])).x.cpu(), arguments(torch.device("cpu"))["x"][4:9])


def test_printing_says_how_many(device):
    assert str(GraphSet.from_sizes(**arguments(device))) == (
        "GraphSet(num_graphs=6, num_nodes=15, num_edges=15, parts={'train': 3, 'valid': 1, 'test': 0})"
    )


def test_minibatches_go_through_a_part_in_its_order(device):
    graphs = GraphSet.from_sizes(**arguments(device))
    assert [batch.y.flatten().tolist() for batch in graphs.minibatches("train", 2)] == [[4, 0], [3]]
    assert [batch.num_graphs for batch in graphs.minibatches("train", 3)] == [3]
    assert list(graphs.minibatches("test", 2)) == []


def test_shuffled_minibatches_depend_on_the_generator_alone(device):
    graphs = GraphSet.from_sizes(**{**arguments(device), "parts": {"all": torch.arange(6)}})

    def order(generator):
        return [batch.y.flatten().tolist() for batch in graphs.minibatches("all", 4, generator)]

    first = order(torch.Generator().manual_seed(1))
    assert first == order(torch.Generator().manual_seed(1))
    assert [len(batch) for batch in first] == [4, 2]
    assert sorted(first[0] + first[1]) == list(range(6))
    generator = torch.Generator().manual_seed(1)
    assert order(generator) != order(generator)


def test_order_is_drawn_at_once(device):
    graphs = GraphSet.from_sizes(**{**arguments(device), "parts": {"all": torch.arange(6)}})
    generator = torch.Generator().manual_seed(1)
    batches = graphs.minibatches("all", 6, generator)
    expected = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    generator.manual_seed(2)
    assert next(batches).y.flatten().tolist() == expected.tolist()


def test_minibatches_refuse_what_they_cannot_draw(device):
    graphs = GraphSet.from_sizes(**arguments(device))
    with pytest.raises(ConfigError, match=r"`part` is 'tset' but one of train, valid, test was expected"):
        graphs.minibatches("tset", 2)
    with pytest.raises(ConfigError, match=r"`size` is 0 but a positive whole number was expected"):
        graphs.minibatches("train", 0)


@pytest.mark.gpu
def test_order_is_drawn_on_the_cpu():
    graphs = GraphSet.from_sizes(**arguments(torch.device("cpu")))
    with pytest.raises(ConfigError, match=r"`generator` is on cuda.* but the order of graphs is drawn on the CPU"):
        graphs.minibatches("train", 2, torch.Generator("cuda"))


def test_batch_refuses_graphs_that_do_not_exist(device):
    graphs = GraphSet.from_sizes(**arguments(device))
    with pytest.raises(DataError, match=r"`graphs` names 2 graphs that do not exist: 6, -1\. There are 6, counted f"):
        graphs.batch(torch.tensor([0, 6, -1]))
    with pytest.raises(ShapeError, match=r"`graphs` has shape \(6,\) and dtype torch.bool .* `mask.nonzero\(\)"):
        graphs.batch(torch.ones(6, dtype=torch.bool))


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"x": torch.zeros(15)}, ShapeError, r"`x` has shape \(15,\) but \(N, columns\) was expected"),
        ({"edge_index": torch.zeros(2, 15)}, ShapeError, r"`edge_index` has shape \(2, 15\) and dtype torch.float32"),
        ({"edge_attr": torch.zeros(14, 1)}, ShapeError, r"`edge_attr` has shape \(14, 1\) but \(15, columns\) was"),
        ({"y": torch.zeros(5, 1)}, ShapeError, r"`y` has shape \(5, 1\) but \(6, columns\) was expected"),
        ({"num_nodes": torch.tensor([15])}, ShapeError, r"`node_ptr` bounds 1 graphs and `edge_ptr` 6; both must"),
        ({"num_nodes": torch.tensor([14, 0])}, DataError, r"`node_ptr` goes from 0 to 14 but bounds from 0 to 15"),
        ({"num_edges": torch.tensor([16, -1])}, DataError, r"`edge_ptr` goes from 0 to 15 but .* that never decrease"),
        ({"parts": {"train": torch.tensor([6])}}, DataError, r"`parts\['train'\]` names 1 graphs that do not exist"),
        ({"parts": {"train": torch.zeros(1)}}, ShapeError, r"`parts\['train'\]` has shape \(1,\) and dtype torch.flo"),
    ],
)
def test_tensors_that_do_not_agree_are_refused(changes, kind, message):
    with pytest.raises(kind, match=message):
        GraphSet.from_sizes(**{**arguments(torch.device("cpu")), **changes})


def test_edge_outside_its_graph_is_refused(device):
    given = arguments(device)
    given["edge_index"][0, 5], given["edge_index"][1, 11] = 5, -1
    message = r"`edge_index` has 2 edges with nodes outside their graph: 5, 11\. The first is \[5, \d\] in graph 3, "
    with pytest.raises(DataError, match=message + r"which has 5 nodes\. Nodes are counted from 0"):
        GraphSet.from_sizes(**given)


META = {"add_inverse_edge": "True", "has_edge_attr": "True", "has_node_attr": "True", "split": "scaffold"}
FILES = {
    "raw/edge": "0,1\n1,2\n0,1\n",
    "raw/edge-feat": "3,0\n1,0\n0,1\n",
    "raw/node-feat": "5,0\n6,0\n7,1\n5,0\n6,1\n7,0\n",
    "raw/graph-label": "0\n1\n0\n",
    "raw/num-node-list": "3\n1\n2\n",
    "raw/num-edge-list": "2\n0\n1\n",
    "split/scaffold/train": "2\n0\n",
    "split/scaffold/valid": "1\n",
    "split/scaffold/test": "",
}


def folder(tmp_path: Path, changes: dict[str, str | None] | None = None, meta: object = META) -> Path:
    """Three graphs in OGB's layout; a change of None leaves the file out."""
    return write_folder(tmp_path / "graphs", FILES | (changes or {}), meta)


def test_graphs_labels_and_split_are_read(tmp_path):
    graphs = read_graph_dataset(str(folder(tmp_path)))
    assert graphs.x.tolist() == [[5, 0], [6, 0], [7, 1], [5, 0], [6, 1], [7, 0]]
    assert graphs.node_ptr.tolist() == [0, 3, 4, 6]
    assert graphs.edge_ptr.tolist() == [0, 4, 4, 6]
    assert graphs.y.tolist() == [[0], [1], [0]]
    assert graphs.x.dtype == graphs.edge_attr.dtype == graphs.y.dtype == torch.int64
    assert {name: part.tolist() for name, part in graphs.parts.items()} == {"train": [2, 0], "valid": [1], "test": []}


def test_every_bond_has_its_reverse_with_the_same_features(tmp_path):
    graphs = read_graph_dataset(folder(tmp_path))
    assert graphs.edge_index.tolist() == [[1, 0, 2, 1, 1, 0], [0, 1, 1, 2, 0, 1]]
    assert graphs.edge_attr.tolist() == [[3, 0], [3, 0], [1, 0], [1, 0], [0, 1], [0, 1]]


def test_directed_edges_stay_as_they_are(tmp_path):
    graphs = read_graph_dataset(folder(tmp_path, meta={**META, "add_inverse_edge": "False"}))
    assert graphs.edge_index.tolist() == [[0, 1, 0], [1, 2, 1]]
    assert graphs.edge_ptr.tolist() == [0, 2, 2, 3]


def test_features_that_are_not_whole_are_float32(tmp_path):
    changes = {"raw/edge-feat": "0.5\n1\n2\n", "raw/node-feat": "1\n2\n3\n4\n5\n-.25\n"}
    graphs = read_graph_dataset(folder(tmp_path, changes))
    assert graphs.x.flatten().tolist() == [1, 2, 3, 4, 5, -0.25]
    assert graphs.edge_attr.flatten().tolist() == [0.5, 0.5, 1, 1, 2, 2]
    assert graphs.x.dtype == graphs.edge_attr.dtype == torch.float32


def test_edge_features_may_be_absent(tmp_path):
    graphs = read_graph_dataset(folder(tmp_path, {"raw/edge-feat": None}, {**META, "has_edge_attr": "False"}))
    assert graphs.edge_attr is None


def test_empty_label_is_unknown(tmp_path):
    y = read_graph_dataset(folder(tmp_path, {"raw/graph-label": ",1\n0,\n1,1\n"})).y
    torch.testing.assert_close(y, torch.tensor([[math.nan, 1], [0, math.nan], [1, 1]]), equal_nan=True)


@pytest.mark.parametrize("text", ["1\n\n0\n", '1\n""\n0\n', "1\n \n0"])
def test_empty_label_of_a_single_task_is_unknown(tmp_path, text):
    y = read_graph_dataset(folder(tmp_path, {"raw/graph-label": text})).y
    torch.testing.assert_close(y, torch.tensor([[1], [math.nan], [0]]), equal_nan=True)


def test_a_blank_line_more_than_labels_is_counted(tmp_path):
    with pytest.raises(DataError, match=r"graph-label\.csv\.gz has 4 rows but 3 were expected, one for each graph"):
        read_graph_dataset(folder(tmp_path, {"raw/graph-label": "1\n1\n0\n\n"}))


def test_folder_of_ogb_needs_no_meta(tmp_path):
    root = folder(tmp_path, meta=None).rename(tmp_path / "ogbg_molhiv")
    assert read_graph_dataset(root).edge_index.shape == (2, 6)


def test_made_up_molecules_have_both_labels_in_every_part(tmp_path):
    graphs = read_graph_dataset(molecule_folder(tmp_path))
    assert len(graphs) == MOLECULES == sum(map(len, graphs.parts.values()))
    assert (graphs.x.shape[1], graphs.edge_attr.shape[1]) == (9, 3)
    for part in graphs.parts.values():
        assert graphs.y[part].float().mean() == 0.5
    graphs.batch(torch.arange(MOLECULES)).validate()


def test_nothing_is_written_and_nothing_is_asked(tmp_path, monkeypatch):
    root = folder(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    monkeypatch.setattr(sys, "stdin", None)
    read_graph_dataset(root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_missing_folder_and_files_are_named_with_the_layout(tmp_path):
    layout = r"OGB's layout is raw/\{edge,edge-feat,node-feat,graph-label,num-node-list,num-edge-list\}.csv.gz, split/"
    source = r"ogbg-molhiv comes from https://ogb.stanford.edu: unpack http://snap.stanford.edu/.*/hiv.zip to a folder "
    with pytest.raises(FileNotFoundError, match=rf"There is no folder .*nothing\. .*{layout}.* {source}ogbg_molhiv"):
        read_graph_dataset(tmp_path / "nothing")
    for i, name in enumerate(FILES):
        root = folder(tmp_path / str(i), {name: None})
        with pytest.raises(FileNotFoundError, match=rf"There is no file .*{name}.csv.gz\. {layout}"):
            read_graph_dataset(root)
    with pytest.raises(FileNotFoundError, match=r"no file .*meta.json, .* Only folders named ogbg_molhiv need none"):
        read_graph_dataset(folder(tmp_path, meta=None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"raw/num-edge-list": "2\n1\n"}, r"num-edge-list.csv.gz has 2 rows but 3 were expected, one for each graph"),
        ({"raw/num-edge-list": "2\n0\n2\n"}, r"edge.csv.gz has 3 rows but 4 were expected, one for each edge that num"),
        ({"raw/edge-feat": "1\n2\n"}, r"edge-feat.csv.gz has 2 rows but 3 were expected, one for each edge"),
        ({"raw/node-feat": "1\n2\n"}, r"node-feat.csv.gz has 2 rows but 6 were expected, one for each node"),
        ({"raw/graph-label": "1\n0\n"}, r"graph-label.csv.gz has 2 rows but 3 were expected, one for each graph"),
        ({"raw/num-node-list": ""}, r"num-node-list.csv.gz has no rows but a count for each graph, 0 or more, was"),
        ({"raw/num-node-list": "3\n-1\n4\n"}, r"num-node-list.csv.gz has the count -1 in row 2 but a count for each"),
        (
            {"raw/edge": "0,1\n1,2\n0,2\n"},
            r"edge.csv.gz has 1 edges with nodes outside their graph, the first in row 3: 0, 2 in graph 2, which by "
            r"num-node-list.csv.gz has 2 nodes\. Nodes are counted from 0 within each graph",
        ),
        ({"raw/edge": "0,1\n-1,2\n0,2\n"}, r"edge.csv.gz has 2 edges .* in row 2: -1, 2 in graph 0, .* has 3 nodes"),
        ({"split/scaffold/test": "3\n-1\n"}, r"test.csv.gz lists 2 graphs that do not exist: 3, -1\. .* 0 to 2"),
        ({"split/scaffold/test": "0\n2\n"}, r"scaffold puts 2 graphs into more than one part: 0, 2\."),
        ({"split/scaffold/valid": "1\n1\n"}, r"valid.csv.gz lists 1 graphs more than once: 1\. List each once"),
    ],
)
def test_files_that_do_not_agree_are_refused(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_graph_dataset(folder(tmp_path, changes))


def test_tables_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"edge.csv.gz has 3 columns but 2 were expected\. OGB's layout is"):
        read_graph_dataset(folder(tmp_path / "wide", {"raw/edge": "0,1,2\n1,2,2\n0,1,1\n"}))
    with pytest.raises(NonFiniteError, match=r"node-feat.csv.gz has 1 rows with empty, NaN or infinite cells: 2\."):
        read_graph_dataset(folder(tmp_path / "empty", {"raw/node-feat": "1\nnan\n3\n4\n5\n6\n"}))


def test_molhiv_is_read_whole():
    root = Path(os.environ.get("FISHNETS_DATA", "")) / "ogbg_molhiv"
    if "FISHNETS_DATA" not in os.environ or not root.is_dir():
        pytest.skip("needs real data; set FISHNETS_DATA to the folder that holds ogbg_molhiv")
    graphs = read_graph_dataset(root)
    assert (len(graphs), len(graphs.x), graphs.edge_index.shape[1]) == (41_127, 1_049_163, 2 * 1_129_688)
    assert (graphs.x.shape[1], graphs.edge_attr.shape[1], graphs.y.shape[1]) == (9, 3, 1)
    assert graphs.x.dtype == graphs.edge_attr.dtype == torch.int64
    found = {name: (len(part), int(graphs.y[part].sum())) for name, part in graphs.parts.items()}
    assert found == {"train": (32_901, 1232), "valid": (4113, 81), "test": (4113, 130)}
    whole = graphs.batch(torch.arange(len(graphs)))
    whole.validate()
    assert whole.is_undirected()
    assert bool((whole.edge_index[1].diff() >= 0).all())
