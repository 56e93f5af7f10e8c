"""Tasks: losses and scores of nodes, by the whole graph and by parts, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.graphs.layers import seeded  # noqa: F401 a fixture
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch_geometric.data import Data

from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.graphs import GraphSet
from fishnets.graphs.tasks import GraphTask, NodeTask, random_parts

N = 24


class Linear(nn.Module):
    """Sees a node and the number of its edges, and remembers how many nodes and edges it was given."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.map, self.seen = nn.Linear(3, outputs), []

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        self.seen.append((len(x), edge_index.shape[1]))
        out: Tensor = self.map(x)
        return out


def graph(**changes: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(N, 3, generator=generator),
        edge_index=torch.randint(N, (2, 200), generator=generator),
        edge_attr=torch.rand(200, 2, generator=generator),
        y=torch.randint(2, (N, 2), generator=generator),
    )
    for i, part in enumerate(("train", "valid", "test")):
        data[f"{part}_mask"] = torch.arange(N) % 3 == i
    for name, value in changes.items():
        data[name] = value
    return data


def test_the_whole_graph_makes_one_loss_of_the_training_nodes() -> None:
    data, model = graph(), Linear(2)
    (loss,) = NodeTask(data).losses(model, 0)
    mask = data.train_mask
    expected = binary_cross_entropy_with_logits(model.map(data.x)[mask], data.y[mask].float())
    torch.testing.assert_close(loss, expected)
    assert model.seen == [(N, 200)]


def test_labels_that_are_not_known_have_no_loss() -> None:
    label = graph().y.float()
    label[0, 0] = torch.nan
    data, model = graph(y=label), Linear(2)
    (loss,) = NodeTask(data).losses(model, 0)
    mask = data.train_mask[:, None] & ~label.isnan()
    torch.testing.assert_close(loss, binary_cross_entropy_with_logits(model.map(data.x)[mask], label[mask]))


def test_classes_are_scored_by_accuracy() -> None:
    data, model = graph(y=torch.arange(N).remainder(4)[:, None]), Linear(4)
    task = NodeTask(data, score="accuracy")
    (loss,) = task.losses(model, 0)
    mask = data.train_mask
    torch.testing.assert_close(loss, cross_entropy(model.map(data.x)[mask], data.y[mask].flatten()))
    found = task.evaluate(model)
    right = (model.map(data.x).argmax(1) == data.y.flatten()).double()
    assert found == {part: float(right[data[f"{part}_mask"]].mean()) for part in ("valid", "test")}


def test_parts_are_drawn_anew_in_each_epoch_and_cover_all_nodes() -> None:
    data, model = graph(), Linear(2)
    task = NodeTask(data, parts=4, seed=1)
    assert len(list(task.losses(model, 0))) == 4
    assert sum(nodes for nodes, _ in model.seen) == N
    assert 0 < sum(edges for _, edges in model.seen) < 200  # those between parts are left out
    first = [float(loss.detach()) for loss in task.losses(model, 0)]
    again, later = ([float(loss.detach()) for loss in task.losses(model, epoch)] for epoch in (0, 1))
    assert first == again != later


@pytest.mark.parametrize("num_edges", [200, N, 0])
def test_a_part_is_the_graph_of_its_nodes_and_of_the_edges_between_them(num_edges: int) -> None:
    data, seen = graph(species=torch.arange(N).unsqueeze(1)), []
    data.edge_index, data.edge_attr = data.edge_index[:, :num_edges], data.edge_attr[:num_edges]

    def model(*given: Tensor, species: Tensor) -> Tensor:
        seen.append((*given, species))
        return torch.zeros(len(species), 2, requires_grad=True)

    list(NodeTask(data, parts=3, seed=1).losses(model, 0))  # type: ignore[arg-type]
    assert sum(len(part[0]) for part in seen) == N
    for x, edge_index, edge_attr, species in seen:
        expected = data.subgraph(species.flatten())
        assert torch.equal(x, expected.x)
        assert torch.equal(edge_index, expected.edge_index)
        assert torch.equal(edge_attr, expected.edge_attr)


