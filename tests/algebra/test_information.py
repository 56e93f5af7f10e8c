"""Information adds, subtracts and moves; with a prior it becomes the product of Gaussians.

Laws that hold exactly are tried on whole numbers, where float64 does not round, and asked to the last bit.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import check_merging, check_printing, close, equal, same_information
from tests.strategies import PROPERTY, conditions, gradcheck, integers, normals, num_params, positive_definite, seeds
from torch import Tensor

from fishnets.algebra import Information, estimate
from fishnets.errors import ConfigError, IncompatibleInformationError, NotPositiveDefiniteError, ShapeError
from fishnets.priors import Box, Moments, Normal

batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)


def whole(seed: int, batch: tuple[int, ...], p: int, fiducial: Tensor | None = None) -> Information:
    """Information of whole numbers, so that sums and shifts are exact."""
    root = integers(seed, *batch, p, p)
    fiducial = torch.zeros(p, dtype=torch.float64) if fiducial is None else fiducial
    count = integers(seed + 1, *batch).abs().to(torch.int64)
    return Information(integers(seed + 2, *batch, p), root @ root.mT, fiducial, count)


def smooth(
    seed: int, p: int, batch: tuple[int, ...] = (), fiducial: Tensor | None = None, condition: float = 10.0
) -> Information:
    """Information with a positive-definite Fisher matrix."""
    fiducial = normals(seed + 1, p) if fiducial is None else fiducial
    count = torch.full(batch, 3, dtype=torch.int64)
    return Information(
        normals(seed, *batch, p), positive_definite(seed + 2, *batch, p, condition=condition), fiducial, count
    )


def exactly(a: Information, b: Information) -> None:
    same_information(a, b, equal)


def dense_posterior(info: Information, prior: Normal) -> tuple[Tensor, Tensor]:
    """Product of two Gaussians, each written with its own mean: the oracle, with inverses and no fiducial."""
    likelihood_mean = info.fiducial + torch.linalg.solve(info.fisher, info.score.unsqueeze(-1)).squeeze(-1)
    prior_precision = torch.linalg.inv(prior.covariance)
    precision = info.fisher + prior_precision
    weighted = (info.fisher @ likelihood_mean.unsqueeze(-1)).squeeze(-1) + prior_precision @ prior.mean
    return (torch.linalg.inv(precision) @ weighted.unsqueeze(-1)).squeeze(-1), precision


@PROPERTY
@given(batches, num_params, seeds)
def test_merging_is_exact_associative_and_commutative_with_an_identity(batch, p, seed):
    point = integers(seed + 50, p)
    parts = whole(seed, batch, p, point), whole(seed + 10, batch, p, point), whole(seed + 20, batch, p, point)
    check_merging(lambda a, b: a + b, Information.zero(p, batch, point), parts, exactly)


@PROPERTY
@given(batches, num_params, seeds)
def test_zero_is_the_identity_at_any_fiducial(batch, p, seed):
    info = whole(seed, batch, p, integers(seed + 50, p) + 100)
    for zero in (
        Information.zero(p, batch),
        Information.zero(p, batch, normals(seed + 3, p)),
        Information.zero(p, batch, normals(seed + 4, *batch, p)),
    ):
        exactly(info + zero, info)
        exactly(zero + info, info)
        exactly(info - zero, info)


def test_empty_and_empty_is_empty_even_at_different_fiducials():
    total = Information.zero(2) + Information.zero(2, fiducial=torch.ones(2, dtype=torch.float64))
    equal(total.fisher, torch.zeros(2, 2, dtype=torch.float64))
    equal(total.score, torch.zeros(2, dtype=torch.float64))
    assert int(total.count) == 0


def test_zero_keeps_single_precision_information_usable_on_either_side():
    info = Information(torch.ones(2), torch.eye(2), torch.full((2,), 2.0), torch.tensor(1))
    for total in (info + Information.zero(2), Information.zero(2) + info, info - Information.zero(2)):
        equal(total.natural, torch.full((2,), 3.0, dtype=torch.float64))
        equal(total.at(torch.zeros(2)).score, torch.full((2,), 3.0, dtype=torch.float64))


@PROPERTY
@given(st.integers(1, 5), num_params, seeds)
def test_built_in_sum_sum_over_a_dimension_and_merge_agree(size, p, seed):
    info = whole(seed, (size,), p)
    parts = [info[i] for i in range(size)]
    exactly(sum(parts), info.sum())
    exactly(Information.merge(parts), info.sum())
    exactly(Information.merge(iter(parts)), info.sum())


def test_sum_takes_any_batch_dimension_and_keeps_the_others():
    info = whole(0, (2, 3), 2)
    by_row = info.sum(1)
    exactly(info.sum(-1), by_row)
    exactly(by_row.sum(), info.sum(0).sum())
    exactly(by_row[1], sum(info[1][j] for j in range(3)))
    equal(by_row.count, info.count.sum(1))


def test_sum_over_sets_with_a_common_fiducial_of_their_own_keeps_it():
    point = integers(9, 2)
    info = whole(0, (3, 2), 2, point.expand(3, 2, 2).contiguous())
    exactly(info.sum(0), whole(0, (3, 2), 2, point).sum(0))
    exactly(info.sum(1), whole(0, (3, 2), 2, point).sum(1))


def test_sum_skips_the_fiducials_of_sets_without_information():
    point = integers(9, 2)
    info = whole(0, (1,), 2, point)
    rows = [Information.zero(2, (1,)), info, Information.zero(2, (1,), point + 1)]
    stacked = Information(
        torch.cat([r.score for r in rows]),
        torch.cat([r.fisher for r in rows]),
        torch.stack([r.fiducial for r in rows]),
        torch.cat([r.count for r in rows]),
    )
    exactly(stacked.sum(), info[0])
    exactly(stacked.sum(), Information.merge(stacked[i] for i in range(3)))


@PROPERTY
@given(batches, num_params, seeds)
def test_taking_a_part_out_undoes_adding_it(batch, p, seed):
    a, b = whole(seed, batch, p), whole(seed + 10, batch, p)
    exactly(a + b - b, a)
    exactly(a + b - a, b)
    exactly(a - a, Information.zero(p, batch))


def test_merging_leaves_the_parts_as_they_were():
    a, b = whole(0, (2,), 2), whole(5, (2,), 2)
    _ = a + b, a - Information.zero(2, (2,)), a.at(torch.ones(2)), a.sum()
    exactly(a, whole(0, (2,), 2))
    exactly(b, whole(5, (2,), 2))


@PROPERTY
@given(seeds)
def test_rows_without_information_take_the_fiducial_of_the_other_side_row_by_row(seed):
    left, right = integers(seed, 3, 2), integers(seed + 1, 3, 2) + 100
    a, b = whole(seed + 2, (3,), 2, left), whole(seed + 8, (3,), 2, right)
    empty_a, empty_b = torch.tensor([True, False, False]), torch.tensor([False, True, True])
    a = Information(a.score * ~empty_a[:, None], a.fisher * ~empty_a[:, None, None], left, a.count * ~empty_a)
    b = Information(b.score * ~empty_b[:, None], b.fisher * ~empty_b[:, None, None], right, b.count * ~empty_b)
    total = a + b
    equal(total.fiducial[0], right[0])
    equal(total.score, a.score + b.score)
    same_information(total.at(left), a + b.at(left))


def test_different_fiducials_are_refused_with_the_way_out():
    a, b = whole(0, (), 2), whole(1, (), 2, torch.ones(2, dtype=torch.float64))
    with pytest.raises(
        IncompatibleInformationError, match=r"different fiducials, so .*information\.at\(other\.fiducial\)"
    ):
        a + b
    with pytest.raises(IncompatibleInformationError, match="different fiducials"):
        a - b
    same_information(a + b.at(a.fiducial), (a.at(b.fiducial) + b).at(a.fiducial))


def test_different_fiducials_are_refused_row_by_row():
    points = integers(3, 4, 2)
    moved = points.clone()
    moved[2, 0] += 1
    a, b = whole(0, (4,), 2, points), whole(1, (4,), 2, moved)
    with pytest.raises(IncompatibleInformationError, match=r"different fiducials \(first in set 2\)"):
        a + b
    equal((a[:2] + b[:2]).fiducial, points[:2])


def test_sets_with_different_fiducials_are_not_summed():
    info = whole(0, (2,), 2, integers(1, 2, 2) + torch.tensor([[0.0], [50.0]]))
    with pytest.raises(IncompatibleInformationError, match=r"different fiducials.*Bring them to one point"):
        info.sum()
    same_information(info.at(torch.zeros(2)).sum(), info[0].at(torch.zeros(2)) + info[1].at(torch.zeros(2)))


@pytest.mark.parametrize("other", [Information.zero(3), Information.zero(2, (4,)), Information.zero(2, (1,))])
def test_different_sizes_are_refused(other):
    with pytest.raises(IncompatibleInformationError, match=r"Cannot merge information of .*use `information\.sum\(\)`"):
        whole(0, (), 2) + other


def test_part_larger_than_the_whole_is_refused():
    small = Information(torch.zeros(1), torch.eye(1), torch.zeros(1), torch.tensor(2))
    with pytest.raises(IncompatibleInformationError, match=r"part holds more data \(4\) than the whole \(2\)"):
        small - (small + small)


def test_nothing_else_is_added_to_information():
    with pytest.raises(TypeError, match="unsupported operand"):
        whole(0, (), 2) + 1  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + whole(0, (), 2)  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        whole(0, (), 2) - 0  # type: ignore[operator]


def test_single_set_has_no_dimension_to_sum_and_no_length():
    with pytest.raises(ShapeError, match="no batch dimension to sum over"):
        Information.zero(2).sum()
    with pytest.raises(TypeError, match="single set and has no length"):
        len(Information.zero(2))


@pytest.mark.parametrize("dim", [1, -2])
def test_sum_refuses_a_dimension_that_is_not_there(dim):
    with pytest.raises(ShapeError, match=rf"`dim` is {dim} but the batch shape \(3,\) has 1 dimensions"):
        Information.zero(2, (3,)).sum(dim)


def test_merging_nothing_is_refused():
    with pytest.raises(ShapeError, match=r"nothing to merge.*Start from `Information\.zero\(p\)`"):
        Information.merge([])


@pytest.mark.parametrize(
    ("score", "fisher", "fiducial", "count", "message"),
    [
        ((4, 3), (4, 6), (3,), (4,), r"`fisher` has shape \(4, 6\) but \(\.\.\., 3, 3\).*`unpack_symmetric` first"),
        ((4, 3), (4, 2, 2), (3,), (4,), r"`fisher` has shape \(4, 2, 2\) but \(\.\.\., 3, 3\) was expected"),
        ((4, 3), (4, 3, 3), (2,), (4,), r"`fiducial` has shape \(2,\) but \(\.\.\., 3\) was expected"),
        ((4, 3), (3, 3), (3,), (4,), r"`score` has batch shape \(4,\) but `fisher` has \(\) and `count` \(4,\)"),
        ((4, 3), (4, 3, 3), (3,), (), r"`score` has batch shape \(4,\) but .* `count` \(\); the three must agree"),
        ((4, 3), (4, 3, 3), (1, 3), (4,), r"`fiducial` has shape \(1, 3\) but \(3,\) or \(4, 3\) was expected"),
        ((), (1, 1), (1,), (), r"`fisher` has shape \(1, 1\) but \(\.\.\., 0, 0\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(score, fisher, fiducial, count, message):
    with pytest.raises(ShapeError, match=message):
        Information(torch.zeros(score), torch.zeros(fisher), torch.zeros(fiducial), torch.zeros(count))


@PROPERTY
@given(batches, num_params, seeds, st.booleans())
def test_moving_is_exact_and_independent_of_the_path(batch, p, seed, each):
    shape = (*batch, p) if each else (p,)
    info = whole(seed, batch, p, integers(seed + 5, p))
    first, second = integers(seed + 6, *shape), integers(seed + 7, *shape)
    exactly(info.at(first).at(second), info.at(second))
    exactly(info.at(first).at(info.fiducial), info)
    exactly(info.at(info.fiducial), info)
    equal(info.at(second).fisher, info.fisher)
    equal(info.at(second).natural, info.natural)
    equal(info.at(second).score, info.score - (info.fisher @ (second - info.fiducial).unsqueeze(-1)).squeeze(-1))


@PROPERTY
@given(num_params, seeds, conditions)
def test_estimate_does_not_depend_on_the_fiducial(p, seed, condition):
    info = smooth(seed, p, (3,), condition=condition)
    close(info.at(normals(seed + 9, 3, p)).estimate(), info.estimate())
    close(info.at(info.estimate()).score, torch.zeros(3, p, dtype=torch.float64))
    dense = info.fiducial + torch.linalg.solve(info.fisher, info.score.unsqueeze(-1)).squeeze(-1)
    close(info.estimate(), dense)
    close(estimate(info.score, info.fisher, info.fiducial), dense)
    close(info.log_determinant(), torch.linalg.slogdet(info.fisher)[1])


def test_moving_commutes_with_merging():
    a, b, point = whole(0, (3,), 2), whole(5, (3,), 2), integers(9, 2)
    exactly((a + b).at(point), a.at(point) + b.at(point))
    exactly((a + b - b).at(point), a.at(point))


def test_moving_refuses_a_point_of_another_width():
    with pytest.raises(ShapeError, match=r"`fiducial` has shape \(3,\) but \(\.\.\., 2\) was expected"):
        whole(0, (), 2).at(torch.zeros(3))


def test_fisher_without_full_rank_gives_no_estimate_and_says_to_add_a_prior():
    fisher = torch.stack([torch.eye(2), torch.tensor([[1.0, 2.0], [2.0, 4.0]])])
    info = Information(torch.ones(2, 2), fisher, torch.zeros(2), torch.ones(2, dtype=torch.int64))
    with pytest.raises(NotPositiveDefiniteError, match=r"batch element 1, .*add a prior"):
        info.estimate()


@PROPERTY
@given(num_params, seeds, conditions, st.sampled_from([0.01, 1.0, 100.0]))
def test_posterior_is_the_dense_product_of_gaussians(p, seed, condition, prior_scale):
    info = smooth(seed, p, (4,), condition=condition)
    prior = Normal(normals(seed + 5, p), prior_scale * positive_definite(seed + 6, p))
    posterior = info.posterior(prior)
    mean, precision = dense_posterior(info, prior)
    close(posterior.mean, mean)
    close(posterior.precision, precision)
    close(posterior.covariance, torch.linalg.inv(precision))


def test_prior_pulls_the_estimate_towards_its_mean_and_the_printed_plus_would_not():
    info = smooth(3, 2, fiducial=torch.tensor([3.0, -2.0], dtype=torch.float64))
    prior = Normal([0.5, 1.0], [[0.5, 0.1], [0.1, 0.3]])
    mean, precision = dense_posterior(info, prior)
    pull = torch.linalg.solve(prior.covariance, info.fiducial - prior.mean)
    close(info.posterior(prior).mean, mean)
    close(info.fiducial + torch.linalg.solve(precision, info.score - pull), mean)
    plus = info.fiducial + torch.linalg.solve(precision, info.score + pull)
    assert float((plus - mean).abs().max()) > 1
    # an ever narrower prior takes the estimate to its own mean
    close(info.posterior(Normal(prior.mean, [1e-13, 1e-13])).mean, prior.mean)


@PROPERTY
@given(num_params, seeds, st.booleans())
def test_posterior_does_not_depend_on_the_fiducial(p, seed, each):
    info = smooth(seed, p, (3,))
    prior = Normal(normals(seed + 5, p), positive_definite(seed + 6, p))
    moved = info.at(5 * normals(seed + 7, *((3, p) if each else (p,))))
    close(moved.posterior(prior).mean, info.posterior(prior).mean)
    equal(moved.posterior(prior).precision, info.posterior(prior).precision)


@PROPERTY
@given(num_params, seeds)
def test_prior_counts_once_whatever_the_number_of_parts(p, seed):
    point = normals(seed, p)
    a, b = smooth(seed, p, fiducial=point), smooth(seed + 10, p, fiducial=point)
    prior = Normal(normals(seed + 5, p), positive_definite(seed + 6, p))
    merged, alone = (a + b).posterior(prior), a.posterior(prior)
    # the posterior of one part is the prior of the other
    chained = b.posterior(Normal(alone.mean, alone.covariance))
    close(merged.mean, chained.mean)
    close(merged.precision, chained.precision)


@PROPERTY
@given(num_params, seeds)
def test_empty_set_gives_the_prior(p, seed):
    prior = Normal(normals(seed, p), positive_definite(seed + 1, p))
    for empty in (Information.zero(p), Information.zero(p, fiducial=10 * normals(seed + 2, p))):
        posterior = empty.posterior(prior)
        torch.testing.assert_close(posterior.mean, prior.mean, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(posterior.covariance, prior.covariance, rtol=1e-13, atol=1e-13)


def test_empty_set_gives_the_prior_to_the_last_bit_where_nothing_rounds():
    prior = Normal([3.0, -1.0], [4.0, 0.25])
    posterior = Information.zero(2, (2,)).posterior(prior)
    equal(posterior.mean, prior.mean.expand(2, 2))
    equal(posterior.covariance, prior.covariance.expand(2, 2, 2))


def test_box_enters_by_its_first_two_moments():
    info, box = smooth(0, 2), Box([-1.0, 0.0], [5.0, 2.0])
    posterior, expected = info.posterior(box), info.posterior(Normal(box.mean, box.covariance))
    close(posterior.mean, expected.mean)
    close(posterior.precision, expected.precision)


def test_gradient_of_the_posterior_mean():
    prior = Normal([0.5, 1.0], [[0.5, 0.1], [0.1, 0.3]])

    def mean(score: Tensor, root: Tensor) -> Tensor:
        info = Information(score, root @ root.mT, torch.ones(2, dtype=torch.float64), torch.tensor(1))
        return info.posterior(prior).mean

    gradcheck(mean, normals(0, 2), normals(1, 2, 2))


def test_prior_of_another_size_is_refused():
    with pytest.raises(ShapeError, match=r"`prior\.mean` has shape \(1,\) but \(\.\.\., 2\) was expected"):
        Information.zero(2).posterior(Normal([0.0], [1.0]))


def test_prior_without_a_density_is_refused_by_name():
    with pytest.raises(NotPositiveDefiniteError, match=r"`prior\.covariance` is indefinite or singular"):
        Information.zero(2).posterior(Moments([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]], "degenerate"))


def test_selection_keeps_fiducials_with_their_sets():
    points = integers(5, 3, 2)
    info = whole(0, (3,), 2, points)
    equal(info[1].fiducial, points[1])
    equal(info[1:].fiducial, points[1:])
    picked = info[torch.tensor([2, 0])]
    exactly(picked[0], info[2])
    exactly(picked[1], info[0])
    equal(whole(0, (3,), 2)[1].fiducial, torch.zeros(2, dtype=torch.float64))
    assert len(info) == 3


def test_batch_of_one_equals_single():
    info = smooth(0, 2, (3,))
    prior = Normal([0.5, 1.0], [1.0, 2.0])
    for i in range(3):
        equal(info[i].posterior(prior).mean, info.posterior(prior).mean[i])
        equal(info[i : i + 1].estimate()[0], info[i].estimate())


def test_state_cannot_be_changed():
    with pytest.raises(AttributeError):
        Information.zero(2).score = torch.ones(2)  # type: ignore[misc]


def test_moves_to_a_device(device):
    info = whole(0, (2,), 3).to(device)
    assert info.score.device.type == info.fiducial.device.type == info.count.device.type == device.type
    exactly(info.to("cpu"), whole(0, (2,), 3))


def test_zero_follows_the_asked_device(device):
    assert Information.zero(2, device=device).fisher.device.type == device.type


def test_printing():
    check_printing(whole(0, (4,), 3), "sets=(4,)", "num_params=3", "data=")
    check_printing(Information.zero(2), "sets=()", "data=0")


def test_lists_and_plain_numbers_are_read() -> None:
    info = Information([4], [[2]], [0], 10)
    assert info.score.dtype == info.fisher.dtype == torch.float64
    assert info.at([1.0]).score.tolist() == [2.0]
    assert info.count.tolist() == 10


def test_a_count_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"`count` is 1\.5 but whole numbers of data were expected"):
        Information([4.0], [[2.0]], [0.0], 1.5)


def test_what_is_no_prior_is_refused() -> None:
    with pytest.raises(ConfigError, match="an object with tensors `mean` and `covariance` was expected"):
        Information.zero(1).posterior(torch.zeros(1))


def test_a_set_that_is_not_there_is_refused() -> None:
    with pytest.raises(IndexError, match="There is no set 3: there are 3"):
        Information.zero(2, (3,))[3]
    assert len(list(Information.zero(2, (3,)))) == 3
