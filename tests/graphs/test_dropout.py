"""Dropout keeps the mean, drops the share asked for, independently, and lets gradients through what it kept."""

from __future__ import annotations

import pytest
import torch
from tests.graphs.layers import seeded  # noqa: F401 a fixture

from fishnets.errors import ConfigError
from fishnets.graphs.dropout import Dropout


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
def test_the_share_is_dropped_and_the_mean_kept(share: float, device: torch.device, seeded: None) -> None:  # noqa: F811
    out = Dropout(share)(torch.ones(1_001, 1_001, device=device))
    error = (share * (1 - share)) ** 0.5 / 1_001
    assert abs((out == 0).double().mean().item() - share) < 5 * error + 2**-16
    assert abs(out.double().mean().item() - 1) < 5 * error / (1 - share) + 1e-6
    assert out[out != 0].unique().numel() == 1


def test_neighbours_are_dropped_independently(device: torch.device, seeded: None) -> None:  # noqa: F811
    kept = (Dropout(0.5)(torch.ones(2**20, device=device)) != 0).double()
    for lag in (1, 2, 3, 4, 8):  # four features share a draw
        both = (kept[lag:] * kept[:-lag]).mean().item()
        assert abs(both - 0.25) < 5 * (0.1875 / 2**20) ** 0.5 * 1.3


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (5, 2), (2, 3, 7)])
def test_every_shape_and_precision(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
    for one in (dtype, torch.bfloat16):
        out = Dropout(0.5)(torch.ones(shape, device=device, dtype=one))
        assert out.shape == shape
        assert out.dtype == one
        assert bool(((out == 0) | (out == 2)).all())


def test_gradients_pass_where_features_were_kept(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(40, 5, device=device, dtype=dtype).mT.requires_grad_()  # not contiguous
    out = Dropout(0.3)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), out.detach())


def test_draws_differ_and_repeat_with_the_seed(device: torch.device, seeded: None) -> None:  # noqa: F811
    x, drop, found = torch.ones(64, device=device), Dropout(0.5), []
    for _ in range(2):
        torch.manual_seed(3)
        found.append((drop(x), drop(x)))
    assert not torch.equal(*found[0])
    assert torch.equal(found[0][0], found[1][0])


def test_nothing_is_dropped_in_evaluation_or_with_a_share_of_zero() -> None:
    x = torch.randn(7)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert repr(Dropout(0.5)) == "Dropout(share=0.5)"


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_shares_that_are_none_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=rf"`share` is {share} but a number in \[0, 1\) was expected"):
        Dropout(share)


def test_a_share_close_to_one_keeps_next_to_nothing(seeded: None) -> None:  # noqa: F811
    assert int((Dropout(0.9999999)(torch.ones(10_000)) != 0).sum()) < 10


def test_it_is_seen_through_by_the_compiler_and_by_transforms(seeded: None) -> None:  # noqa: F811
    drop = Dropout(0.5)
    torch._dynamo.reset()
    out = torch.compile(drop, fullgraph=True, backend="aot_eager")(torch.ones(1_000))
    assert sorted(out.unique().tolist()) == [0.0, 2.0]
    torch._dynamo.reset()
    rows = torch.func.vmap(drop, randomness="different")(torch.ones(2, 1_000))
    assert not torch.equal(rows[0], rows[1])