def test_each_part_of_the_split_may_see_a_graph_of_its_own() -> None:
    graphs = {part: graph(x=torch.randn(N, 3)) for part in ("train", "valid", "test")}
    model = Linear(2)
    found = NodeTask(graphs).evaluate(model)
    assert len(model.seen) == 2
    alone = {part: NodeTask(graphs[part]).evaluate(model)[part] for part in ("valid", "test")}
    assert found == alone


def test_scores_may_be_predicted_on_blocks_of_nodes() -> None:
    data, model = graph(), Linear(2)
    assert NodeTask(data, test_parts=3).evaluate(model) == NodeTask(data).evaluate(model)  # which sees no neighbours
    assert [nodes for nodes, _ in model.seen] == [8, 8, 8, N]
    assert sum(edges for _, edges in model.seen[:3]) < 200


def test_random_parts_are_all_nodes_once() -> None:
    parts = random_parts(10, 3, torch.Generator().manual_seed(3))
    assert sorted(torch.cat(parts).tolist()) == list(range(10))
    assert [len(part) for part in parts] == [4, 3, 3]


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`graphs` has none for \['test', 'valid'\]"):
        NodeTask({"train": graph()})
    with pytest.raises(DataError, match="No node is in the part 'valid'"):
        NodeTask(graph(valid_mask=torch.zeros(N, dtype=torch.bool)))
    with pytest.raises(ConfigError, match="parts"):
        NodeTask(graph(), parts=0)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"x": None}, ConfigError, r"The graph has no features `x`\. Where edges have some, `graph\.x = sum_of_edges"),
        ({"y": None}, ConfigError, "The graph has no labels `y`"),
        ({"x": torch.full((N, 3), torch.nan)}, DataError, "Features `x` are not finite at 0, 1, 2, 3, 4 and 19 more"),
        ({"edge_attr": torch.full((200, 2), torch.inf)}, DataError, "Features `edge_attr` are not finite at 0"),
        ({"test_mask": None}, ConfigError, r"The graph has no `test_mask`, which says what nodes are in this part"),
        ({"valid_mask": None, "val_mask": torch.ones(N)}, ConfigError, r"no `valid_mask`.*\. Rename `val_mask`\."),
        ({"test_mask": torch.arange(3)}, ShapeError, r"`test_mask` has shape \(3,\) and dtype torch\.int64 but shape"),
        ({"test_mask": [True]}, ShapeError, r"`test_mask` is a list but shape \(24,\) and dtype torch\.bool were"),
        ({"y": torch.ones(9, 1)}, ShapeError, "The graph has 9 rows of `y` but 24 were expected, one for each node"),
        ({"edge_attr": torch.ones(9, 1)}, ShapeError, "has 9 rows of `edge_attr` but 200 were expected, one for each"),
        ({"edge_index": None}, ShapeError, "The graph: `edge_index` is a NoneType but shape"),
        ({"edge_index": torch.zeros(200, 2)}, ShapeError, r"has shape \(200, 2\) and dtype torch\.float32 but"),
        (
            {"edge_index": torch.full((2, 200), -1)},
            DataError,
            r"has 200 edges with nodes that do not exist: 0, 1, .* The first is \[-1, -1\], and nodes are 0 to 23",
        ),
        ({"test_mask": torch.ones(N, dtype=torch.bool)}, DataError, "16 nodes are in more than one part of the split"),
    ],
)
def test_graphs_that_are_refused(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        NodeTask(graph(**changes))


def test_graphs_of_one_task_have_the_same_labels_and_split() -> None:
    data, other = graph(), graph()
    other.train_mask, other.test_mask = other.test_mask, other.train_mask
    with pytest.raises(ConfigError, match=r"The graph is a list but a `torch_geometric\.data\.Data` was"):
        NodeTask([data])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"`graphs\['train'\]` has another `train_mask` than `graphs\['valid'\]`"):
        NodeTask({"train": other, "valid": data, "test": data})
    with pytest.raises(DataError, match=r"What `draw` gave has another `train_mask` than `graphs\['valid'\]`"):
        next(NodeTask({"valid": data, "test": data}, draw=lambda epoch: other).losses(Linear(2), 0))
    del other.test_mask
    with pytest.raises(ConfigError, match=r"`graphs\['valid'\]` has no `test_mask`"):
        NodeTask({"train": data, "valid": other, "test": data})
    unknown = graph(y=data.y.float().index_fill(0, torch.tensor([0]), torch.nan))
    NodeTask({"train": unknown.clone(), "valid": unknown, "test": unknown})  # unknown labels are equal too


