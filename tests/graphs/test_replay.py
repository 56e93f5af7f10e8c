"""Updates that are replayed train as plain ones do; on a GPU they are captured."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.graphs.layers import seeded  # noqa: F401 a fixture
from torch_geometric.data import Data

from fishnets.errors import ConfigError, NonFiniteError, NonFiniteLossError
from fishnets.graphs import Curves, DeeperGCN, FishnetsAggregation, NodeTask, Recipe, fit, selection
from fishnets.graphs.pna import PNAAggregation
from fishnets.graphs.tasks import StillLoss
from fishnets.ops.memory import keeping, remembered
from fishnets.ops.replay import WARM_UP

DEGREES = torch.tensor([0, 1, 5, 20])
MAKERS = {
    "fishnets": partial(FishnetsAggregation, num_params=4),
    "paper": partial(FishnetsAggregation, num_params=4, form="paper"),
    "pna": partial(PNAAggregation, degrees=DEGREES),
}
KINDS = [*MAKERS, "softmax", "sum", "mean"]


def graph(device: torch.device | str) -> Data:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(300, (2, 2_000), generator=generator)
    edge_index = torch.cat([source, source.flip(0)], dim=1)
    score = torch.rand(2_000, 3, generator=generator).repeat(2, 1)
    data = Data(edge_index=edge_index, edge_attr=score, num_nodes=300).sort(sort_by_row=False)
    data.x = torch.randn(300, 3, generator=generator)
    data.y = (data.x[:, :2] > 0).long()
    part = torch.randint(3, (300,), generator=generator)
    data.train_mask, data.valid_mask, data.test_mask = (part == i for i in range(3))
    return data.to(device)


def task_on(data: Data, drawn: bool) -> NodeTask:
    """Labels of the nodes; where training graphs are drawn, three that differ much take turns."""
    if not drawn:
        return NodeTask(data)
    graphs = [copy(data) for _ in range(3)]
    for graph, scale in zip(graphs, (1, -1, 2), strict=True):
        graph.x, graph.edge_attr = scale * data.x, scale * data.edge_attr
    return NodeTask(dict.fromkeys(("valid", "test"), data), draw=lambda epoch: graphs[epoch % 3])


def trained(
    data: Data, drawn: bool, recipe: Recipe, kind: str = "fishnets", dropout: float = 0.0, path: Path | None = None
) -> tuple[DeeperGCN, Curves]:
    torch.manual_seed(3)
    sizes = {"hidden": 16, "num_layers": 3, "dropout": dropout}
    model = DeeperGCN(3, 3, 2, aggregation=MAKERS.get(kind, kind), **sizes).to(data.x.device)
    return model, fit(model, task_on(data, drawn), recipe, path)


def test_what_is_remembered_is_kept_for_those_who_ask() -> None:
    index = torch.tensor([1, 0])
    assert remembered(index, "smallest", lambda: 0) == 0
    with keeping() as first, keeping() as second:
        remembered(index, "smallest", lambda: 1 / 0)
    remembered(index, "smallest", lambda: 1 / 0)
    assert (first, second) == ([], [0])


@pytest.mark.parametrize("drawn", [False, True])
def test_updates_from_tensors_that_stay_are_the_same(drawn: bool, seeded: None) -> None:  # noqa: F811
    recipes = [Recipe(8, 3e-3, every=2, replay=replay) for replay in (True, False)]
    found = [trained(graph("cpu"), drawn, recipe, dropout=0.3)[1] for recipe in recipes]
    assert found[0].loss == found[1].loss
    assert found[0].scores == found[1].scores


def test_what_a_task_draws_is_left_as_it_was() -> None:
    task = task_on(graph("cpu"), drawn=True)
    still, before = task.still(), [task.draw(epoch).x.clone() for epoch in range(3)]
    assert still is not None
    for epoch in range(6):
        still.refresh(epoch)
        assert torch.equal(still.graph.x, before[epoch % 3])
    assert all(torch.equal(task.draw(epoch).x, before[epoch]) for epoch in range(3))
    assert NodeTask(graph("cpu"), parts=2).still() is None


@pytest.mark.parametrize("name", ["edge_index", "y", "train_mask"])
def test_a_drawn_graph_with_other_edges_or_labels_is_refused(name: str) -> None:
    data, drawn = graph("cpu"), [copy(graph("cpu")) for _ in range(2)]
    for other in {"edge_index", "y", "train_mask"} - {name}:
        drawn[0][other] = drawn[1][other]
    still = NodeTask(data, draw=lambda epoch: drawn[epoch]).still()
    assert still is not None
    still.refresh(0)
    with pytest.raises(ConfigError, match=f"a graph whose `{name}` is its own, but updates that are replayed have"):
        still.refresh(1)


def test_edges_need_no_features() -> None:
    data = graph("cpu")
    del data.edge_attr
    still = NodeTask(data, draw=lambda epoch: copy(data)).still()
    assert still is not None
    for epoch in range(2):
        still.refresh(epoch)
    assert float(still(lambda x, edge_index, edge_attr: torch.zeros(len(x), 2))) == pytest.approx(math.log(2), rel=1e-6)


def test_what_was_captured_is_given_back_when_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    released = []
    monkeypatch.setattr("fishnets.graphs.selection._Training.release", lambda training: released.append(training))
    with pytest.raises((NonFiniteError, NonFiniteLossError)):
        trained(graph("cpu"), False, Recipe(40, 1e30, clip=None))
    assert len(released) == 1


WATCHED = Recipe(epochs=30, learning_rate=1e-2, every=5, warm_up=10, replay=True)
CLOSE = 2e-2  # relative; sums in no fixed order change losses by less


@pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning")  # PNA would be faster with another package
@pytest.mark.parametrize(
    ("fault", "kind"), [*product(["frozen rate", "frozen draw"], KINDS), ("forgotten moments", "fishnets")]
)
def test_faults_of_captured_updates_would_be_seen(
    fault: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: None  # noqa: F811
) -> None:
    losses = [trained(graph("cpu"), True, WATCHED, kind)[1].loss]
    rate, refresh, restore = Recipe.rate, StillLoss.refresh, selection._Training._restore
    path = tmp_path / "run.pt" if fault == "forgotten moments" else None
    if fault == "frozen rate":
        monkeypatch.setattr(Recipe, "rate", lambda recipe, epoch: rate(recipe, min(epoch, WARM_UP)))
    elif fault == "frozen draw":
        monkeypatch.setattr(StillLoss, "refresh", lambda still, epoch: epoch > WARM_UP or refresh(still, epoch))
    else:

        def forgetful(training: selection._Training, path: Path) -> None:
            restore(training, path)
            training.optimizer.state.clear()

        monkeypatch.setattr(selection._Training, "_restore", forgetful)
        interrupted(graph("cpu"), WATCHED, path, monkeypatch, kind)
    losses.append(trained(graph("cpu"), True, WATCHED, kind, path=path)[1].loss)
    right, wrong = map(torch.tensor, losses)
    assert float((wrong / right - 1).abs().max()) > 2 * CLOSE


def interrupted(
    data: Data, recipe: Recipe, path: Path | None, monkeypatch: pytest.MonkeyPatch, kind: str = "fishnets"
) -> None:
    """Trains until the third evaluation, and leaves the checkpoint of the second."""
    evaluate, calls = NodeTask.evaluate, []

    def stops(task: NodeTask, model: object) -> dict[str, float]:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(task, model)

    with monkeypatch.context() as patch:
        patch.setattr(NodeTask, "evaluate", stops)
        with pytest.raises(KeyboardInterrupt):
            trained(data, True, recipe, kind, path=path)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drawn", [False, True])
def test_captured_updates_train_as_plain_ones_do(
    device: torch.device, kind: str, drawn: bool, seeded: None  # noqa: F811
) -> None:
    recipes = (WATCHED, replace(WATCHED, replay=False))
    losses = [torch.tensor(trained(graph(device), drawn, recipe, kind)[1].loss) for recipe in recipes]
    torch.testing.assert_close(*losses, rtol=CLOSE, atol=0.0)


@pytest.mark.gpu
def test_dropout_is_drawn_anew_in_every_replay(device: torch.device, seeded: None) -> None:  # noqa: F811
    recipe = Recipe(epochs=20, learning_rate=1e-9, replay=True)  # weights stay as they are
    loss = trained(graph(device), False, recipe, dropout=0.5)[1].loss
    assert len(set(loss)) > 15


@pytest.mark.gpu
def test_a_captured_training_continues_where_it_was(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: None  # noqa: F811
) -> None:
    data, path = graph(device), tmp_path / "run.pt"
    whole = torch.tensor(trained(data, True, WATCHED)[1].loss)
    interrupted(data, WATCHED, path, monkeypatch)
    again = torch.tensor(trained(data, True, WATCHED, path=path)[1].loss)
    torch.testing.assert_close(again, whole, rtol=CLOSE, atol=0.0)
