"""Compression by a model: laws of the sum, precision, members, priors, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.laws import check_batch_of_one, check_compress_then_merge, check_merging, check_permutation_invariance
from tests.sets.helpers import FACTORS, PRIOR, QUICK, SIMULATOR, Disc, Recorded, generator, some_sets, tiny
from tests.strategies import PROPERTY

from fishnets import Fishnet, Information, Sets
from fishnets.errors import ConfigError, DataError, IncompatibleInformationError, NonFiniteError, ShapeError
from fishnets.networks import MLP, Gated
from fishnets.priors import Box, Normal

CORRELATED = Normal([1.0, -2.0], [[4.0, 0.5], [0.5, 0.25]])
KINDS = ["normal", "correlated", "box", "disc"]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
precisions = pytest.mark.parametrize("precision", list(TOLERANCE), ids=str)


def assert_same(a: Information, b: Information, tolerance: float = 1e-10) -> None:
    for name in ("score", "fisher"):
        left, right = getattr(a, name), getattr(b, name)
        scale = max(1e-3, right.abs().max().item())
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance * scale, msg=name)
    assert torch.equal(a.fiducial, b.fiducial)
    assert torch.equal(a.count, b.count)


@pytest.mark.parametrize(
    ("features", "network", "shared", "expected"),
    [
        (3, MLP(50, 3, "swish"), False, 10_855),
        (3, MLP(256, 3, "elu"), False, 266_501),
        (5, MLP(256, 3, "elu"), False, 267_525),
        (3, Gated(16, 2), True, 3_381),
        (3, Gated(32, 2), False, 25_637),
    ],
)
def test_number_of_weights(features: int, network: Any, shared: bool, expected: int) -> None:
    assert Fishnet(features, PRIOR, network, shared=shared).num_weights == expected
    assert Fishnet(features, PRIOR, network, shared=shared, members=2).num_weights == expected


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("members", [1, 3])
@precisions
def test_an_untrained_model_compresses_in_float64(factor: str, members: int, precision, device) -> None:
    information = tiny(factor=factor, members=members).compress(some_sets(precision, device))
    assert information.score.shape == (5, 2)
    assert information.fisher.shape == (5, 2, 2)
    assert information.score.dtype == information.fisher.dtype == information.fiducial.dtype == torch.float64
    assert information.score.device == information.count.device == some_sets(precision, device).device
    assert information.count.tolist() == [13, 0, 1, 40, 7]
    assert bool((torch.linalg.eigvalsh(information.fisher) > -1e-12).all())


@pytest.mark.parametrize("factor", FACTORS)
@precisions
def test_order_of_rows_does_not_matter(factor: str, precision, device) -> None:
    model, sets = tiny(factor=factor, members=2), some_sets(precision, device)
    turned = Sets.from_list([part.flip(0) for part in sets.to_list()])
    assert_same(model.compress(turned), model.compress(sets), TOLERANCE[precision])


@precisions
def test_padding_does_not_matter(precision, device) -> None:
    model, sets = tiny(), some_sets(precision, device)
    padded = torch.full((5, 50, 3), torch.nan, dtype=precision, device=device)
    mask = torch.arange(50, device=device) < sets.sizes.unsqueeze(1)
    padded[mask] = sets.values
    assert_same(model.compress(Sets.from_padded(padded, mask)), model.compress(sets), TOLERANCE[precision])


@precisions
def test_batch_mates_do_not_matter(precision, device) -> None:
    model, sets = tiny(members=2), some_sets(precision, device)
    whole = model.compress(sets)
    for i in range(5):
        assert_same(model.compress(sets[i]), whole[i : i + 1], TOLERANCE[precision])
    order = torch.tensor([3, 0, 1], device=device)
    assert_same(model.compress(sets[order]), whole[order], TOLERANCE[precision])


@pytest.mark.parametrize("chunk", [1, 7, 13, 60, 61, 10**6])
@pytest.mark.parametrize("factor", FACTORS)
@precisions
def test_chunks_do_not_matter(chunk: int, factor: str, precision, device) -> None:
    model, sets = tiny(factor=factor, members=2), some_sets(precision, device)
    assert_same(model.compress(sets, chunk=chunk), model.compress(sets), TOLERANCE[precision])


@PROPERTY
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    chunk=st.integers(1, 12),
    factor=st.sampled_from(FACTORS),
    seed=st.integers(0, 99),
)
def test_any_cut_of_any_sets_gives_the_sum_over_rows(sizes: list[int], chunk: int, factor: str, seed: int) -> None:
    values = torch.randn((sum(sizes), 3), generator=generator(seed), dtype=torch.float64)
    offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    sets, model = Sets.from_offsets(values, offsets), tiny(factor=factor)
    information = model.compress(sets, chunk=chunk)
    rows = model.compress(Sets.from_offsets(values, list(range(len(values) + 1)))) if sum(sizes) else None
    for i, size in enumerate(sizes):
        if size == 0:
            assert bool((information.score[i] == 0).all())
            assert bool((information.fisher[i] == 0).all())
        else:
            assert rows is not None
            assert_same(information[i], rows[slice(offsets[i], offsets[i + 1])].sum())


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("members", [1, 3])
def test_compressing_then_merging_is_merging_then_compressing(factor: str, members: int, device) -> None:
    model, sets = tiny(factor=factor, members=members), some_sets(device=device)
    other = Sets.concatenate([sets[2], sets[4], sets[1], sets[0], sets[3]])
    assert_same(model.compress(sets) + model.compress(other), model.compress(sets.union(other)))
    assert_same(model.compress(sets.union(other)) - model.compress(other), model.compress(sets))


@pytest.mark.parametrize("prior", [PRIOR, CORRELATED, Box([0.0, 1.0], [2.0, 9.0]), Disc()], ids=KINDS)
@pytest.mark.parametrize("fiducial", [None, [0.3, 0.7]])
def test_empty_set_gives_back_the_prior(prior: Any, fiducial: list[float] | None) -> None:
    model = tiny(prior, fiducial=fiducial, members=2)
    empty = Sets.from_list([torch.zeros(0, 3), torch.zeros(0, 3)])
    information, posterior = model.compress(empty), model.estimate(empty)
    assert bool((information.score == 0).all())
    assert bool((information.fisher == 0).all())
    assert information.count.tolist() == [0, 0]
    torch.testing.assert_close(posterior.mean, prior.mean.expand(2, 2))
    torch.testing.assert_close(posterior.covariance, prior.covariance.expand(2, 2, 2))


@pytest.mark.parametrize("prior", [CORRELATED, Box([0.0, 1.0], [2.0, 9.0]), Disc()], ids=KINDS[1:])
def test_estimate_is_the_posterior_of_the_information(prior: Any) -> None:
    model, sets = tiny(prior, members=2), some_sets()
    posterior, expected = model.estimate(sets, chunk=5), model.compress(sets).posterior(prior)
    torch.testing.assert_close(posterior.mean, expected.mean)
    torch.testing.assert_close(posterior.precision, expected.precision)


def test_posterior_is_the_same_at_every_expansion_point() -> None:
    model, sets = tiny(CORRELATED, fiducial=[5.0, 1.0]), some_sets()
    information = model.compress(sets)
    assert information.fiducial.tolist() == [5.0, 1.0]
    moved = information.at(torch.tensor([-3.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(moved.posterior(CORRELATED).mean, information.posterior(CORRELATED).mean)
    torch.testing.assert_close(moved.posterior(CORRELATED).precision, information.posterior(CORRELATED).precision)
    assert_same(moved.at(information.fiducial), information, 1e-9)


def test_fiducial_is_the_prior_mean_unless_given() -> None:
    assert tiny(CORRELATED).compress(some_sets()).fiducial.tolist() == [1.0, -2.0]


@pytest.mark.parametrize("factor", FACTORS)
def test_pooling_sums_the_members_with_their_weights(factor: str, device) -> None:
    model, sets = tiny(factor=factor, members=3), some_sets(device=device)
    model.weights.copy_(torch.tensor([0.5, 0.3, 0.2]))
    pooled, parts = model.compress(sets), model.compress(sets, chunk=11, members="separate")
    assert len(parts) == 3
    weights = model.weights.to(device)
    torch.testing.assert_close(pooled.score, sum(w * p.score for w, p in zip(weights, parts, strict=True)))
    torch.testing.assert_close(pooled.fisher, sum(w * p.fisher for w, p in zip(weights, parts, strict=True)))
    assert all(torch.equal(part.count, pooled.count) for part in parts)


def test_members_equal_separate_models() -> None:
    model, sets = tiny(members=3), some_sets()
    for k, part in enumerate(model.compress(sets, members="separate")):
        single = tiny(seed=9)
        single.networks.load_state_dict({name: value[k : k + 1] for name, value in model.networks.state_dict().items()})
        assert_same(single.compress(sets), part)


def test_separate_state_of_one_member_is_the_pooled_one() -> None:
    model, sets = tiny(), some_sets()
    (alone,) = model.compress(sets, members="separate")
    assert_same(alone, model.compress(sets))


def test_integers_are_taken_as_numbers() -> None:
    rows = torch.arange(12).reshape(4, 3)
    integers, floats = Sets.from_list([rows]), Sets.from_list([rows.float()])
    assert_same(tiny().compress(integers), tiny().compress(floats))


def test_float64_is_computed_with_throughout() -> None:
    model = tiny()
    fine = Sets.from_list([torch.ones(1, 3, dtype=torch.float64) * (1 + 1e-12)])
    coarse = Sets.from_list([torch.ones(1, 3, dtype=torch.float64)])
    difference = model.compress(fine).score - model.compress(coarse).score
    assert 0 < difference.abs().max().item() < 1e-10


def test_sums_are_taken_in_float64_whatever_the_input() -> None:
    row = torch.tensor([[0.3, -1.0, 0.7]])
    model = tiny()
    one, many = model.compress(Sets.from_list([row])), model.compress(Sets.from_list([row.repeat(100_000, 1)]))
    torch.testing.assert_close(many.score, 100_000 * one.score, rtol=1e-6, atol=0)
    torch.testing.assert_close(many.fisher, 100_000 * one.fisher, rtol=1e-6, atol=0)


def test_compressing_leaves_no_gradients_and_no_changes() -> None:
    model = tiny()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    information = model.compress(some_sets())
    assert not information.score.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_parameters_are_standardised_by_the_prior() -> None:
    wide, unit = tiny(Normal([0.0, 0.0], [4.0, 25.0])), tiny(Normal([0.0, 0.0], [1.0, 1.0]))
    scale = torch.tensor([2.0, 5.0], dtype=torch.float64)
    a, b = wide.compress(some_sets()), unit.compress(some_sets())
    torch.testing.assert_close(a.score * scale, b.score)
    torch.testing.assert_close(a.fisher * torch.outer(scale, scale), b.fisher)


def test_features_are_standardised_and_the_scaling_is_stored() -> None:
    def shifted(theta, size, generator) -> Sets:
        sets = SIMULATOR(theta, size, generator)
        return Sets(sets.values * torch.tensor([1e3, 1.0, 1.0]) + torch.tensor([1e4, 0.0, 7.0]), sets.offsets)

    model, simulator = tiny(), Recorded(shifted)
    model.fit(simulator, **QUICK)
    values = simulator.sets.values.to(torch.float64)
    torch.testing.assert_close(model.feature_shift, values.mean(0))
    torch.testing.assert_close(model.feature_scale, values.std(0))


def test_standardisation_makes_training_indifferent_to_units() -> None:
    def in_other_units(theta, size, generator) -> Sets:
        sets = SIMULATOR(theta, size, generator)
        return Sets(sets.values * torch.tensor([1024.0, 0.125, 1.0]), sets.offsets)

    plain, scaled = tiny(), tiny()
    a, b = plain.fit(SIMULATOR, **QUICK), scaled.fit(in_other_units, **QUICK)
    torch.testing.assert_close(torch.tensor(a.validation_loss), torch.tensor(b.validation_loss), rtol=1e-3, atol=1e-4)


def test_standardisation_can_be_left_out() -> None:
    model = tiny(standardise=False)
    model.fit(SIMULATOR, **QUICK)
    assert model.feature_shift.tolist() == [0, 0, 0]
    assert model.feature_scale.tolist() == [1, 1, 1]


def test_a_constant_feature_is_harmless() -> None:
    def constant(theta, size, generator) -> Sets:
        sets = SIMULATOR(theta, size, generator)
        return Sets(torch.cat([sets.values[:, :2], torch.full_like(sets.values[:, :1], 0.1)], 1), sets.offsets)

    model = tiny()
    history = model.fit(constant, **QUICK)
    assert model.feature_scale[2].item() == 1
    assert all(abs(loss) < 20 for (loss,) in history.validation_loss)


def test_initial_weights_follow_the_seed() -> None:
    sets = some_sets()
    assert torch.equal(tiny(seed=3).compress(sets).score, tiny(seed=3).compress(sets).score)
    assert not torch.equal(tiny(seed=3).compress(sets).score, tiny(seed=4).compress(sets).score)


@pytest.mark.parametrize("num_params", [1, 5])
@pytest.mark.parametrize("factor", ["full", "diagonal", "rank-1"])
def test_any_number_of_parameters(num_params: int, factor: str) -> None:
    model = tiny(Normal([0.0] * num_params, [1.0] * num_params), factor=factor)
    assert model.num_params == num_params
    information = model.compress(some_sets())
    assert information.fisher.shape == (5, num_params, num_params)
    if factor == "diagonal":
        off_diagonal = information.fisher - torch.diag_embed(information.fisher.diagonal(dim1=-2, dim2=-1))
        assert bool((off_diagonal == 0).all())
    if factor == "rank-1":
        assert torch.linalg.matrix_rank(information.fisher[2], rtol=1e-8).item() == 1


def test_wrong_width_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"The sets have 4 features but the model was made for 3"):
        tiny().compress(Sets.from_list([torch.zeros(2, 4)]))


def test_anything_but_sets_is_refused() -> None:
    with pytest.raises(DataError, match=r"`sets` is a list but `fishnets.Sets` was expected; make it with `Sets.from"):
        tiny().compress([torch.zeros(2, 3)])  # type: ignore[call-overload]


def test_rows_that_are_not_finite_are_named() -> None:
    values = some_sets().values.clone()
    values[14, 1], values[20, 0] = torch.nan, torch.inf
    with pytest.raises(NonFiniteError, match=r"2 of 61 rows hold NaN or infinite values: set 3 row 0, set 3 row 6"):
        tiny().compress(Sets(values, some_sets().offsets))


def test_misspelt_members_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'`members` is "all" but "pooled" or "separate" was expected'):
        tiny().compress(some_sets(), members="all")  # type: ignore[call-overload]


def test_chunk_of_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`max_data` is 0 but at least 1 was expected"):
        tiny().compress(some_sets(), chunk=0)


@pytest.mark.parametrize(("features", "members"), [(0, 1), (3, 0)])
def test_models_without_features_or_members_are_refused(features: int, members: int) -> None:
    with pytest.raises(ConfigError, match=f"`num_features` is {features} and `members` {members}; both must be"):
        Fishnet(features, PRIOR, members=members)


@pytest.mark.parametrize("fiducial", [[0.0], [[0.0, 0.0]], 1.0])
def test_fiducial_of_another_shape_is_refused(fiducial: Any) -> None:
    with pytest.raises(ShapeError, match=r"`fiducial` has shape .* but \(2,\) was expected"):
        tiny(fiducial=fiducial)


def test_factor_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match=r'`factor` is "rank-3" but "full", "diagonal" or "rank-r" with 1 <= r <= 2'):
        tiny(factor="rank-3")


def test_prior_that_lacks_something_is_refused() -> None:
    class Half:
        mean = torch.zeros(2)

        def sample(self) -> None: ...

    with pytest.raises(ConfigError, match=r"The prior .* lacks log_prob, covariance; give `fishnets.priors.Normal`"):
        tiny(Half())


def test_model_made_with_a_prior_of_the_users_own_class_trains() -> None:
    model = tiny(Disc())
    history = model.fit(SIMULATOR, **QUICK)
    assert abs(history.validation_loss[0][0]) < 20
    assert history.best_loss[0] <= history.validation_loss[0][0]


@pytest.mark.parametrize("network", ["gated", Gated, torch.nn.Identity()], ids=["name", "class", "module"])
def test_what_is_no_recipe_of_a_network_is_refused(network: object) -> None:
    with pytest.raises(ConfigError, match=r"a recipe such as `fishnets\.networks\.Gated"):
        Fishnet(num_features=2, prior=Normal([0.0], [1.0]), network=network)


POINTS = torch.tensor([[0.1, -1.0], [0.5, 0.5], [-2.0, 0.3], [0.0, 0.0], [1.0, 1.5]], dtype=torch.float64)


def other_sets(sets: Sets) -> Sets:
    """The same sets in another order, so that each has something to be merged with."""
    return Sets.concatenate([sets[2], sets[4], sets[1], sets[0], sets[3]])


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("members", [1, 3])
@precisions
def test_local_information_has_one_fiducial_per_set(factor: str, members: int, precision, device) -> None:
    model, points = tiny(factor=factor, members=members, refine=True), POINTS.to(device)
    information = model.compress(some_sets(precision, device), at=points)
    assert torch.equal(information.fiducial, points)
    assert information.score.shape == (5, 2)
    assert information.score.dtype == information.fisher.dtype == information.fiducial.dtype == torch.float64
    assert information.count.tolist() == [13, 0, 1, 40, 7]
    assert bool((torch.linalg.eigvalsh(information.fisher) > -1e-12).all())
    assert bool((information.score[1] == 0).all())
    assert bool((information.fisher[1] == 0).all())


@pytest.mark.parametrize("factor", FACTORS)
@precisions
def test_laws_of_local_information(factor: str, precision, device) -> None:
    model, sets = tiny(factor=factor, members=2, refine=True), some_sets(precision, device)
    points, tolerance = POINTS.to(device), TOLERANCE[precision]

    def compress(some: Sets) -> Information:
        return model.compress(some, at=points)

    def same(a: Information, b: Information) -> None:
        assert_same(a, b, tolerance)

    check_permutation_invariance(compress, sets, generator(1, device), same)
    check_compress_then_merge(compress, Information.__add__, sets, other_sets(sets), same)
    parts = compress(sets), compress(other_sets(sets)), compress(sets.union(sets))
    check_merging(Information.__add__, Information.zero(2, (5,), points, device), parts, same)
    same(compress(sets.union(other_sets(sets))) - compress(other_sets(sets)), compress(sets))


@precisions
def test_batch_mates_do_not_matter_for_local_information(precision, device) -> None:
    model, points = tiny(refine=True), POINTS[:1].to(device)

    def same(a: Information, b: Information) -> None:
        assert_same(a, b, TOLERANCE[precision])

    check_batch_of_one(lambda some: model.compress(some, at=points[0]), some_sets(precision, device), same)


def test_each_set_sees_its_own_point_alone(device) -> None:
    model, sets, points = tiny(refine=True), some_sets(device=device), POINTS.to(device)
    together = model.compress(sets, at=points)
    for i in range(5):
        assert_same(model.compress(sets[i], at=points[i]), together[i : i + 1])
        assert_same(model.compress(sets[i], at=points[i : i + 1]), together[i : i + 1])
    order = torch.tensor([3, 0, 4], device=device)
    assert_same(model.compress(sets[order], at=points[order]), together[order])


@pytest.mark.parametrize("chunk", [1, 7, 13, 60, 61, 10**6])
@precisions
def test_chunks_do_not_matter_for_local_information(chunk: int, precision, device) -> None:
    model, sets, points = tiny(members=2, refine=True), some_sets(precision, device), POINTS.to(device)
    assert_same(model.compress(sets, at=points, chunk=chunk), model.compress(sets, at=points), TOLERANCE[precision])


def test_a_stream_of_chunks_adds_up_to_the_whole() -> None:
    model, sets = tiny(refine=True), some_sets()
    total = Information.zero(2, (5,))
    for first, piece in sets.chunks(9):
        here = slice(first, first + len(piece))
        part = model.compress(piece, at=POINTS[here])
        empty = Information.zero(2, (5,), POINTS)
        score, fisher, count = empty.score.clone(), empty.fisher.clone(), empty.count.clone()
        score[here], fisher[here], count[here] = part.score, part.fisher, part.count
        total = total + Information(score, fisher, POINTS, count)
    assert_same(total, model.compress(sets, at=POINTS))


@PROPERTY
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    chunk=st.integers(1, 12),
    factor=st.sampled_from(FACTORS),
    seed=st.integers(0, 99),
)
def test_any_cut_gives_the_sum_over_rows_of_local_information(
    sizes: list[int], chunk: int, factor: str, seed: int
) -> None:
    values = torch.randn((sum(sizes), 3), generator=generator(seed), dtype=torch.float64)
    points = torch.randn((len(sizes), 2), generator=generator(seed + 1), dtype=torch.float64)
    offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    sets, model = Sets.from_offsets(values, offsets), tiny(factor=factor, refine=True)
    information = model.compress(sets, at=points, chunk=chunk)
    for i, size in enumerate(sizes):
        rows = Sets.from_offsets(values[offsets[i] : offsets[i + 1]], list(range(size + 1)) if size else [0, 0])
        assert_same(information[i], model.compress(rows, at=points[i]).sum())


@precisions
def test_one_point_for_all_is_the_same_point_for_each(precision) -> None:
    model, sets = tiny(refine=True), some_sets(precision)
    one, each = model.compress(sets, at=POINTS[0]), model.compress(sets, at=POINTS[0].repeat(5, 1))
    assert one.fiducial.shape == (5, 2)
    assert_same(one, each, 0.0)


def test_local_networks_see_where_they_are() -> None:
    model, sets = tiny(refine=True), some_sets()
    here, there = (model.compress(sets, at=POINTS[i]) for i in (0, 2))
    assert not torch.allclose(here.score[0], there.score[0])
    assert not torch.allclose(here.fisher[0], there.fisher[0])
    assert not torch.allclose(here.score[0], model.compress(sets).score[0])


def test_points_are_standardised_by_the_prior() -> None:
    wide, unit = tiny(Normal([1.0, 2.0], [4.0, 25.0]), refine=True), tiny(Normal([0.0, 0.0], [1.0, 1.0]), refine=True)
    scale, shift = torch.tensor([2.0, 5.0], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    a, b = wide.compress(some_sets(), at=shift + scale * POINTS), unit.compress(some_sets(), at=POINTS)
    torch.testing.assert_close(a.score * scale, b.score)
    torch.testing.assert_close(a.fisher * torch.outer(scale, scale), b.fisher)


def test_pooling_sums_the_members_local_information_with_their_weights() -> None:
    model, sets = tiny(members=3, refine=True), some_sets()
    model.weights.copy_(torch.tensor([0.5, 0.3, 0.2]))
    pooled, parts = model.compress(sets, at=POINTS), model.compress(sets, at=POINTS, chunk=11, members="separate")
    torch.testing.assert_close(pooled.score, sum(w * p.score for w, p in zip(model.weights, parts, strict=True)))
    torch.testing.assert_close(pooled.fisher, sum(w * p.fisher for w, p in zip(model.weights, parts, strict=True)))
    assert all(torch.equal(part.fiducial, POINTS) for part in parts)


def test_local_information_at_different_points_is_not_merged() -> None:
    model, sets = tiny(refine=True), some_sets()
    moved = POINTS.clone()
    moved[[0, 1, 3]] += 0.1  # set 1 is empty: it has the same information everywhere
    message = r"The two states have different fiducials \(first in set 0, 3\), so their scores cannot be added"
    a, b = model.compress(sets, at=POINTS), model.compress(sets, at=moved)
    with pytest.raises(IncompatibleInformationError, match=message):
        a + b
    with pytest.raises(IncompatibleInformationError, match=message):
        a - b
    with pytest.raises(IncompatibleInformationError, match=r"The sets have different fiducials, so their scores"):
        a.sum()
    assert_same((a + b.at(POINTS))[2], (a + a)[2])


def test_information_of_first_and_local_networks_is_not_merged() -> None:
    model, sets = tiny(refine=True), some_sets()
    with pytest.raises(IncompatibleInformationError, match=r"different fiducials \(first in set 0, 2, 3, 4\)"):
        model.compress(sets) + model.compress(sets, at=POINTS + 1)


@pytest.mark.parametrize("shape", [(4, 2), (5, 3), (3,), (1, 2), (), (5, 1, 2)])
def test_points_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    shown = repr(shape).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ShapeError, match=rf"`at` has shape {shown} but \(2,\) or \(5, 2\) was expected"):
        tiny(refine=True).compress(some_sets(), at=torch.zeros(shape))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_points_that_are_not_finite_are_refused(value: float) -> None:
    points = POINTS.clone()
    points[3, 1] = value
    with pytest.raises(DataError, match=r"`at` holds NaN or infinite values"):
        tiny(refine=True).compress(some_sets(), at=points)


def test_points_need_local_networks() -> None:
    message = r"`at` asks for information at a point of your own, which takes local networks; make the model with `fish"
    with pytest.raises(ConfigError, match=message):
        tiny().compress(some_sets(), at=POINTS)


def test_first_networks_do_not_depend_on_the_local_ones() -> None:
    """A model with local networks begins with the same first ones, so that the two can be compared."""
    plain, refined = tiny(seed=3, members=2), tiny(seed=3, members=2, refine=True)
    assert_same(refined.compress(some_sets()), plain.compress(some_sets()), 0.0)
    assert refined.num_weights > 2 * plain.num_weights


def test_a_local_model_compresses_without_gradients_and_changes() -> None:
    model = tiny(refine=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    point = POINTS[0].clone().requires_grad_()
    assert not model.compress(some_sets(), at=point).score.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