def test_checkpoints_tell_tasks_apart() -> None:
    data = graph()
    assert NodeTask(data).identity() == NodeTask(data.clone()).identity()
    others: list[NodeTask] = [NodeTask(data, draw=lambda epoch: data)]
    others += [NodeTask(data, parts=2), NodeTask(data, test_parts=2), NodeTask(data, seed=1)]
    others += [NodeTask(graph(x=data.x + 1)), NodeTask(graph(edge_index=data.edge_index.flip(0)))]
    assert len({task.identity() for task in [NodeTask(data), *others]}) == 7
    other = graph(x=data.x + 1)
    used = [(data, data, other), (data, other, other), (data, other, data), (other, data, data)]
    by_part = [dict(zip(("train", "valid", "test"), three, strict=True)) for three in used]
    assert len({NodeTask(one).identity() for one in by_part}) == 4
    assert NodeTask(dict(reversed(by_part[0].items()))).identity() == NodeTask(by_part[0]).identity()
    some = graphs([6, 7])
    loop = {"edge_index": torch.zeros((2, 1), dtype=torch.int64)}
    looped = [replace(some, edge_ptr=(torch.arange(13) > one).long(), **loop) for one in (0, 1)]  # in another graph
    distinct = [GraphTask(some, 4), GraphTask(some, 5), GraphTask(replace(some, x=some.x + 1), 4)]
    distinct += [GraphTask(one, 4) for one in looped]
    assert len({task.identity() for task in distinct}) == 5


def test_graphs_in_two_parts_are_refused() -> None:
    some = graphs([6, 7])
    with pytest.raises(DataError, match=r"1 graphs are in more than one part of the split.*: 6"):
        GraphTask(replace(some, parts={**some.parts, "test": torch.cat([some.parts["test"], torch.tensor([6])])}), 4)
    with pytest.raises(DataError, match="Features `x` are not finite at 0"):
        GraphTask(replace(some, x=some.x.float() * torch.nan), 4)
    with pytest.raises(ConfigError, match="`graphs` is a list but a GraphSet was expected"):
        GraphTask([], 4)  # type: ignore[arg-type]


def test_random_test_parts_stay_and_give_every_node_its_own_scores() -> None:
    data, model = graph(), Linear(2)
    task = NodeTask(data, test_parts=4, random_test_parts=True, seed=3)
    assert task.evaluate(model) == NodeTask(data).evaluate(model)  # of a network that sees no edges
    first = model.seen[:4]
    assert [nodes for nodes, _ in first] == [N // 4] * 4
    task.evaluate(model)
    assert model.seen[-4:] == first
    NodeTask(data, test_parts=4).evaluate(model)
    assert model.seen[-4:] != first


def test_training_nodes_may_see_another_graph_in_every_epoch() -> None:
    data, model = graph(), Linear(2)
    task = NodeTask(data, draw=lambda epoch: graph(x=data.x + epoch))
    losses = [next(task.losses(model, epoch)).item() for epoch in (0, 1, 0)]
    assert losses[0] == losses[2] != losses[1]
    assert losses[0] == next(NodeTask(data).losses(model, 0)).item()


def test_tasks_with_one_class_are_counted_out() -> None:
    data = graph()
    assert NodeTask(data).tasks_scored() == {"train": 2, "valid": 2, "test": 2}
    data.y[data.test_mask, 1] = 0
    assert NodeTask(data).tasks_scored() == {"train": 2, "valid": 2, "test": 1}
    data.y[data.test_mask, 0] = 1
    with pytest.raises(DataError, match="No task has positives and negatives in the part 'test': nothing can be"):
        NodeTask(data)
    with pytest.raises(DataError, match="in the part 'train': nothing can be learned from it"):
        NodeTask(graph(y=data.y.masked_fill(data.train_mask.unsqueeze(1), 0)))
    one_class = replace(graphs([6, 7]), y=(torch.arange(12).unsqueeze(1) % 2) * (torch.arange(12).unsqueeze(1) > 5))
    with pytest.raises(DataError, match="in the part 'train'"):
        GraphTask(one_class, 4)


def test_what_draw_gives_is_looked_at_once() -> None:
    data, model = graph(), Linear(2)
    with pytest.raises(DataError, match="Features `x` are not finite"):
        next(NodeTask(data, draw=lambda epoch: graph(x=data.x * torch.nan)).losses(model, 0))
    with pytest.raises(ConfigError, match=r"What `draw` gave is a NoneType but a `torch_geometric\.data\.Data` was"):
        next(NodeTask(data, draw=lambda epoch: None).losses(model, 0))  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigError, match=r"The graph has labels `y` that are a ndarray, but a tensor was expected"):
        NodeTask(graph(y=data.y.numpy()))


