"""Information of a summary: closed forms of linear regression and Poisson counts, known losses, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fishnets.errors import ConfigError, DataError, NonFiniteError, NotPositiveDefiniteError, ShapeError
from fishnets.inference.efficiency import Measured
from fishnets.inference.information import SummaryInformation, information
from fishnets.ops.segment_information import segment_sum
from fishnets.ragged import Sets
from fishnets.simulators import LinearRegression

THETA = torch.tensor([0.7, -0.4], dtype=torch.float64)
LINE = LinearRegression()
SIZE = 40


def poisson(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
    """Counts of one rate; draws do not move smoothly with it."""
    rate = torch.repeat_interleave(theta[:, :1], size, dim=0)
    return Sets(torch.poisson(rate, generator=generator), torch.cat([size.new_zeros(1), size.cumsum(0)]))


def total(sets: Sets) -> Tensor:
    return segment_sum(sets.values, sets.offsets)


def score(sets: Sets) -> Tensor:
    return LINE.information(sets, THETA).score


def first(sets: Sets, number: int) -> Sets:
    return Sets.from_list([rows[:number] for rows in sets.to_list()])


def near(value: Tensor, error: Tensor, expected: Tensor) -> bool:
    """Within four errors; four, and a little for slopes that common random numbers make almost exact."""
    return bool(((value - expected).abs() <= 4 * error + 1e-9 * expected.abs().max()).all())


def holds(found: Measured | None, expected: float, error: float) -> bool:
    return found is not None and abs(found.value - expected) < 4 * found.error and found.error < error


@pytest.fixture(scope="module")
def of_the_score() -> SummaryInformation:
    return information(score, LINE, THETA, size=SIZE)


def test_covariance_of_the_score_is_the_fisher_matrix(of_the_score):
    assert near(of_the_score.covariance, of_the_score.covariance_error, SIZE * LINE.fisher_per_datum())


def test_slope_of_the_score_is_plus_the_fisher_matrix(of_the_score):
    """The summary is fixed and the parameters of the data move: the paper's -F is for a moving point of evaluation."""
    fisher = SIZE * LINE.fisher_per_datum()
    assert near(of_the_score.slope, of_the_score.slope_error, fisher)
    assert float((of_the_score.slope_error / fisher).max()) < 0.02


def test_the_score_keeps_everything(of_the_score):
    torch.testing.assert_close(of_the_score.exact, SIZE * LINE.fisher_per_datum())
    assert near(of_the_score.information, of_the_score.error, SIZE * LINE.fisher_per_datum())
    assert holds(of_the_score.efficiency, 1, 0.03)
    assert all(holds(ratio, 1, 0.05) for ratio in of_the_score.bounds)


def test_default_step_is_a_standard_deviation_of_a_set(of_the_score):
    expected = (SIZE * LINE.fisher_per_datum()).diagonal().rsqrt()
    torch.testing.assert_close(of_the_score.step, expected, rtol=0.3, atol=0)


def test_slope_of_an_unbiased_estimate_is_the_identity():
    """And its covariance the mean inverse Fisher matrix of the sets: given x and sigma it is efficient."""
    found = information(lambda sets: LINE.information(sets, THETA).estimate(), LINE, THETA, size=SIZE)
    torch.testing.assert_close(found.slope, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-9)
    sets = LINE(THETA.expand(20_000, 2), torch.full((20_000,), SIZE), torch.Generator().manual_seed(1))
    assert near(found.covariance, found.covariance_error, torch.linalg.inv(LINE.information(sets).fisher).mean(0))


