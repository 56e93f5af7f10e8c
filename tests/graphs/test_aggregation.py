"""FishnetsAggregation: exact sums, weights, and what a neighbourhood says beside its features.

Eleven messages go to five nodes; node 3 has none. How it lives inside PyTorch Geometric is in test_drop_in.py.
"""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys

import pytest
import torch
from tests.graphs.dense import dense_estimates, dense_information, prior_precision
from tests.graphs.layers import every_form, finite_gradients, perturbed, seeded, small  # noqa: F401 seeded is a fixture
from tests.laws import check_merging, check_printing, equal, same_information
from torch import Tensor
from torch_geometric.nn.aggr import MeanAggregation

from fishnets.errors import ConfigError, DataError, ShapeError
from fishnets.graphs import FishnetsAggregation

WIDTH, PARAMS, NODES = 6, 3, 5
SORTED, PTR = (0, 0, 0, 1, 1, 2, 4, 4, 4, 4, 4), (0, 3, 5, 6, 6, 11)


@pytest.fixture
def index(device: torch.device) -> Tensor:
    return torch.tensor(SORTED, device=device)


@pytest.fixture
def ptr(device: torch.device) -> Tensor:
    return torch.tensor(PTR, device=device)


@pytest.fixture
def x(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.randn(len(SORTED), WIDTH, device=device, dtype=dtype)


@pytest.fixture
def make(device: torch.device, dtype: torch.dtype):
    """Makes an aggregation on the device and in the dtype under test, its parameters away from their start."""

    def make(form: str = "regression", out_channels: int | None = None) -> FishnetsAggregation:
        made = FishnetsAggregation(WIDTH, out_channels, PARAMS, form=form, device=device, dtype=dtype)
        return perturbed(made)

    return make


# Sums: index, ptr, dimensions, empty groups


@every_form
def test_sorted_unsorted_ptr_and_both_agree(form, make, x, index, ptr, close) -> None:
    aggregation, order = make(form, 4), torch.randperm(len(x), device=x.device)
    expected = aggregation(x, index)
    assert expected.shape == (NODES, 4)
    close(aggregation(x[order], index[order]), expected)
    close(aggregation(x, ptr=ptr), expected)
    close(aggregation(x, index, ptr), expected)
    close(aggregation(x, index.int()), expected)


DIMENSIONS = [
    *[((11, 6), 0), ((11, 6), -2)],
    *[((11, 2, 6), 0), ((11, 2, 6), -3), ((2, 11, 6), 1), ((2, 11, 6), -2)],
    *[((11, 2, 3, 6), 0), ((11, 2, 3, 6), -4), ((2, 11, 3, 6), 1), ((2, 3, 11, 6), 2), ((2, 3, 11, 6), -2)],
]


@every_form
@pytest.mark.parametrize(("shape", "dim"), DIMENSIONS, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_any_dimension_but_the_last(form, shape, dim, weighted, make, index, ptr, close) -> None:
    aggregation = make(form, 4)
    x = torch.randn(shape, dtype=aggregation.lin_in.weight.dtype, device=index.device)
    weight = torch.rand(11, dtype=x.dtype, device=x.device) if weighted else None
    out = aggregation(x, index, dim_size=NODES, dim=dim, weight=weight)
    assert out.shape == (*[NODES if size == 11 else size for size in shape[:-1]], 4)
    close(aggregation(x, ptr=ptr, dim=dim, weight=weight), out)
    slices = x.movedim(dim, 0).reshape(11, -1, WIDTH).unbind(1)  # each a set of messages of its own
    for given, found in zip(slices, out.movedim(dim, 0).reshape(NODES, -1, 4).unbind(1), strict=True):
        close(found, aggregation(given, index, weight=weight))


@pytest.mark.parametrize("dim", [-1, 1])
def test_the_dimension_of_the_channels_is_refused(dim, make, x, index) -> None:
    with pytest.raises(ShapeError, match=rf"^`dim` is {dim}, the last of 2, but that one holds the channels; give the"):
        make()(x, index, dim=dim)


@every_form
def test_empty_groups_give_exactly_zero_and_finite_gradients(form, make, x, index) -> None:
    aggregation = make(form)
    out = aggregation(x.requires_grad_(), index, dim_size=9)
    assert out.shape == (9, WIDTH)
    empty = torch.tensor([node not in SORTED for node in range(9)], device=x.device)
    assert torch.equal(out[empty], torch.zeros_like(out[empty]))
    assert (out[~empty] != 0).all()
    out.sum().backward()
    finite_gradients(aggregation)
    assert x.grad.isfinite().all()
    alone, = torch.autograd.grad(aggregation(x, index, dim_size=9)[empty].sum(), x)
    assert torch.equal(alone, torch.zeros_like(x))


@every_form
@pytest.mark.parametrize("shape", [(0, WIDTH), (0, 2, WIDTH)])
def test_no_messages_at_all(form, shape, make, index, ptr) -> None:
    aggregation = make(form)
    x = torch.zeros(shape, dtype=aggregation.lin_in.weight.dtype, device=index.device, requires_grad=True)
    expected = x.new_zeros((4, *shape[1:]))
    equal(aggregation(x, index[:0], dim_size=4, dim=0), expected)
    equal(aggregation(x, ptr=torch.zeros_like(ptr), dim=0), x.new_zeros((5, *shape[1:])))
    assert aggregation(x, index[:0], dim=0).shape == (0, *shape[1:])
    aggregation(x, index[:0], dim_size=4, dim=0).sum().backward()
    finite_gradients(aggregation)


@every_form
def test_output_follows_the_input_dtype(form, index) -> None:
    index = index.cpu()
    for dtype, tolerance in ((torch.float64, 0.0), (torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        torch.manual_seed(3)
        aggregation, x = FishnetsAggregation(WIDTH, num_params=PARAMS, form=form), torch.randn(11, WIDTH)
        reference = copy.deepcopy(aggregation).double()(x.double(), index)
        out = aggregation.to(dtype)(x.to(dtype), index)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), reference, rtol=tolerance, atol=tolerance)


@every_form
def test_autocast_sums_and_solves_in_float32(form, index) -> None:
    index, aggregation = index.cpu(), FishnetsAggregation(WIDTH, num_params=PARAMS, form=form)
    x = torch.randn(11, WIDTH, requires_grad=True)
    reference = aggregation(x, index)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, rows = aggregation(x, index), aggregation.encode(x)
    assert (out.dtype, rows.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.float(), reference, rtol=0.05, atol=0.05)
    out.float().square().sum().backward()
    finite_gradients(aggregation)
    assert x.grad.isfinite().all()
    assert not torch.is_autocast_enabled("cpu")


# Gradients


@every_form
@pytest.mark.parametrize("by", ["index", "ptr"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_first_and_second_order(form, by, weighted) -> None:
    aggregation = perturbed(FishnetsAggregation(3, 2, 2, form=form, dtype=torch.float64))
    index, ptr = torch.tensor([1, 0, 3, 1]), torch.tensor([0, 1, 3, 3, 4])
    where = {"index": index, "dim_size": 4} if by == "index" else {"ptr": ptr}
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    inputs = (x, 0.5 + torch.rand(4, dtype=torch.float64).requires_grad_()) if weighted else (x,)

    def aggregate(x: Tensor, weight: Tensor | None = None) -> Tensor:
        return aggregation(x, weight=weight, **where)

    assert torch.autograd.gradcheck(aggregate, inputs)
    assert torch.autograd.gradgradcheck(aggregate, inputs)


@every_form
def test_gradients_reach_every_parameter(form) -> None:
    aggregation, index = FishnetsAggregation(3, 2, 2, form=form, dtype=torch.float64), torch.tensor([1, 0, 3, 1])
    names, values = zip(*perturbed(aggregation).named_parameters(), strict=True)
    x = torch.randn(4, 3, dtype=torch.float64)

    def aggregate(*values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(aggregation, parameters, (x, index), {"dim_size": 4})

    assert torch.autograd.gradcheck(aggregate, tuple(value.detach().clone().requires_grad_() for value in values))


def test_forward_mode_and_vmap(make, x, index, close) -> None:
    aggregation = make()
    _, tangent = torch.func.jvp(lambda x: aggregation(x, index, dim_size=NODES), (x,), (torch.ones_like(x),))
    step = 1e-6 if x.dtype == torch.float64 else 1e-2
    slope = (aggregation(x + step, index) - aggregation(x - step, index)) / (2 * step)
    torch.testing.assert_close(tangent, slope, rtol=1e-2, atol=1e-3 if x.dtype == torch.float64 else 1e-1)
    many = torch.stack([x, -x])
    together = torch.func.vmap(lambda x: aggregation(x, index, dim_size=NODES))(many)
    close(together, torch.stack([aggregation(one, index) for one in many]))


# Weights


@every_form
def test_weight_zero_removes_and_weight_two_doubles(form, make, x, index, close) -> None:
    aggregation, weight = make(form), torch.ones(len(x), dtype=x.dtype, device=x.device)
    weight[[1, 5]] = 0  # message 5 is the only one of node 2
    weight[4] = 2
    kept = [0, 2, 3, 4, 4, 6, 7, 8, 9, 10]
    out = aggregation(x, index, weight=weight)
    close(out, aggregation(x[kept], index[kept], dim_size=NODES))
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    close(aggregation(x, index, weight=weight.long()), out)
    equal(aggregation(x, index, weight=weight > 0), aggregation(x, index, weight=(weight > 0).to(x)))


@every_form
def test_a_message_of_no_weight_learns_nothing(form, make, x, index) -> None:
    weight = torch.ones_like(x[:, 0])
    weight[1] = 0
    make(form)(x.requires_grad_(), index, weight=weight).square().sum().backward()
    assert torch.equal(x.grad[1], torch.zeros_like(x[1]))
    assert (x.grad[0] != 0).any()


# What neighbourhoods say


@every_form
def test_information_and_its_algebra_are_dense_sums(form, make, x, index, close) -> None:
    aggregation, weight = make(form), torch.rand(len(x), dtype=x.dtype, device=x.device)
    said = aggregation.inspect(x, index, weight=weight)
    score, fisher = dense_information(aggregation, x, index, NODES, weight)
    precision = fisher + prior_precision(aggregation)
    covariance = torch.linalg.inv(precision)
    close(said.information.score, score.to(x.dtype))
    close(said.information.fisher, fisher.to(x.dtype))
    close(said.estimate, dense_estimates(aggregation, x, index, NODES, weight).to(x.dtype))
    close(said.variance, covariance.diagonal(dim1=-2, dim2=-1).to(x.dtype))
    close(said.log_determinant, torch.linalg.slogdet(precision)[1].to(x.dtype))
    assert said.information.count.tolist() == [3, 2, 1, 0, 5]
    assert torch.equal(said.information.fiducial, torch.zeros_like(said.information.fiducial))


@every_form
def test_leverages_add_to_the_parameters_less_the_priors_share(form, make, x, index, close) -> None:
    aggregation, weight = make(form), torch.rand(len(x), dtype=x.dtype, device=x.device)
    said = aggregation.inspect(x, index, weight=weight)
    assert said.leverage.shape == (11,)
    assert (said.leverage > 0).all()
    own = said.leverage.new_zeros(NODES).index_add(0, index, said.leverage)
    share = (said.variance * prior_precision(aggregation).diagonal().to(x)).sum(-1)
    close(own + share, torch.full_like(own, PARAMS))
    close(share[3], torch.tensor(float(PARAMS)).to(x))


@every_form
@pytest.mark.parametrize("p", [1, PARAMS])
def test_estimates_and_log_information_are_what_is_passed_on(form, p, x, index, close) -> None:
    aggregation = perturbed(FishnetsAggregation(WIDTH, 4, p, form=form, device=x.device, dtype=x.dtype))
    features = dense_estimates(aggregation, x, index, NODES).to(x.dtype)
    close(aggregation.inspect(x, index).estimate, features)
    if form in ("regression", "location"):
        _, fisher = dense_information(aggregation, x, index, NODES)
        ratio = fisher.diagonal(dim1=-2, dim2=-1) / prior_precision(aggregation).diagonal()
        features = torch.cat([features, torch.log(1 + ratio).to(x.dtype)], dim=-1)
    expected = features @ aggregation.lin_out.weight.T
    if form in ("paper", "legacy"):
        expected = expected + aggregation.lin_out.bias
        expected[3] = 0  # not the bias: nothing came
    close(aggregation(x, index), expected)


def test_without_a_prior_estimates_are_precision_weighted_means(make, x, index) -> None:
    aggregation = make("location")
    with torch.no_grad():
        aggregation.log_prior.fill_(-40.0)
        location = aggregation.lin_in(x)[:, :PARAMS]
    several = index == 4
    said = aggregation.inspect(x[several], torch.zeros_like(index[several]))
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if x.dtype == torch.float64 else {"rtol": 1e-2, "atol": 1e-2}
    fishers = torch.stack([aggregation.inspect(one[None]).information.fisher[0] for one in x[several]])
    mean = torch.linalg.solve(fishers.sum(0), (fishers @ location[several].unsqueeze(-1)).sum(0)).squeeze(-1)
    torch.testing.assert_close(said.estimate[0], mean, **tolerance)
    same = aggregation.inspect(x[:1].expand(7, -1))  # one location seven times
    torch.testing.assert_close(same.estimate[0], location[0], **tolerance)


@every_form
def test_parts_of_a_neighbourhood_merge_to_the_whole(form, make, x, index) -> None:
    aggregation = make(form)

    def part(chosen: slice):
        return aggregation.inspect(x[chosen], index[chosen], dim_size=NODES).information

    parts = part(slice(0, 2)), part(slice(2, 7)), part(slice(7, 11))
    same_information(parts[0] + parts[1] + parts[2], aggregation.inspect(x, index).information)
    check_merging(lambda a, b: a + b, part(slice(0, 0)), parts, same_information)


def test_inspect_takes_what_forward_takes(make, x, index, ptr, close) -> None:
    aggregation, order = make(), torch.randperm(len(x), device=x.device)
    expected = aggregation.inspect(x, index)
    for said in (aggregation.inspect(x, ptr=ptr), aggregation.inspect(x, index, ptr, NODES)):
        same_information(said.information, expected.information)
        close(said.leverage, expected.leverage)
    shuffled = aggregation.inspect(x[order], index[order], dim_size=NODES)
    close(shuffled.variance, expected.variance)
    close(shuffled.leverage, expected.leverage[order])
    assert aggregation.inspect(x).information.count.tolist() == [11]
    none = aggregation.inspect(x[:0], index[:0], dim_size=2)
    assert none.information.count.tolist() == [0, 0]
    assert none.leverage.shape == (0,)
    assert aggregation.inspect(x[:0], index[:0]).estimate.shape == (0, PARAMS)


def test_groups_that_are_no_numbers_or_contradict_are_refused(make, x, index, ptr, close) -> None:
    aggregation = make()
    for call in (aggregation, aggregation.inspect):
        with pytest.raises(DataError, match=r"`index` is torch\.float32 but whole numbers, the node of each message"):
            call(x, index.float())
    close(aggregation.inspect(x, index.flip(0), ptr).estimate, aggregation.inspect(x, ptr=ptr).estimate)
    with pytest.raises(ShapeError, match=f"`ptr` bounds the messages of {NODES} nodes but `dim_size` is 99"):
        aggregation.inspect(x, ptr=ptr, dim_size=99)


# Invariance and determinism


@every_form
def test_the_order_of_messages_does_not_matter(form, make, index) -> None:
    aggregation = make(form)
    x = torch.randn(300, WIDTH, dtype=aggregation.lin_in.weight.dtype, device=index.device)
    node, order = torch.arange(300, device=x.device) % 4, torch.randperm(300, device=x.device)
    expected = aggregation(x, node)
    error = (aggregation(x[order], node[order]) - expected).abs().max() / expected.abs().max()
    assert error < (1e-12 if x.dtype == torch.float64 else 1e-5)


def test_deterministic_mode_repeats_itself(make, x, index, ptr, close) -> None:
    aggregation, before = make(), torch.are_deterministic_algorithms_enabled()
    expected = aggregation(x, index)
    try:
        torch.use_deterministic_algorithms(True)
        results = [aggregation(x, index, dim_size=NODES), aggregation(x, index, ptr), aggregation(x, ptr=ptr)]
        again = aggregation(x, index, dim_size=NODES)
        copy.deepcopy(aggregation)(x.clone().requires_grad_(), index).sum().backward()
        made_now = small(WIDTH).to(x)
        assert made_now(x, index, ptr).isfinite().all()
    finally:
        torch.use_deterministic_algorithms(before)
    equal(again, results[0])
    for result in results:
        close(result, expected)


# Parameters: counts, starts, copies


@pytest.mark.parametrize(("h", "p", "number"), [(64, 10, 4929), (64, 8, 3436), (16, 8, 892)])
def test_the_papers_parameter_counts(h: int, p: int, number: int) -> None:
    assert (h + 1) * (p + p * (p + 1) // 2) + (p + 1) * h == number
    for form in ("paper", "legacy"):
        aggregation = FishnetsAggregation(h, num_params=p, form=form)
        assert sum(parameter.numel() for parameter in aggregation.parameters()) == number


@every_form
def test_reset_forgets_what_was_learned(form) -> None:
    fresh = FishnetsAggregation(WIDTH, 4, PARAMS, form=form)
    used = perturbed(FishnetsAggregation(WIDTH, 4, PARAMS, form=form))
    for aggregation in (fresh, used):
        torch.manual_seed(7)
        aggregation.reset_parameters()
    for name, value in fresh.state_dict().items():
        equal(used.state_dict()[name], value)


def test_it_starts_with_every_message_worth_about_one() -> None:
    aggregation = FishnetsAggregation(64, num_params=8)
    fisher = aggregation.inspect(torch.randn(400, 64)).information.fisher[0] / 400
    assert ((fisher.diagonal() > 0.5) & (fisher.diagonal() < 3)).all()
    assert torch.equal(prior_precision(aggregation), torch.eye(8).double())


def started(width: int, num_params: int, degree: int) -> float:
    """The output's root mean square at the start, over that of a mean of the same messages.

    Messages have unit variance, half of which a neighbourhood shares.
    """
    squares = []
    for _ in range(max(20, 200 // degree)):
        node, aggregation = torch.arange(10).repeat_interleave(degree), FishnetsAggregation(width, None, num_params)
        x = (torch.randn(10, 1, width) + torch.randn(10, degree, width)).flatten(0, 1) / math.sqrt(2)
        with torch.no_grad():
            squares.append([float(part.square().mean()) for part in (aggregation(x, node), MeanAggregation()(x, node))])
    ours, mean = torch.tensor(squares).mean(0).sqrt().tolist()
    return ours / mean


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("degree", [1, 10, 600])
def test_it_starts_at_the_scale_of_a_mean_whatever_the_width_and_degree(width: int, degree: int) -> None:
    """The prior is worth one message: it halves what one says, and hundreds do not feel it."""
    assert 0.8 < started(width, 8, degree) / (degree / (degree + 1)) < 1.25


def test_log_information_starts_silent_and_learns(x, index) -> None:
    aggregation = FishnetsAggregation(WIDTH, num_params=PARAMS, device=x.device, dtype=x.dtype)
    assert torch.equal(aggregation.lin_out.weight[:, PARAMS:], torch.zeros_like(aggregation.lin_out.weight[:, PARAMS:]))
    aggregation(x, index).sum().backward()
    assert (aggregation.lin_out.weight.grad[:, PARAMS:] != 0).all()


@every_form
def test_copies_pickles_and_states_give_the_same_features(form, make, x, index) -> None:
    aggregation = make(form)
    expected = aggregation(x, index)
    other = make(form)
    assert not torch.equal(other(x, index), expected)
    other.load_state_dict(aggregation.state_dict())
    for same in (other, copy.deepcopy(aggregation), pickle.loads(pickle.dumps(aggregation))):
        equal(same(x, index), expected)
        assert repr(same) == repr(aggregation)
    with torch.no_grad():
        copied = copy.deepcopy(aggregation)
        copied.lin_in.weight.zero_()
    equal(aggregation(x, index), expected)


@every_form
def test_it_can_be_made_on_the_meta_device(form, x, index) -> None:
    ghost = FishnetsAggregation(WIDTH, num_params=PARAMS, form=form, device="meta", dtype=x.dtype)
    assert all(parameter.is_meta and parameter.dtype == x.dtype for parameter in ghost.parameters())
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in FishnetsAggregation(WIDTH, form=form).parameters())
    made = ghost.to_empty(device=x.device)
    fresh = FishnetsAggregation(WIDTH, num_params=PARAMS, form=form, device=x.device, dtype=x.dtype)
    for aggregation in (made, fresh):
        torch.manual_seed(5)
        aggregation.reset_parameters()
    equal(made(x, index), fresh(x, index))


@every_form
def test_on_the_meta_device_it_gives_shapes(form) -> None:
    ghost = FishnetsAggregation(WIDTH, 4, PARAMS, form=form, device="meta")
    index = torch.empty(11, dtype=torch.int64, device="meta")
    for shape, dim, expected in (((11, WIDTH), -2, (NODES, 4)), ((11, 2, WIDTH), 0, (NODES, 2, 4))):
        out = ghost(torch.empty(shape, device="meta"), index, dim_size=NODES, dim=dim)
        assert out.is_meta
        assert out.shape == expected


@every_form
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_it_can_be_made_in_half_precision(form, half: torch.dtype) -> None:
    aggregation = FishnetsAggregation(WIDTH, num_params=PARAMS, form=form, dtype=half)
    assert {parameter.dtype for parameter in aggregation.parameters()} == {half}
    out = aggregation(torch.randn(11, WIDTH, dtype=half), torch.tensor(SORTED))
    assert out.dtype == half
    assert out.isfinite().all()
    if form in ("regression", "location"):
        axes = aggregation.lin_in.weight[:PARAMS].float()
        torch.testing.assert_close(axes @ axes.T, torch.eye(PARAMS), rtol=0.02, atol=0.02)


def test_printing() -> None:
    assert repr(FishnetsAggregation(16, num_params=4)) == "FishnetsAggregation(16, 16, num_params=4)"
    paper = FishnetsAggregation(16, 8, 4, form="paper")
    assert str(paper) == "FishnetsAggregation(16, 8, num_params=4, form='paper')"
    check_printing(paper, "16, 8", "num_params=4")


# Refusals


def test_another_width_is_refused(make, x, index) -> None:
    with pytest.raises(
        ShapeError,
        match=r"^Messages of shape \(11, 4\) were given to FishnetsAggregation\(6, 6, num_params=3\), which expects 6 "
        r"channels in the last dimension\. One instance serves one width: give layers of other widths their own, ",
    ):
        make()(x[:, :4], index)


def test_another_dtype_is_refused(index) -> None:
    text = (
        r"^Messages are torch\.float64 but the parameters of FishnetsAggregation\(6, 6, num_params=2\) are "
        r"torch\.float32; convert one of them, for instance with `model\.to\(x\.dtype\)`\.$"
    )
    with pytest.raises(DataError, match=text):
        small(6)(torch.randn(11, 6).double(), index.cpu())


def test_negative_weights_are_refused_by_their_place(make, x, index) -> None:
    weight = torch.ones_like(x[:, 0])
    weight[[2, 7]] = -0.5
    _refused(make(), x, index, weight)


def test_weights_that_are_nan_are_refused_by_their_place(make, x, index) -> None:
    weight = torch.ones_like(x[:, 0])
    weight[2], weight[7] = math.nan, -math.inf
    _refused(make(), x, index, weight)


def _refused(aggregation: FishnetsAggregation, x: Tensor, index: Tensor, weight: Tensor) -> None:
    text = r"^`weight` is negative or not finite at 2, 7; a weight says how much a message counts, and 0 removes it\.$"
    for call in (aggregation, aggregation.inspect):
        with pytest.raises(DataError, match=text):
            call(x, index, weight=weight)


@pytest.mark.parametrize("shape", [(10,), (11, 1), (1,), ()], ids=str)
def test_weights_of_another_shape_are_refused(shape, make, x, index) -> None:
    with pytest.raises(ShapeError, match=r"^`weight` has shape \(.*\) but one for each message, \(11,\), was expected"):
        make()(x, index, weight=torch.ones(shape).to(x))


def test_inspect_takes_one_set_of_messages_at_a_time(make, x, index) -> None:
    with pytest.raises(ShapeError, match=r"^`x` has shape \(2, 11, 6\) but \(E, 6\) was expected\.$"):
        make().inspect(torch.stack([x, x]), index)


def test_messages_that_are_not_finite_are_named_on_demand() -> None:
    aggregation = FishnetsAggregation(8, num_params=2, check_finite=True)
    x, index = torch.randn(11, 8), torch.tensor(SORTED)
    assert torch.isfinite(aggregation(x, index)).all()
    x[4, 3], x[7, 0] = torch.inf, torch.nan
    with pytest.raises(DataError, match=r"^Messages are not finite at 4, 7; the first is 4, which holds inf\.$"):
        aggregation(x, index)


def test_nodes_that_do_not_exist_are_refused() -> None:
    aggregation, x, index = small(), torch.randn(11, 8), torch.tensor(SORTED)
    with pytest.raises(DataError, match=r"^`index` runs from 0 to 4 but there are 3 groups, 0 to 2\.$"):
        aggregation(x, index, dim_size=3)
    with pytest.raises(DataError, match=r"^`index` runs from -1 to 3 but there are 5 groups, 0 to 4\.$"):
        aggregation(x, index - 1, dim_size=NODES)
    with pytest.raises(DataError, match=r"^`index` goes up to 4 but `dim_size` is 3\.$"):
        aggregation.inspect(x, index, dim_size=3)
    for call in (aggregation, aggregation.inspect):
        with pytest.raises(ShapeError, match=r"^`index` has shape \(10,\) but there are 11 messages, each with"):
            call(x, index[1:], dim_size=NODES)


def test_bounds_that_do_not_fit_are_refused() -> None:
    aggregation, x, ptr = small(), torch.randn(11, 8), torch.tensor(PTR)
    with pytest.raises(ValueError, match=r"^Encountered invalid 'dim_size' \(got '4' but expected '5'\)$"):
        aggregation(x, ptr=ptr, dim_size=4)
    for messages in (x[:9], torch.cat([x, x])):
        for call in (aggregation, aggregation.inspect):
            with pytest.raises(DataError, match=rf"^`ptr` must rise from 0 to .*, {len(messages)}, but"):
                call(messages, ptr=ptr)


@pytest.mark.parametrize("number", [0, -1, True, 2.0, "4", None])
@pytest.mark.parametrize("name", ["in_channels", "out_channels", "num_params"])
def test_sizes_are_positive_whole_numbers(name: str, number: object) -> None:
    options = {"in_channels": 4, "out_channels": 4, "num_params": 2, name: number}
    if (name, number) == ("out_channels", None):
        assert FishnetsAggregation(**options).out_channels == 4
        return
    with pytest.raises(ConfigError, match=rf"^`{name}` is {number!r} but a positive whole number was expected\.$"):
        FishnetsAggregation(**options)


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^`form` is 'papr' but "):
        FishnetsAggregation(4, form="papr")


WITHOUT = """
import sys
sys.modules["torch_geometric"] = None
import fishnets
from fishnets.errors import MissingExtraError
print(len(fishnets.Information.zero(2, batch=(3,))))
try:
    import fishnets.graphs
except MissingExtraError as error:
    print(error)
"""


def test_without_the_extra_the_rest_works_and_the_error_names_it() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "3",
        "Learning on graphs needs `torch_geometric`, which is not installed. Install it with `pip install "
        "'fishnets[graphs]'`.",
    ]
