"""Deep sets, the baselines: functions of sets, whatever their order, padding or company."""

from __future__ import annotations

import pytest
import torch
from tests.networks.helpers import generator, num_weights, rows

from fishnets.errors import ConfigError, ShapeError
from fishnets.networks import DeepSet
from fishnets.ragged import Sets

AGGREGATIONS = ("mean", "softmax")
both = pytest.mark.parametrize("aggregation", AGGREGATIONS)


def deepset(aggregation: str, seed: int = 0) -> DeepSet:
    return DeepSet(3, 2, aggregation, embedding=16, hidden=8, seed=seed).double()  # type: ignore[arg-type]


@pytest.fixture
def sets() -> Sets:
    return Sets.from_list([rows(n, 3, seed=n) for n in (5, 1, 0, 40)])


@pytest.mark.parametrize(("aggregation", "expected"), [("mean", 87_810), ("softmax", 87_811)])
def test_number_of_weights_of_the_paper(aggregation: str, expected: int) -> None:
    assert num_weights(DeepSet(3, 2, aggregation)) == expected  # type: ignore[arg-type]


@both
def test_result_against_a_loop_over_sets(aggregation: str, sets: Sets, close) -> None:
    net = deepset(aggregation)
    if net.temperature is not None:
        net.temperature.data.fill_(0.7)
    for got, part in zip(net(sets), sets.to_list(), strict=True):
        hidden = torch.cat([embedding(part) for embedding in net.embeddings], dim=-1)
        weight = torch.full_like(hidden, 1 / max(1, len(part)))
        if net.temperature is not None:
            weight = torch.softmax(net.temperature * hidden, dim=0)
        close(got, net.readout((weight * hidden).sum(0)))


@both
def test_order_of_rows_does_not_matter(aggregation: str, sets: Sets, close) -> None:
    net = deepset(aggregation)
    turned = Sets.from_list([part.flip(0) for part in sets.to_list()])
    close(net(turned), net(sets))


@both
def test_padding_does_not_matter(aggregation: str, sets: Sets, close) -> None:
    net = deepset(aggregation)
    padded = torch.full((4, 60, 3), torch.nan, dtype=torch.float64)
    mask = torch.arange(60) < sets.sizes.unsqueeze(1)
    padded[mask] = sets.values
    close(net(Sets.from_padded(padded, mask)), net(sets))


@both
def test_batch_mates_do_not_matter(aggregation: str, sets: Sets, close) -> None:
    net = deepset(aggregation)
    close(torch.cat([net(sets[i]) for i in range(4)]), net(sets))
    close(net(sets[torch.tensor([3, 0])]), net(sets)[[3, 0]])


@both
def test_empty_set_aggregates_to_zero(aggregation: str, close) -> None:
    net = deepset(aggregation)
    alone = net(Sets.from_list([torch.zeros(0, 3, dtype=torch.float64)]))
    close(alone, net.readout(torch.zeros(1, 32, dtype=torch.float64)))


@both
def test_gradients(aggregation: str, sets: Sets) -> None:
    net = deepset(aggregation)
    values = sets.values.clone().requires_grad_()
    weights = (values, net.embeddings[1][0].weight, net.readout[0].weight)
    if net.temperature is not None:
        weights = (*weights, net.temperature)
    assert torch.autograd.gradcheck(lambda *_: net(Sets(values, sets.offsets)), weights)


@both
def test_huge_values_stay_finite(aggregation: str) -> None:
    net = deepset(aggregation).float()
    values = torch.tensor([[1e15, -1e15, 1e15], [-1e15, 1e15, 3.0], [0.0, 0.0, 0.0]], requires_grad=True)
    out = net(Sets(values, torch.tensor([0, 2, 3])))
    out.sum().backward()
    assert bool(torch.isfinite(out).all())
    assert values.grad is not None
    assert bool(torch.isfinite(values.grad).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in net.parameters() if p.grad is not None)


def test_softmax_takes_the_largest_at_high_temperature(close) -> None:
    net = deepset("softmax")
    assert net.temperature is not None
    net.temperature.data.fill_(1e6)
    part = rows(30, 3)
    hidden = torch.cat([embedding(part) for embedding in net.embeddings], dim=-1)
    close(net(Sets.from_list([part]))[0], net.readout(hidden.max(0).values))


@both
def test_copies_of_a_set_add_nothing(aggregation: str, close) -> None:
    net, part = deepset(aggregation), rows(6, 3)
    close(net(Sets.from_list([part.repeat(5, 1)])), net(Sets.from_list([part])))


def test_initial_weights_follow_the_seed() -> None:
    assert torch.equal(deepset("mean", 3).readout[0].weight, deepset("mean", 3).readout[0].weight)
    assert not torch.equal(deepset("mean", 3).readout[0].weight, deepset("mean", 4).readout[0].weight)


def test_the_two_embeddings_differ() -> None:
    first, second = deepset("mean").embeddings
    assert not torch.equal(first[0].weight, second[0].weight)


def test_a_few_steps_of_training_lower_the_error() -> None:
    net, source = DeepSet(3, 2, "softmax", embedding=16, hidden=8), generator(4)
    theta = torch.randn(64, 2, generator=source)
    offsets = torch.arange(65) * 20
    noise = torch.randn(64 * 20, 3, generator=source)
    sets = Sets(noise + torch.nn.functional.pad(theta, (0, 1)).repeat_interleave(20, 0), offsets)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    errors = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (net(sets) - theta).square().mean()
        loss.backward()
        optimizer.step()
        errors.append(loss.item())
    assert errors[-1] < 0.3 * errors[0]


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"The sets have 4 features but 3 were expected"):
        deepset("mean")(Sets.from_list([rows(2, 4)]))


def test_aggregation_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'`aggregation` is "max" but "mean" or "softmax" was expected'):
        DeepSet(3, 2, "max")  # type: ignore[arg-type]