def test_half_of_the_data_hold_half_of_the_information():
    found = information(lambda sets: score(first(sets, SIZE // 2)), LINE, THETA, size=SIZE)
    assert holds(found.efficiency, 0.5, 0.02)


def test_noise_added_to_a_summary_costs_what_it_should():
    """Noise as large as the summary's own scatter doubles V: half of the information is lost, in every direction."""
    factor = torch.linalg.cholesky(SIZE * LINE.fisher_per_datum())
    generator = torch.Generator().manual_seed(8)

    def noisy(sets: Sets) -> Tensor:
        return score(sets) + torch.randn(len(sets), 2, generator=generator, dtype=torch.float64) @ factor.mT

    found = information(noisy, LINE, THETA, size=SIZE)
    assert holds(found.efficiency, 0.5, 0.03)


def test_useless_components_change_nothing():
    """Sixty components of pure noise: without the two corrections for finite samples the answer would be 5 % off."""
    generator = torch.Generator().manual_seed(3)

    def padded(sets: Sets) -> Tensor:
        noise = torch.randn(len(sets), 60, generator=generator, dtype=torch.float64)
        return torch.cat([score(sets), noise], dim=1)

    found = information(padded, LINE, THETA, size=SIZE, num_sets=2000)
    assert holds(found.efficiency, 1, 0.06)


def test_information_does_not_depend_on_the_units_of_the_summary(of_the_score):
    mix = torch.tensor([[3.0, -1.0], [0.5, 200.0]], dtype=torch.float64)
    found = information(lambda sets: score(sets) @ mix + 7, LINE, THETA, size=SIZE, step=of_the_score.step)
    torch.testing.assert_close(found.information, of_the_score.information, rtol=1e-8, atol=0)


@pytest.mark.parametrize("rate", [0.7, 30.0])
def test_total_of_poisson_counts_keeps_everything(rate):
    theta = torch.tensor([rate], dtype=torch.float64)
    exact = torch.tensor([[SIZE / rate]], dtype=torch.float64)
    found = information(total, poisson, theta, size=SIZE, exact=exact)
    assert near(found.slope, found.slope_error, torch.tensor([[float(SIZE)]], dtype=torch.float64))
    assert near(found.information, found.error, exact)
    assert holds(found.efficiency, 1, 0.06)


def test_errors_are_honest():
    """Over independent runs the deviations from the truth are as large as the errors say."""
    theta, exact = torch.tensor([4.0], dtype=torch.float64), torch.tensor([[5.0]], dtype=torch.float64)
    runs = [
        information(total, poisson, theta, size=20, num_sets=500, step=0.45, exact=exact, seed=seed).efficiency
        for seed in range(60)
    ]
    pulls = torch.tensor([(run.value - 1) / run.error for run in runs])
    assert abs(float(pulls.mean())) < 0.5
    assert 0.7 < float(pulls.std()) < 1.4


def test_summary_blind_to_a_direction_has_no_efficiency():
    found = information(lambda sets: score(sets)[:, :1], LINE, THETA, size=SIZE, num_sets=500)
    assert found.efficiency.value < 0.05
    assert found.slope.shape == (1, 2)


def test_fisher_matrix_that_depends_on_theta_is_asked_at_theta():
    class Counts:
        def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
            return poisson(theta, size, generator)

        def fisher_per_datum(self, theta: Tensor) -> Tensor:
            return 1 / theta[:, None]

    found = information(total, Counts(), [2.0], size=10, num_sets=200)
    torch.testing.assert_close(found.exact, torch.tensor([[5.0]], dtype=torch.float64))
    assert information(total, poisson, [2.0], size=10, num_sets=200).efficiency is None


def test_table_is_readable(of_the_score):
    lines = str(of_the_score).splitlines()
    assert lines[0] == "information of 2 summaries about 2 parameters, 4000 sets"
    assert lines[2].startswith("[0, 0]")
    assert lines[5].startswith("efficiency 0.9") or lines[5].startswith("efficiency 1.0")
    assert len(str(information(total, poisson, [2.0], size=10, num_sets=200)).splitlines()) == 3


def test_results_repeat_with_the_seed_and_do_not_touch_other_generators():
    a, b, c = (information(total, poisson, [2.0], size=10, num_sets=200, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a.information, b.information)
    assert not torch.equal(a.information, c.information)


def test_summaries_of_the_wrong_kind_are_refused():
    with pytest.raises(ShapeError, match=r"The summary has shape \(500,\) but one row per set, \(500, s\), was"):
        information(lambda sets: total(sets)[:, 0], poisson, [2.0], size=10)
    with pytest.raises(ShapeError, match=r"The summary has type list but one row per set"):
        information(lambda sets: total(sets).tolist(), poisson, [2.0], size=10)
    with pytest.raises(NonFiniteError, match="The summary holds NaN or infinite values in components 1"):
        information(lambda sets: torch.cat([total(sets), total(sets) / 0], 1), poisson, [2.0], size=10)
    with pytest.raises(NotPositiveDefiniteError, match=r"singular: components 1 never change. Drop them"):
        information(lambda sets: torch.cat([total(sets), sets.sizes[:, None]], 1), poisson, [2.0], size=10)
    with pytest.raises(NotPositiveDefiniteError, match=r"singular: component \d is a linear combination of the others"):
        information(lambda sets: score(sets) @ torch.ones(2, 2).double(), LINE, THETA, size=10)
    with pytest.raises(DataError, match=r"No step was found at which the summary moves with every parameter"):
        information(lambda sets: LINE.information(sets).fisher[:, 0], LINE, THETA, size=10)


def test_settings_are_checked():
    with pytest.raises(ShapeError, match=r"`theta` has shape \(1, 1\) and dtype torch.float32 but one point, \(p,\)"):
        information(total, poisson, torch.ones(1, 1), size=10)
    with pytest.raises(ShapeError, match=r"`step` has shape \(2,\) but a number or \(1,\) was expected"):
        information(total, poisson, [2.0], size=10, step=[0.1, 0.1])
    with pytest.raises(ConfigError, match=r"`step` is -0.1 but positive numbers were expected"):
        information(total, poisson, [2.0], size=10, step=-0.1)
    with pytest.raises(ConfigError, match="`size` is 10 and `num_sets` 50 but at least 1 and 100"):
        information(total, poisson, [2.0], size=10, num_sets=50)
    with pytest.raises(ShapeError, match=r"`exact` has shape \(2, 2\) but \(\.\.\., 1, 1\) was expected"):
        information(total, poisson, [2.0], size=10, exact=torch.eye(2))
    with pytest.raises(NotPositiveDefiniteError, match="`exact` is not positive definite"):
        information(total, poisson, [2.0], size=10, exact=-torch.eye(1))
    with pytest.raises(ConfigError, match="covariance of 100 summaries is measured with 200 sets but at least 408 are"):
        information(
            lambda sets: torch.rand(len(sets), 100, generator=torch.Generator().manual_seed(0)),
            poisson,
            [2.0],
            size=10,
            num_sets=200,
            step=0.1,
        )


def test_a_step_out_of_the_simulators_domain_is_explained() -> None:
    from fishnets.simulators import GammaPopulation

    simulator = GammaPopulation()
    with pytest.raises(DataError, match=r"(?s)The simulator refused parameters .* Give a smaller `step`"):
        information(
            lambda sets: simulator.columns(sets.values)[1].reshape(len(sets), -1).mean(1, keepdim=True),
            simulator,
            torch.tensor([1.0, 0.2]),
            size=5,
            step=torch.tensor([0.5, 0.5]),
            num_sets=200,
        )