def graphs(valid: list[int]) -> GraphSet:
    """Graphs of one node each, whose feature is their number; odd ones are positive."""
    ones, none = torch.ones(12, dtype=torch.int64), torch.zeros(12, dtype=torch.int64)
    return GraphSet.from_sizes(
        x=torch.arange(12.0).unsqueeze(1),
        edge_index=torch.zeros((2, 0), dtype=torch.int64),
        edge_attr=None,
        y=torch.arange(12).unsqueeze(1) % 2,
        num_nodes=ones,
        num_edges=none,
        parts={"train": torch.arange(6), "valid": torch.tensor(valid, dtype=torch.int64), "test": torch.arange(9, 12)},
    )


def test_graphs_come_in_batches_whose_order_depends_on_the_epoch() -> None:
    seen = []

    def model(x: Tensor, *_: Tensor | None, batch_size: int) -> Tensor:
        seen.append(x.flatten().tolist())
        return x[:, :1].requires_grad_()

    task = GraphTask(graphs([6, 7]), batch_size=4, seed=1)
    for epoch in (0, 0, 1):
        assert len(list(task.losses(model, epoch))) == 2  # type: ignore[arg-type]
    orders = [seen[i] + seen[i + 1] for i in (0, 2, 4)]
    assert [sorted(order) for order in orders] == 3 * [[0, 1, 2, 3, 4, 5]]
    assert orders[0] == orders[1] != orders[2]
    assert task.evaluate(model) == {"valid": 1.0, "test": 0.5}  # 7 is above 6; of 9 and 11, one is above 10
    assert task.tasks_scored() == {"train": 1, "valid": 1, "test": 1}


def test_parts_of_graphs_that_cannot_be_scored_are_refused() -> None:
    with pytest.raises(DataError, match="No graph is in the part 'valid' of the split"):
        GraphTask(graphs([]), batch_size=4)
    with pytest.raises(DataError, match="No task has positives and negatives in the part 'valid'"):
        GraphTask(graphs([6, 8]), batch_size=4)


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5])
@pytest.mark.parametrize("part", ["train", "valid"])
def test_strange_labels_are_refused_in_every_part(part: str, value: float) -> None:
    data = graph()
    data.y = data.y.float()
    data.y[data[f"{part}_mask"].nonzero()[0]] = value
    with pytest.raises(DataError, match=f"Labels of the part '{part}' hold {value} but 0, 1 or, where unknown, NaN"):
        NodeTask(data)


def test_strange_classes_are_refused() -> None:
    classes = graph()
    classes.y = torch.zeros(N)
    classes.y[classes.train_mask.nonzero()[0]] = -1
    with pytest.raises(DataError, match=r"Labels of the part 'train' hold -1\.0 but classes, counted from 0, were"):
        NodeTask(classes, score="accuracy")


def test_labels_to_train_on_are_needed() -> None:
    data = graph()
    data.y = data.y.float()
    data.y[data.train_mask] = torch.nan
    with pytest.raises(DataError, match="No label is known in the part 'train' of the split"):
        NodeTask(data)
    strange = graphs([6, 7])
    with pytest.raises(DataError, match="Labels of the part 'train' hold 2 but 0, 1 or"):
        GraphTask(replace(strange, y=2 * strange.y), batch_size=4)
