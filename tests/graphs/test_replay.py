"""Replayed networks train as plain ones do, on a GPU."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.graphs.layers import seeded  # noqa: F401 a fixture
from torch_geometric.data import Data

from fishnets.graphs import DeeperGCN, EdgeNoise, FishnetsAggregation, NodeTask, Recipe, fit
from fishnets.graphs.pna import PNAAggregation
from fishnets.ops.memory import keeping, remembered

DEGREES = torch.tensor([0, 1, 5, 20])


def graph(device: torch.device) -> Data:
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(300, (2, 2_000), generator=generator)
    edge_index = torch.cat([source, source.flip(0)], dim=1)
    score = torch.rand(2_000, 3, generator=generator).repeat(2, 1)
    data = Data(edge_index=edge_index, edge_attr=score, num_nodes=300).sort(sort_by_row=False)
    data.x = torch.randn(300, 3, generator=generator)
    data.y = (torch.rand(300, 2, generator=generator) < 0.5).long()
    part = torch.randint(3, (300,), generator=generator)
    data.train_mask, data.valid_mask, data.test_mask = (part == i for i in range(3))
    return data.to(device)


def test_what_is_remembered_is_kept_for_those_who_ask() -> None:
    index = torch.tensor([1, 0])
    assert remembered(index, "smallest", lambda: 0) == 0
    with keeping() as kept:
        remembered(index, "smallest", lambda: 1 / 0)
    remembered(index, "smallest", lambda: 1 / 0)
    assert kept == [0]


def test_a_task_has_inputs_where_its_updates_are_of_the_whole_graph() -> None:
    data = graph(torch.device("cpu"))
    found = NodeTask(data).inputs()
    assert found is not None
    assert found[1] is data.edge_index
    assert NodeTask(data, parts=2).inputs() is None
    noisy = NodeTask(data, draw=lambda epoch: EdgeNoise(data).draw("train", torch.Generator().manual_seed(epoch)))
    assert noisy.inputs()[2].shape == (4_000, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fishnets", "paper", "softmax", "sum", "mean", "pna"])
@pytest.mark.parametrize("noisy", [False, True])
def test_replayed_networks_train_as_plain_ones_do(device: torch.device, kind: str, noisy: bool, seeded: None) -> None:  # noqa: F811
    data = graph(device)
    makers = {"fishnets": partial(FishnetsAggregation, num_params=4), "pna": partial(PNAAggregation, degrees=DEGREES)}
    makers["paper"] = partial(FishnetsAggregation, num_params=4, form="paper")

    def draw(epoch: int) -> Data:
        return EdgeNoise(data).draw("train", torch.Generator(device).manual_seed(epoch))

    task = NodeTask(dict.fromkeys(("valid", "test"), draw(99)), draw=draw) if noisy else NodeTask(data)
    losses = []
    for replay in (True, False):
        torch.manual_seed(3)
        sizes = {"hidden": 16, "num_layers": 3, "dropout": 0.0}
        model = DeeperGCN(3 + noisy, 3 + noisy, 2, aggregation=makers.get(kind, kind), **sizes)
        curves = fit(model.to(device), task, Recipe(epochs=30, learning_rate=3e-3, every=5, replay=replay))
        losses.append(torch.tensor(curves.loss))
        assert "forward" not in vars(model)
    assert losses[1][-1] < losses[1][0]
    torch.testing.assert_close(*losses, rtol=2e-2, atol=0.0)  # sums in no fixed order


@pytest.mark.gpu
def test_dropout_is_drawn_anew_in_every_replay(device: torch.device, seeded: None) -> None:  # noqa: F811
    from fishnets.graphs.replay import replayed

    data = graph(device)
    model = DeeperGCN(3, 3, 2, hidden=16, num_layers=2, dropout=0.5, norm="batch").to(device).train()
    inputs, mean = (data.x, data.edge_index, data.edge_attr), model.layers[0].norm.running_mean.clone()
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state(device)
    with replayed(model, inputs):
        assert torch.equal(before, torch.cuda.get_rng_state(device))
        assert torch.equal(mean, model.layers[0].norm.running_mean)
        first, second = model(*inputs).clone(), model(*inputs).clone()
        assert not torch.equal(first, second)
        shifted = model(data.x + 1, *inputs[1:]).clone()
        assert not torch.allclose(shifted, second)
        model.eval()
        assert torch.equal(model(*inputs), model(*inputs))
