"""Deep sets, the baselines: functions of sets, whatever their order, padding or company."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.networks.helpers import generator, member, num_weights, rows

from fishnets.algebra import Information
from fishnets.errors import ConfigError, ShapeError
from fishnets.networks import DeepSet
from fishnets.networks.deepsets import DeepSetNetwork
from fishnets.networks.pooling import set_mean
from fishnets.priors import Normal
from fishnets.ragged import Sets

AGGREGATIONS = ("mean", "softmax")
both = pytest.mark.parametrize("aggregation", AGGREGATIONS)


def deepset(aggregation: Any, members: int = 2, seed: int = 0) -> DeepSetNetwork:
    return DeepSet(aggregation, embedding=16, hidden=8).build(3, 2, members, generator(seed)).double()


@pytest.fixture
def sets() -> Sets:
    return Sets.from_list([rows(n, 3, seed=n) for n in (5, 1, 0, 40)])


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(("aggregation", "expected"), [("mean", 87_810), ("softmax", 87_811)])
def test_number_of_weights_of_the_paper(aggregation: Any, expected: int, members: int) -> None:
    assert num_weights(DeepSet(aggregation).build(3, 2, members, generator())) == expected * members


@both
def test_result_against_a_loop_over_sets(aggregation: str, sets: Sets, close) -> None:
    net = deepset(aggregation)
    if net.temperature is not None:
        net.temperature.data.copy_(torch.tensor([0.7, 1.3]).view(2, 1, 1))
    for b, part in enumerate(sets.to_list()):
        hidden = torch.cat([embedding(part.unsqueeze(0)) for embedding in net.embeddings], dim=-1)
        weight = torch.full_like(hidden, 1 / max(1, len(part)))
        if net.temperature is not None:
            weight = torch.softmax(net.temperature * hidden, dim=1)
        close(net(sets)[:, b], net.readout((weight * hidden).sum(1, keepdim=True))[:, 0])


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
    close(torch.cat([net(sets[i]) for i in range(4)], dim=1), net(sets))
    close(net(sets[torch.tensor([3, 0])]), net(sets)[:, [3, 0]])


@both
def test_members_do_not_matter_to_each_other(aggregation: str, sets: Sets, close) -> None:
    net = deepset(aggregation, members=3)
    for k in range(3):
        alone = member(net, deepset(aggregation, members=1), k)
        close(alone(sets)[0], net(sets)[k])


@both
@pytest.mark.parametrize("size", [0, 1, 7])
def test_sets_of_one_size_give_what_ragged_ones_give(aggregation: str, size: int, close) -> None:
    net, values = deepset(aggregation), rows(4 * size, 3).requires_grad_()
    equal, ragged = Sets(values, size * torch.arange(5)), Sets(values, torch.tensor([0, 1, 2, 3, 4, 4]) * size)
    assert equal.common_size == size
    assert size == 0 or ragged.common_size is None
    results = [net(equal), net(ragged)[:, :4]]
    close(*results)
    for pair in zip(*(gradients(out, (values, *net.parameters())) for out in results), strict=True):
        close(*pair)


def gradients(out: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(out.square().sum(), inputs, materialize_grads=True)


@both
def test_empty_set_aggregates_to_zero(aggregation: str, close) -> None:
    net = deepset(aggregation)
    alone = net(Sets.from_list([torch.zeros(0, 3, dtype=torch.float64)]))
    close(alone, net.readout(torch.zeros(2, 1, 32, dtype=torch.float64)))


@both
def test_no_sets_at_all(aggregation: str) -> None:
    none = Sets(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    assert deepset(aggregation)(none).shape == (2, 0, 2)


@both
def test_gradients(aggregation: str, sets: Sets) -> None:
    net = deepset(aggregation)
    values = sets.values.clone().requires_grad_()
    weights = (values, net.embeddings[1].layers[0].weight, net.readout.layers[0].weight)
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
    hidden = torch.cat([embedding(part.unsqueeze(0)) for embedding in net.embeddings], dim=-1)
    close(net(Sets.from_list([part])), net.readout(hidden.amax(1, keepdim=True)))


@both
def test_copies_of_a_set_add_nothing(aggregation: str, close) -> None:
    net, part = deepset(aggregation), rows(6, 3)
    close(net(Sets.from_list([part.repeat(5, 1)])), net(Sets.from_list([part])))


def test_initial_weights_follow_the_seed() -> None:
    first, again, other = (deepset("mean", seed=seed).readout.layers[0].weight for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_members_and_the_two_embeddings_start_apart() -> None:
    first, second = (embedding.layers[0].weight for embedding in deepset("mean").embeddings)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("fisher", [0.3, 2.0])
def test_a_mean_deep_set_is_a_fishnet_of_flat_weights(fisher: float, sets: Sets, close) -> None:
    """F = f I and t = f (phi - fiducial) for every datum: the estimate is the mean of phi, drawn to the prior."""
    net = deepset("mean", members=1)
    phi = net.embeddings[0](sets.values.unsqueeze(0))[..., :2]  # (1, N, 2): any two channels
    mean, fiducial = set_mean(phi, sets)[0], torch.tensor([0.4, -1.0], dtype=torch.float64)
    count, eye = sets.sizes, torch.eye(2, dtype=torch.float64)
    total = Information.zero(2, (len(sets),), fiducial)
    for part, index in zip(phi[0], sets.index, strict=True):  # datum by datum
        here = (torch.arange(len(sets)) == index).double()
        score = here.unsqueeze(-1) * fisher * (part - fiducial)
        total = total + Information(score, here.view(-1, 1, 1) * fisher * eye, fiducial, here.long())
    assert torch.equal(total.count, count)
    centre, variance = torch.tensor([1.0, 2.0], dtype=torch.float64), 0.5
    shrunk = total.posterior(Normal(centre, variance * eye)).mean
    n = count.unsqueeze(-1).double()
    close(shrunk, (n * fisher * mean + centre / variance) / (n * fisher + 1 / variance))
    filled = count > 0  # without a prior an empty set points nowhere
    flat = fiducial + torch.linalg.solve(total.fisher[filled], total.score[filled])
    close(flat, mean[filled])


def test_a_few_steps_of_training_lower_the_error() -> None:
    net, source = DeepSet("softmax", embedding=16, hidden=8).build(3, 2, 1, generator()), generator(4)
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
        DeepSet("max")  # type: ignore[arg-type]


def test_layers_without_width_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"`embedding` 0 and `hidden` 64 must be at least 1"):
        DeepSet(embedding=0)
