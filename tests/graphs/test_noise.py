"""Noise on edges: one measurement for both directions, laws, realisations that stay, and the published way."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.graphs.datasets import sum_of_edges
from fishnets.graphs.noise import EdgeNoise

NODES, EDGES = 30, 4_000


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    ends, score = torch.randint(NODES, (2, EDGES), generator=generator), torch.rand(EDGES, 3, generator=generator)
    both = torch.stack([ends, ends.flip(0)], dim=2).reshape(2, -1)  # each edge followed by its reverse
    return Data(edge_index=both, edge_attr=score.repeat_interleave(2, dim=0), num_nodes=NODES)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_directions_of_an_edge_are_one_measurement() -> None:
    noisy = EdgeNoise(graph()).draw("train", seeded(1))
    assert torch.equal(noisy.edge_attr[::2], noisy.edge_attr[1::2])
    assert len(noisy.edge_attr[::2].unique(dim=0)) > 0.99 * EDGES
    published = EdgeNoise(graph(), published=True).draw("train", seeded(1))
    assert not torch.equal(published.edge_attr[::2], published.edge_attr[1::2])


def test_directions_are_found_where_no_edges_are_parallel() -> None:
    edge_index = torch.tensor([[0, 2, 1, 1, 0], [1, 1, 0, 2, 0]])
    score = torch.tensor([[0.3], [0.6], [0.3], [0.6], [0.9]])
    noisy = EdgeNoise(Data(edge_index=edge_index, edge_attr=score, num_nodes=3)).draw("train", seeded(7)).edge_attr
    assert torch.equal(noisy[:2], noisy[2:4])
    assert len(noisy.unique(dim=0)) == 3


@pytest.mark.parametrize("published", [False, True])
def test_counts_are_binomial(published: bool) -> None:
    data = graph()
    noisy = EdgeNoise(data, published).draw("train", seeded(2))
    trials = 200 * noisy.edge_attr[:, 3:]
    assert trials.round().unique().tolist() == list(range(20, 200))
    counts = noisy.edge_attr[:, :3] * trials
    torch.testing.assert_close(counts, counts.round(), atol=1e-3, rtol=0)
    p = data.edge_attr.clamp(0.02, 0.98)
    z = (noisy.edge_attr[:, :3] - p) / (p * (1 - p) / trials).sqrt()
    inner = ((data.edge_attr > 0.02) & (data.edge_attr < 0.98))[::2]
    assert abs(float(z[::2][inner].mean())) < 0.03
    assert float(z[::2][inner].var()) == pytest.approx(1.0, abs=0.04)


def test_tests_have_few_trials_or_many() -> None:
    trials = (200 * EdgeNoise(graph()).draw("test", seeded(3)).edge_attr[::2, 3]).round()
    few = trials < 50
    assert bool(((trials >= 20) & few | (trials >= 170) & (trials < 200)).all())
    assert float(few.double().mean()) == pytest.approx(0.5, abs=0.03)
    assert 0.4 < float(few[: EDGES // 2].double().mean()) < 0.6  # not by the order of the list
    published = (200 * EdgeNoise(graph(), published=True).draw("test", seeded(3)).edge_attr[:, 3]).round()
    assert bool((published[:EDGES] < 50).all())
    assert bool((published[EDGES:] >= 170).all())


def test_trials_may_be_fewer() -> None:
    noise = EdgeNoise(graph(), laws={"train": ((1, 10),), "test": ((1, 3), (8, 10))})
    seen = {law: (10 * noise.draw(law, seeded(8)).edge_attr[:, 3]).round().unique().tolist() for law in noise.laws}
    assert seen == {"train": list(range(1, 10)), "test": [1, 2, 8, 9]}
    for laws, message in (
        ({"train": [(0, 5)]}, r"`laws\['train'\]` has trials from 0 to below 5, but numbers of trials, 1 or more"),
        ({"train": []}, r"`laws\['train'\]` has no range, but numbers of trials"),
        ({}, "`laws` is empty but ranges of the number of trials"),
    ):
        with pytest.raises(ConfigError, match=message):
            EdgeNoise(graph(), laws=laws)


def test_a_seed_makes_a_realisation_that_stays() -> None:
    noise = EdgeNoise(graph())
    one, same, other = (noise.draw("train", seeded(seed)).edge_attr for seed in (4, 4, 5))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_nodes_sum_the_noisy_features_of_the_whole_graph() -> None:
    data = graph()
    noisy = EdgeNoise(data).draw("test", seeded(6))
    torch.testing.assert_close(noisy.x, sum_of_edges(noisy))
    assert noisy.x.shape == (NODES, 4)
    assert data.edge_attr.shape == (2 * EDGES, 3)  # the graph that was given is as it was


def test_what_is_refused() -> None:
    data = graph()
    with pytest.raises(ConfigError, match=r"`law` is 'valid' but one of \['train', 'test'\]"):
        EdgeNoise(data).draw("valid", seeded(0))
    data.edge_attr[0, 0] = 1.5
    with pytest.raises(DataError, match=r"`edge_attr` holds 1\.5 but scores between 0 and 1 were expected"):
        EdgeNoise(data)
    data.edge_attr = data.edge_attr[:3]
    with pytest.raises(ShapeError, match=rf"`edge_attr` has shape \(3, 3\) but scores of shape \({2 * EDGES}, d\)"):
        EdgeNoise(data)


@pytest.mark.gpu
def test_noise_is_drawn_where_the_graph_is() -> None:
    data = graph().to("cuda")
    noise = EdgeNoise(data)
    one, again = (noise.draw("test", torch.Generator("cuda").manual_seed(1)) for _ in range(2))
    assert one.edge_attr.is_cuda
    assert torch.equal(one.edge_attr, again.edge_attr)
    assert torch.equal(one.edge_attr[::2], one.edge_attr[1::2])
    trials = 200 * one.edge_attr[:, 3:]
    excess = (one.edge_attr[:, :3] - data.edge_attr) / (data.edge_attr * (1 - data.edge_attr) / trials).sqrt()
    assert excess[data.edge_attr[:, 0] > 0.05].var().item() == pytest.approx(1, abs=0.1)
