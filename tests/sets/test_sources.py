"""Where batches come from: sizes, shuffles, splits, and the data that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.sets.helpers import PRIOR, SIMULATOR, Recorded, at_step, generator, stored

from fishnets import Sets
from fishnets.errors import ConfigError, DataError, NonFiniteError, ShapeError, SupportError
from fishnets.priors import Box
from fishnets.sets.sources import NoisySource, SimulatorSource, StoredSource


def simulated(simulator: Any = SIMULATOR, size: Any = (5, 50), **settings: Any) -> SimulatorSource:
    options = {"batch_data": 200, "num_validation": 9, "num_features": 3, "seed": 0, "generator": generator()}
    return SimulatorSource.make(simulator, PRIOR, size, **(options | settings))


def held(sets: Sets, theta: Any, prior: Any = PRIOR, **settings: Any) -> StoredSource:
    options = {"batch_data": 100, "validation_fraction": 0.2, "seed": 0}
    return StoredSource.make(sets, theta, prior, **(options | settings))


def test_sizes_stay_in_their_range_and_vary() -> None:
    source, draw = simulated(), generator(1)
    sizes = [set(source.batch(step, draw).sets.sizes.tolist()) for step in range(200)]
    assert all(len(size) == 1 for size in sizes), "one size a step"
    drawn = torch.tensor([size.pop() for size in sizes], dtype=torch.float64)
    assert drawn.min().item() >= 5
    assert drawn.max().item() <= 50
    assert drawn.log().mean().item() == pytest.approx(math.log(math.sqrt(5 * 50)), abs=0.15), "log-uniform"


def test_a_step_holds_about_the_same_number_of_rows() -> None:
    source, draw = simulated(), generator(1)
    rows = [source.batch(step, draw).sets.num_data for step in range(50)]
    assert max(rows) <= 200
    assert min(rows) > 150


def test_sets_larger_than_a_step_come_one_by_one() -> None:
    assert len(simulated(size=500).batch(0, generator()).sets) == 1


@pytest.mark.parametrize("size", [7, np.int64(7), (7, 7), [7, 7]])
def test_one_size_is_kept(size: Any) -> None:
    source = simulated(size=size)
    assert source.largest_set == 7
    assert set(source.validation.sets.sizes.tolist()) == {7}
    assert set(source.batch(3, generator()).sets.sizes.tolist()) == {7}


def test_validation_sets_cover_the_range_of_sizes() -> None:
    sizes = simulated().validation.sets.sizes
    assert sizes[0].item() == 5
    assert sizes[-1].item() == 50
    assert bool((sizes.diff() >= 0).all())


def test_size_of_a_step_depends_on_seed_and_step_alone() -> None:
    def sizes(seed: int, draw: int) -> list[int]:
        source = simulated(seed=seed)
        return [len(source.batch(step, generator(draw)).sets) for step in range(20)]

    assert sizes(0, 1) == sizes(0, 2)
    assert sizes(0, 1) != sizes(3, 1)


def test_batches_keep_the_precision_the_simulator_gives() -> None:
    """They are standardised before they become float32, so that a small signal on a large offset survives."""
    def double(theta, size, generator) -> Sets:
        return SIMULATOR(theta, size, generator).to(dtype=torch.float64)

    source = simulated(double)
    assert source.validation.sets.values.dtype == source.batch(0, generator()).sets.values.dtype == torch.float64
    assert source.batch(0, generator()).theta.dtype == torch.float32


@pytest.mark.parametrize("size", [0, -3, (0, 5), (9, 5), (1, 2, 3), (5,), (1.5, 7.0), 2.5])
def test_bad_ranges_of_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"`size` is .* but a whole number or a range \(low, high\) with 1 <= low"):
        simulated(size=size)


@pytest.mark.parametrize("name", ["batch_data", "num_validation"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` is 0 but at least 1 was expected"):
        simulated(**{name: 0})


WRONG = [
    (lambda sets: sets.values, DataError, r"The simulator returned a Tensor but `fishnets.Sets` was expected"),
    (lambda sets: [*sets.to_list()], DataError, r"The simulator returned a list but `fishnets.Sets` was expected"),
    (lambda sets: sets[:3], ShapeError, r"The simulator returned 3 sets for \d+ rows of theta"),
    (
        lambda sets: Sets(sets.values[:, :2], sets.offsets),
        ShapeError,
        r"`simulated values` has shape \(\d+, 2\) but \(..., 3\) was expected. That is the model's `num_features`",
    ),
]


@pytest.mark.parametrize("step", [-1, 0, 4])
@pytest.mark.parametrize(("action", "error", "message"), WRONG)
def test_simulator_that_returns_the_wrong_thing_is_refused(step: int, action: Any, error: Any, message: str) -> None:
    def run() -> None:
        source = simulated(at_step(step, action), size=10)
        for number in range(5):
            source.batch(number, generator())

    with pytest.raises(error, match=message):
        run()


def test_validation_sets_that_are_not_finite_are_refused() -> None:
    def spoil(sets: Sets) -> Sets:
        return Sets(sets.values.index_fill(0, torch.tensor([5]), torch.nan), sets.offsets)

    with pytest.raises(NonFiniteError, match=r"rows hold NaN or infinite values: set 1 row 0"):
        simulated(at_step(-1, spoil))


def test_simulator_is_given_fresh_parameters_every_step() -> None:
    source, draw = simulated(Recorded(), size=10), generator(1)
    first, second = source.batch(0, draw), source.batch(0, draw)
    assert not torch.equal(first.theta, second.theta)
    assert not torch.equal(first.sets.values, second.sets.values)


def test_every_stored_set_is_seen_once_an_epoch() -> None:
    sets, theta = stored(50)
    source = held(sets, theta)
    per_epoch = math.ceil(40 / source.sets_per_step)
    for epoch in range(2):
        batches = [source.batch(epoch * per_epoch + i, generator()) for i in range(per_epoch)]
        seen = torch.cat([batch.theta for batch in batches])
        torch.testing.assert_close(seen[:, 0].sort().values, source.train.theta[:, 0].sort().values, rtol=0, atol=0)


def test_stored_sets_keep_their_parameters() -> None:
    sets, theta = stored(50)
    source = held(sets, theta)
    own = {float(t[0]): part for t, part in zip(theta, sets.to_list(), strict=True)}
    for batch in (source.batch(0, generator()), source.batch(7, generator()), source.validation):
        for t, part in zip(batch.theta, batch.sets.to_list(), strict=True):
            assert torch.equal(part, own[float(t[0])])


def test_training_and_validation_sets_do_not_overlap() -> None:
    sets, theta = stored(50)
    source = held(sets, theta)
    train, validation = ({*batch.theta[:, 0].tolist()} for batch in (source.train, source.validation))
    assert (len(train), len(validation)) == (40, 10)
    assert not train & validation


def test_order_of_an_epoch_depends_on_seed_and_number_alone() -> None:
    sets, theta = stored(50)
    first, again = held(sets, theta), held(sets, theta)
    assert torch.equal(first.batch(9, generator(1)).theta, again.batch(9, generator(2)).theta)
    epochs = [first.batch(i * math.ceil(40 / first.sets_per_step), generator()).theta for i in range(2)]
    assert not torch.equal(epochs[0], epochs[1])


def test_nothing_held_out_means_validation_on_the_training_sets() -> None:
    sets, theta = stored(10)
    source = held(sets, theta, validation_fraction=0.0)
    assert len(source.train.sets) == len(source.validation.sets) == 10


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 3.0, math.nan])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match=rf"`validation_fraction` is {fraction} but 0 <= fraction < 1 was expected"):
        held(*stored(10), validation_fraction=fraction)


def test_a_step_of_no_rows_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`batch_data` is 0 but at least 1 was expected"):
        held(*stored(10), batch_data=0)


def test_largest_stored_set_and_empty_ones() -> None:
    sets = Sets.from_list([torch.zeros(n, 3) for n in (0, 1, 17, 0)])
    assert held(sets, torch.zeros(4, 2), validation_fraction=0.0).largest_set == 17
    empty = Sets.from_list([torch.zeros(0, 3)] * 4)
    assert held(empty, torch.zeros(4, 2)).largest_set == 1


def test_a_single_set_is_not_enough() -> None:
    with pytest.raises(DataError, match=r"At least two sets are needed to train"):
        held(Sets.from_list([torch.zeros(4, 3)]), torch.zeros(1, 2))


@pytest.mark.parametrize("shape", [(9, 2), (10, 2, 2), (2,)])
def test_theta_needs_one_row_per_set(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"`theta` has shape .* but one row per set, \(10, p\), was expected"):
        held(stored(10)[0], torch.zeros(shape))


def test_theta_needs_one_column_per_parameter() -> None:
    with pytest.raises(ShapeError, match=r"`theta` has shape \(10, 3\) but \(..., 2\) was expected"):
        held(stored(10)[0], torch.zeros(10, 3))


def test_theta_outside_the_prior_is_refused_naming_the_rows() -> None:
    theta = torch.zeros(10, 2)
    theta[3, 1], theta[8] = 5.0, -7.0
    box = Box([-1.0, -1.0], [1.0, 1.0])
    message = r"2 of 10 rows of `theta` lie outside the support of the prior Box.*: rows 3, 8; row 3 is \[0.0, 5.0\]"
    with pytest.raises(SupportError, match=message):
        held(stored(10)[0], theta, box)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_theta_that_is_not_finite_is_refused_naming_the_rows(value: float) -> None:
    theta = torch.zeros(10, 2)
    theta[4, 0] = value
    with pytest.raises(SupportError, match=r"`theta` holds NaN or infinite values in rows 4"):
        held(stored(10)[0], theta)


def test_stored_rows_that_are_not_finite_are_refused() -> None:
    sets = Sets.from_list([torch.zeros(4, 3), torch.zeros(2, 3)])
    sets.values[5, 1] = torch.inf
    with pytest.raises(NonFiniteError, match=r"1 of 6 rows hold NaN or infinite values: set 1 row 1"):
        held(sets, torch.zeros(2, 2))


def test_parameters_may_be_lists_arrays_or_integers() -> None:
    sets, theta = stored(10)
    expected = held(sets, theta).train.theta
    assert torch.equal(held(sets, theta.tolist()).train.theta, expected)
    assert torch.equal(held(sets, theta.numpy()).train.theta, expected)
    assert held(sets, torch.zeros(10, 2, dtype=torch.int64)).train.theta.dtype == torch.float64


def test_digest_tells_other_data() -> None:
    sets, theta = stored(10)
    assert held(sets, theta).digest == held(sets, theta).digest
    assert held(sets, theta).digest != held(sets, theta + 1e-3).digest
    assert held(sets, theta).digest != held(Sets(sets.values * 1.001, sets.offsets), theta).digest
    assert simulated().digest != simulated(size=(5, 51)).digest


def test_noise_is_added_and_nothing_else_changes() -> None:
    sets, theta = stored(50)
    plain, noisy = held(sets, theta), NoisySource.make(held(sets, theta), seed=0)
    batch, expected = noisy.batch(3, generator()), plain.batch(3, generator())
    assert torch.equal(batch.sets.values, expected.sets.values)
    assert torch.equal(batch.theta, expected.theta)
    assert batch.noise is not None
    assert batch.noise.shape == batch.theta.shape
    assert torch.equal(noisy.validation.theta, plain.validation.theta)
    assert noisy.largest_set == plain.largest_set
    assert torch.equal(noisy.typical.values, plain.typical.values)


def test_noise_is_standard_normal_and_new_at_every_step() -> None:
    source, draw = NoisySource.make(simulated(size=5, batch_data=5000), seed=0), generator(1)
    first, second = source.batch(0, draw).noise, source.batch(0, draw).noise
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    both = torch.cat([first, second])
    assert both.mean(0).abs().max().item() < 4 / math.sqrt(len(both))
    torch.testing.assert_close(both.mT.cov(), torch.eye(2), rtol=0, atol=4 * math.sqrt(2 / len(both)))


def test_noise_of_the_validation_sets_follows_the_seed_alone() -> None:
    sets, theta = stored(50)
    noises = [NoisySource.make(held(sets, theta), seed).validation.noise for seed in (0, 0, 1)]
    assert all(noise is not None for noise in noises)
    assert torch.equal(noises[0], noises[1])
    assert not torch.equal(noises[0], noises[2])
    source = NoisySource.make(simulated(), 0)
    assert source.validation is source.validation
    assert source.validation.noise is not None
    assert source.validation.noise.shape == (9, 2)


def test_simulated_batches_are_the_same_with_noise_and_without() -> None:
    """The noise is drawn after the sets, so that a step can be repeated from the state of its generator."""
    plain, noisy = simulated(), NoisySource.make(simulated(), seed=0)
    assert torch.equal(noisy.batch(2, generator(1)).sets.values, plain.batch(2, generator(1)).sets.values)
    a, b = noisy.batch(2, generator(1)), noisy.batch(2, generator(1))
    assert torch.equal(a.noise, b.noise)


def test_digest_tells_noisy_data_from_plain() -> None:
    assert NoisySource.make(simulated(), 0).digest == f"{simulated().digest} noise"
