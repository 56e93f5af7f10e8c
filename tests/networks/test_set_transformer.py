"""Set Transformers: functions of sets, whatever their order or company, ragged or of one size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.networks.helpers import generator, member, num_weights, rows

from fishnets.errors import ConfigError, ShapeError
from fishnets.networks import SetTransformer
from fishnets.networks.set_transformer import SetTransformerNetwork
from fishnets.ragged import Sets

norms = pytest.mark.parametrize("norm", [True, False])


def transformer(norm: bool = True, members: int = 2, seed: int = 0, **sizes: Any) -> SetTransformerNetwork:
    sizes = {"width": 12, "heads": 3, "inducing": 4} | sizes
    return SetTransformer(**sizes, norm=norm).build(3, 2, members, generator(seed)).double()


@pytest.fixture
def sets() -> Sets:
    return Sets.from_list([rows(n, 3, seed=n) for n in (5, 1, 0, 40)])


@pytest.mark.parametrize("members", [1, 3])
def test_size_is_that_of_the_deep_sets(members: int) -> None:
    assert 80_000 < num_weights(SetTransformer().build(3, 2, members, generator())) / members < 100_000


def attention(block: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One block on one set of one member, head by head: queries x (a, w), keys and values y (b, w)."""

    def linear(layer: Any, z: torch.Tensor) -> torch.Tensor:
        return z @ layer.weight[0] + layer.bias[0]

    def norm(number: int, z: torch.Tensor) -> torch.Tensor:
        if not len(block.norms):
            return z
        centred = z - z.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    mixed = []
    queries, keys, values = linear(block.query, x), linear(block.key, y), linear(block.value, y)
    for q, k, v in zip(*(t.chunk(block.heads, -1) for t in (queries, keys, values)), strict=True):
        mixed.append(torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) @ v if len(y) else torch.zeros_like(q))
    x = norm(0, x + linear(block.join, torch.cat(mixed, -1)))
    return norm(1, x + torch.nn.functional.silu(linear(block.feed, x)))


@norms
def test_result_against_a_loop_over_sets_and_heads(norm: bool, sets: Sets, close) -> None:
    net = transformer(norm, members=1)
    for b, part in enumerate(sets.to_list()):
        x = net.enter(part.unsqueeze(0))[0]
        for block in net.blocks:
            x = attention(block.spread, x, attention(block.gather, block.points[0], x))
        pooled = attention(net.pool, net.seed[0], torch.nn.functional.silu(net.feed(x.unsqueeze(0))[0]))
        close(net(sets)[0, b], net.readout(pooled.unsqueeze(0))[0, 0])


@norms
def test_order_of_rows_does_not_matter(norm: bool, sets: Sets, close) -> None:
    net = transformer(norm)
    close(net(Sets.from_list([part.flip(0) for part in sets.to_list()])), net(sets))


@norms
def test_batch_mates_do_not_matter(norm: bool, sets: Sets, close) -> None:
    net = transformer(norm)
    close(torch.cat([net(sets[i]) for i in range(4)], dim=1), net(sets))
    close(net(sets[torch.tensor([3, 0])]), net(sets)[:, [3, 0]])


@norms
def test_members_do_not_matter_to_each_other(norm: bool, sets: Sets, close) -> None:
    net = transformer(norm, members=3)
    for k in range(3):
        alone = member(net, transformer(norm, members=1), k)
        close(alone(sets)[0], net(sets)[k])


@norms
@pytest.mark.parametrize("size", [0, 1, 7])
def test_sets_of_one_size_give_what_ragged_ones_give(norm: bool, size: int, close) -> None:
    net, values = transformer(norm), rows(4 * size, 3).requires_grad_()
    equal, ragged = Sets(values, size * torch.arange(5)), Sets(values, torch.tensor([0, 1, 2, 3, 4, 4]) * size)
    assert equal.common_size == size
    assert size == 0 or ragged.common_size is None
    results = [net(equal), net(ragged)[:, :4]]
    close(*results)
    inputs = (values, *net.parameters())
    grads = [torch.autograd.grad(out.square().sum(), inputs, materialize_grads=True) for out in results]
    for pair in zip(*grads, strict=True):
        close(*pair)


def test_gradients(sets: Sets) -> None:
    net = transformer(width=4, heads=2, inducing=2, depth=1)
    values = sets.values[:6].clone().requires_grad_()
    weights = (values, net.blocks[0].points, net.seed, net.blocks[0].gather.key.weight, net.pool.norms[0].gain)
    assert torch.autograd.gradcheck(lambda *_: net(Sets(values, torch.tensor([0, 4, 4, 6]))), weights)


def test_copies_of_a_set_add_nothing(close) -> None:
    net, part = transformer(), rows(6, 3)
    close(net(Sets.from_list([part.repeat(5, 1)])), net(Sets.from_list([part])))


def test_rows_know_of_each_other() -> None:
    """Unlike in a deep set, what a row contributes depends on its company."""
    net, part = transformer(), rows(6, 3)
    jacobian = torch.autograd.functional.jacobian(lambda x: net(Sets.from_list([x]))[0, 0, 0], part[:2])
    company = torch.autograd.functional.jacobian(
        lambda x: net(Sets.from_list([torch.cat([x, part[2:]])]))[0, 0, 0], part[:2]
    )
    assert not torch.allclose(jacobian / jacobian.norm(), company / company.norm(), rtol=1e-3)


@norms
def test_huge_values_stay_finite(norm: bool) -> None:
    net = transformer(norm).float()
    values = torch.tensor([[1e4, -1e4, 1e4], [-1e4, 1e4, 3.0], [0.0, 0.0, 0.0]], requires_grad=True)
    out = net(Sets(values, torch.tensor([0, 2, 3])))
    grads = torch.autograd.grad(out.sum(), (values, *net.parameters()))
    assert all(bool(torch.isfinite(t).all()) for t in (out, *grads))


def test_initial_weights_follow_the_seed() -> None:
    first, again, other = (transformer(seed=seed).seed for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


def test_no_sets_at_all() -> None:
    none = Sets(torch.zeros(0, 3, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    assert transformer()(none).shape == (2, 0, 2)


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"The sets have 4 features but 3 were expected"):
        transformer()(Sets.from_list([rows(2, 4)]))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 10, "heads": 3}, r"`width` is 10 but a multiple of the 3 `heads` was expected"),
        ({"inducing": 0}, r"`width` 56, `heads` 4 and `inducing` 0 must be at least 1 and `depth` 2 at least 0"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SetTransformer(**sizes)  # type: ignore[arg-type]
