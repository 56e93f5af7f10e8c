"""Priors: moments against samples, densities against torch's, and what files remember of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from tests.laws import check_printing, check_round_trip, close, equal
from tests.strategies import PROPERTY, conditions, normals, num_params, positive_definite, seeds
from torch.distributions import Independent, MultivariateNormal, Uniform

from fishnets.errors import ConfigError, DataError, NotPositiveDefiniteError, ShapeError
from fishnets.priors import Box, Moments, Normal, Prior, prior_from_dict, prior_to_dict

NORMAL = Normal([1.0, -2.0], [[2.0, 0.6], [0.6, 0.5]])
BOX = Box([-1.0, 0.0, 5.0], [1.0, 4.0, 5.5])


class Foreign:
    """A prior of somebody else."""

    mean = torch.tensor([1.0, 2.0], dtype=torch.float64)
    covariance = torch.eye(2, dtype=torch.float64)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> torch.Tensor:
        return self.mean.expand(num_samples, 2)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return theta.sum(-1)


@pytest.mark.parametrize("prior", [NORMAL, BOX], ids=["Normal", "Box"])
def test_samples_have_the_stated_moments(prior):
    number = 40_000
    samples = prior.sample(number, torch.Generator().manual_seed(3))
    p = len(prior.mean)
    assert samples.shape == (number, p)
    assert samples.dtype == torch.float64
    white = torch.linalg.solve(torch.linalg.cholesky(prior.covariance), (samples - prior.mean).mT).mT
    # 5 standard errors; a fourth moment of at most 3 bounds that of the covariance
    assert float(white.mean(0).abs().max()) < 5 / math.sqrt(number)
    covariance = white.mT @ white / number
    assert float((covariance - torch.eye(p, dtype=torch.float64)).abs().max()) < 5 * math.sqrt(2 / number)


@pytest.mark.parametrize("prior", [NORMAL, BOX], ids=["Normal", "Box"])
def test_samples_repeat_with_the_generator_and_follow_its_device(prior, device):
    first, second = (prior.sample(4, torch.Generator(device).manual_seed(1)) for _ in range(2))
    equal(first, second)
    assert first.device.type == device.type
    assert torch.isfinite(prior.log_prob(first)).all()


@PROPERTY
@given(num_params, seeds, conditions)
def test_normal_density_is_that_of_torch(p, seed, condition):
    mean, covariance = normals(seed, p), positive_definite(seed + 1, p, condition=condition)
    theta = normals(seed + 2, 3, 2, p)
    close(Normal(mean, covariance).log_prob(theta), MultivariateNormal(mean, covariance).log_prob(theta))


@PROPERTY
@given(num_params, seeds)
def test_box_density_is_that_of_torch_inside_and_nothing_outside(p, seed):
    low = normals(seed, p)
    high = low + 0.5 + normals(seed + 1, p).abs()
    box = Box(low, high)
    inside = low + (high - low) * torch.sigmoid(normals(seed + 2, 3, 2, p))
    close(box.log_prob(inside), Independent(Uniform(low, high), 1).log_prob(inside))
    outside = inside.clone()
    outside[0, 1, 0] = high[0] + 1e-6
    outside[2, 0, -1] = low[-1] - 1e-6
    expected = torch.ones(3, 2, dtype=torch.bool)
    expected[0, 1] = expected[2, 0] = False
    equal(torch.isfinite(box.log_prob(outside)), expected)
    assert float(box.log_prob(torch.full((p,), torch.nan))) == -math.inf


def test_box_holds_its_corners_and_its_samples():
    assert torch.isfinite(BOX.log_prob(torch.stack([BOX.low, BOX.high]))).all()
    samples = BOX.sample(1000, torch.Generator().manual_seed(0))
    assert bool(((samples >= BOX.low) & (samples <= BOX.high)).all())


def test_single_precision_parameters_are_evaluated_in_float64():
    theta = torch.tensor([0.5, 0.25])
    assert NORMAL.log_prob(theta).dtype == torch.float64
    close(NORMAL.log_prob(theta), NORMAL.log_prob(theta.double()))


def test_variances_stand_for_a_diagonal_covariance():
    equal(Normal([0.0, 0.0], [1.0, 4.0]).covariance, torch.diag(torch.tensor([1.0, 4.0], dtype=torch.float64)))
    equal(Normal(np.zeros(2), np.array([1.0, 4.0])).covariance, Normal([0, 0], torch.tensor([1, 4])).covariance)


def test_whatever_has_the_four_parts_is_a_prior():
    for prior in (NORMAL, BOX, Moments([1.0], [[2.0]], "mine"), Foreign()):
        assert isinstance(prior, Prior)


def same_prior(actual, expected):
    assert type(actual) is type(expected)
    equal(actual.mean, expected.mean)
    equal(actual.covariance, expected.covariance)


@pytest.mark.parametrize("prior", [NORMAL, BOX, Normal([0.1], [1 / 3])], ids=["Normal", "Box", "one parameter"])
def test_json_gives_the_prior_back(prior):
    check_round_trip(
        lambda p: json.dumps(prior_to_dict(p)), lambda text: prior_from_dict(json.loads(text)), prior, same_prior
    )
    again = prior_from_dict(json.loads(json.dumps(prior_to_dict(prior))))
    theta = prior.sample(5, torch.Generator().manual_seed(0))
    equal(again.log_prob(theta), prior.log_prob(theta))
    equal(again.sample(5, torch.Generator().manual_seed(1)), prior.sample(5, torch.Generator().manual_seed(1)))


def test_foreign_prior_is_remembered_by_its_moments_and_its_name():
    kept = prior_from_dict(json.loads(json.dumps(prior_to_dict(Foreign()))))
    assert isinstance(kept, Moments)
    assert kept.source.endswith("test_priors.Foreign")
    equal(kept.mean, Foreign.mean)
    equal(kept.covariance, Foreign.covariance)
    # stored a second time it still names its source
    assert prior_from_dict(prior_to_dict(kept)).source == kept.source
    with pytest.raises(DataError, match=r"only the mean and covariance of .*Foreign`, so it cannot be sampled"):
        kept.sample(2)
    with pytest.raises(DataError, match=r"cannot be evaluated\. Give the prior itself: `fishnets\.load"):
        kept.log_prob(torch.zeros(2))


@pytest.mark.parametrize("fields", [{"kind": "Gamma", "mean": [0.0]}, {}])
def test_unknown_kind_of_prior_is_refused(fields):
    with pytest.raises(ConfigError, match=r"Unknown prior kind .*; expected one of \['Box', 'Moments', 'Normal'\]"):
        prior_from_dict(fields)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Normal(0.0, 1.0), ShapeError, r"`mean` has shape \(\) but one value per parameter, \(p,\)"),
        (lambda: Normal([], []), ShapeError, r"`mean` has shape \(0,\) but one value per parameter"),
        (lambda: Normal([[0.0]], [1.0]), ShapeError, r"`mean` has shape \(1, 1\) but one value per parameter"),
        (lambda: Normal([math.nan], [1.0]), ConfigError, r"`mean` is \[nan\] but finite values were expected"),
        (lambda: Normal([0.0], [1.0, 2.0]), ShapeError, r"`covariance` has shape \(2, 2\) but \(\.\.\., 1, 1\)"),
        (lambda: Normal([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), ConfigError, "but a symmetric matrix was expected"),
        (lambda: Normal([0.0], [-1.0]), NotPositiveDefiniteError, "`covariance` is indefinite or singular, so"),
        (lambda: Normal([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]]), NotPositiveDefiniteError, "`covariance` is indefinite"),
        (lambda: Normal([0.0], [math.nan]), NotPositiveDefiniteError, "`covariance` is not finite, so"),
        (lambda: Box([0.0], [1.0, 2.0]), ShapeError, "`low` has 1 entries but `high` has 2; they must agree"),
        (lambda: Box([0.0, 1.0], [1.0, 1.0]), ConfigError, r"`low` \[0.0, 1.0\] must lie below `high` \[1.0, 1.0\]"),
        (lambda: Box([0.0], [math.inf]), ConfigError, r"`high` is \[inf\] but finite values were expected"),
        (lambda: Moments([0.0], [[1.0, 0.0]], "x"), ShapeError, r"`covariance` has shape \(1, 2\) but"),
    ],
)
def test_what_is_no_prior_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("prior", [NORMAL, BOX], ids=["Normal", "Box"])
def test_parameters_of_another_width_are_refused(prior):
    p = len(prior.mean)
    with pytest.raises(ShapeError, match=rf"`theta` has shape \(4, {p + 1}\) but \(\.\.\., {p}\) was expected"):
        prior.log_prob(torch.zeros(4, p + 1))


def test_printing():
    check_printing(NORMAL, "mean=[1.0, -2.0]", "covariance=[[2.0, 0.6], [0.6, 0.5]]")
    check_printing(BOX, "low=[-1.0, 0.0, 5.0]", "high=[1.0, 4.0, 5.5]")
    check_printing(Moments([1.0], [[2.0]], "mine"), "mean=[1.0]", "source='mine'")


def test_a_subclass_is_kept_by_its_own_moments() -> None:
    class Shifted(Box):
        @property
        def mean(self):
            return self.low

    fields = prior_to_dict(Shifted([0.0], [1.0]))
    assert fields["kind"] == "Moments"
    assert fields["mean"] == [0.0]
