"""Learned posteriors against exact ones, in both directions, with both densities; their files and refusals."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fishnets as fn
from fishnets.errors import (
    ConfigError,
    DataError,
    FileFormatError,
    IncompatibleInformationError,
    MissingExtraError,
    NonFiniteError,
    NonFiniteLossError,
    ShapeError,
    SupportError,
)
from fishnets.inference import Posterior, Summaries, load_posterior
from fishnets.inference.directions import GivenSummary, GivenTheta
from fishnets.inference.resampling import resampled
from fishnets.priors import Box, Moments, Normal
from fishnets.sets.container import read_container, write_container

SIMULATOR = fn.simulators.LinearRegression()
SMALL: dict[str, Any] = {"hidden": (32,), "transforms": 1, "components": 2}
QUICK: dict[str, Any] = {"steps": 30, "batch_size": 64}
BOX = Box([-2.0, -1.0], [2.0, 3.0])
KINDS, DIRECTIONS = ("nsf", "gmm"), ("posterior", "likelihood")

every_kind = pytest.mark.parametrize("kind", KINDS)
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)


def exact_pairs(
    num_sets: int, low: int, high: int, seed: int = 0, prior: Any = SIMULATOR.prior
) -> tuple[Tensor, Summaries]:
    """Linear regressions with their exact information: under the normal prior the summary *is* the posterior."""
    generator = torch.Generator().manual_seed(seed)
    theta = prior.sample(num_sets, generator)
    sizes = torch.randint(low, high + 1, (num_sets,), generator=generator)
    return theta, Summaries(SIMULATOR.information(SIMULATOR(theta, sizes, generator)), prior, "exact")


def quick(prior: Any = BOX, direction: str = "posterior", kind: str = "gmm", **changes: Any) -> tuple[Posterior, Any]:
    """A posterior after a few steps, and its summaries."""
    theta, summaries = exact_pairs(200, 5, 30, prior=prior)
    posterior = Posterior(prior, kind=kind, direction=direction, **(SMALL | changes))  # type: ignore[arg-type]
    posterior.fit(theta, summaries, **QUICK)
    return posterior, summaries


class Disc:
    """A prior of our own, uniform on the unit disc, whose support is no box."""

    mean = torch.zeros(2, dtype=torch.float64)
    covariance = 0.25 * torch.eye(2, dtype=torch.float64)

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        angle, radius = torch.rand(2, num_samples, generator=generator, dtype=torch.float64)
        angle = 2 * math.pi * angle
        return radius.sqrt().unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)

    def log_prob(self, theta: Tensor) -> Tensor:
        inside = theta.square().sum(-1) <= 1
        return torch.where(inside, -math.log(math.pi), -torch.inf).to(torch.float64)


@pytest.mark.parametrize("sizes", [(5, 500), (50, 50)], ids=["amortised", "one size"])
@every_direction
@every_kind
def test_exact_gaussian_posterior_is_learned(kind: str, direction: str, sizes: tuple[int, int]) -> None:
    theta, summaries = exact_pairs(4000, *sizes)
    _, test = exact_pairs(60, *sizes, seed=1)
    posterior = Posterior(SIMULATOR.prior, kind=kind, direction=direction, **SMALL)  # type: ignore[arg-type]
    history = posterior.fit(theta, summaries, steps=400, batch_size=256, learning_rate=5e-3)
    assert history.stopped == "finished"
    samples = posterior.sample(test, 2000, torch.Generator().manual_seed(2))
    exact, sd = test.gaussian, test.gaussian.standard_deviation
    assert samples.shape == (60, 2000, 2)
    shift = ((samples.mean(1) - exact.mean) / sd).abs().mean()
    ratio = samples.std(1) / sd
    correlation = torch.stack([torch.corrcoef(s.T)[0, 1] for s in samples])
    expected = exact.covariance[:, 0, 1] / sd.prod(-1)
    assert shift < 0.12
    assert abs(ratio.mean() - 1) < 0.04
    assert ratio.std() < 0.1
    assert (correlation - expected).abs().mean() < 0.05


def test_posterior_starts_at_the_gaussian_of_the_summary() -> None:
    theta, summaries = exact_pairs(3000, 5, 500)
    posterior = Posterior(SIMULATOR.prior, **SMALL)
    history = posterior.fit(theta, summaries, steps=1, learning_rate=0.0)
    loss = -summaries.gaussian.log_prob(theta).mean()
    assert history.validation_loss[0][0] == pytest.approx(float(loss), abs=0.1)


def exponential(num_sets: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rates from a box and the log of the mean of ten exponential variates: an exact posterior that is no Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    theta = Box([0.5], [4.0]).sample(num_sets, generator)
    unit = -torch.rand(num_sets, 10, generator=generator, dtype=torch.float64).log()
    return theta, (unit / theta).mean(1, keepdim=True).log()


@pytest.mark.parametrize(("kind", "direction"), [("nsf", "posterior"), ("gmm", "posterior"), ("nsf", "likelihood")])
def test_posterior_cut_by_a_box_is_learned_from_a_plain_array(kind: str, direction: str) -> None:
    theta, array = exponential(5000, 0)
    posterior = Posterior(Box([0.5], [4.0]), kind=kind, direction=direction, **SMALL)  # type: ignore[arg-type]
    posterior.fit(theta, array.numpy(), steps=500, batch_size=256, learning_rate=5e-3)
    _, test = exponential(40, 1)
    samples = posterior.sample(test, 1000, torch.Generator().manual_seed(3))[..., 0]
    grid = torch.linspace(0.5, 4.0, 2001, dtype=torch.float64)
    cdf = torch.softmax(10 * grid.log() - 10 * grid * test.exp(), dim=-1).cumsum(-1)  # p(rate | mean) on the box
    levels = cdf.take_along_dim(torch.searchsorted(grid, samples).clamp(max=2000), 1).sort(1).values
    distance = (levels - (torch.arange(1000) + 0.5) / 1000).abs().amax(1)
    assert distance.mean() < 0.06
    assert distance.max() < 0.15


@pytest.mark.parametrize("prior", [BOX, SIMULATOR.prior], ids=["box", "normal"])
@every_kind
def test_log_prob_integrates_to_one(kind: str, prior: Any) -> None:
    posterior, summaries = quick(prior, kind=kind)
    low, high = (BOX.low, BOX.high) if prior is BOX else (torch.full((2,), -6.0), torch.full((2,), 6.0))
    axes = [torch.linspace(float(a), float(b), 402, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    cells = [0.5 * (axis[1:] + axis[:-1]) for axis in axes]
    points = torch.cartesian_prod(*cells)
    area = float((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))
    for i in (0, 3):
        assert float(posterior.log_prob(points, summaries[i]).exp().sum()) * area == pytest.approx(1, abs=0.01)


@every_direction
def test_log_determinants_are_those_of_the_maps(direction: str) -> None:
    """By automatic differentiation: with respect to theta, or to the estimate and the packed log-Cholesky factor."""
    posterior, summaries = quick(direction=direction)
    one, theta = summaries[4], torch.tensor([[[0.3, 0.5]]], dtype=torch.float64)
    view = posterior.view
    assert isinstance(view, GivenSummary | GivenTheta)
    if direction == "posterior":
        jacobian = torch.autograd.functional.jacobian(lambda t: view.pairs(t.view(1, 1, 2), one)[0].flatten(), theta)
        jacobian = jacobian.view(2, 2)
    else:

        def variables(vector: Tensor) -> Tensor:
            estimate, packed = vector[:2], vector[2:]
            zero = torch.zeros((), dtype=torch.float64)
            rows = [torch.stack([packed[0].exp(), zero]), torch.stack([packed[1], packed[2].exp()])]
            precision = torch.stack(rows) @ torch.stack(rows).T
            prior_precision = torch.linalg.inv(BOX.covariance)
            fisher, fiducial = precision - prior_precision, one.information.fiducial
            score = precision @ (estimate - fiducial) + prior_precision @ (fiducial - BOX.mean)
            info = fn.Information(score.unsqueeze(0), fisher.unsqueeze(0), fiducial, one.sizes)
            return view.pairs(theta, Summaries(info, BOX, "exact"))[0].flatten()

        jacobian = torch.autograd.functional.jacobian(variables, one.vector[0, :5])
    log_det = torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(log_det, view.pairs(theta, one)[2].squeeze())


@every_direction
@every_kind
def test_samples_stay_inside_and_repeat_with_the_seed(kind: str, direction: str) -> None:
    posterior, summaries = quick(kind=kind, direction=direction)
    first, again, other = (
        posterior.sample(summaries[:20], 200, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.float64
    assert bool(((first >= BOX.low) & (first <= BOX.high)).all())
    assert torch.isfinite(posterior.log_prob(first, summaries[:20])).all()


def test_fitting_is_reproducible_and_starts_anew() -> None:
    theta, summaries = exact_pairs(200, 5, 30)
    a, b = Posterior(SIMULATOR.prior, seed=4, **SMALL), Posterior(SIMULATOR.prior, seed=4, **SMALL)
    first, second = a.fit(theta, summaries, **QUICK), b.fit(theta, summaries, **QUICK)
    third = b.fit(theta, summaries, **QUICK)
    assert first.validation_loss == second.validation_loss == third.validation_loss
    assert torch.equal(a.log_prob(theta, summaries), b.log_prob(theta, summaries))
    c = Posterior(SIMULATOR.prior, seed=5, **SMALL)
    assert c.fit(theta, summaries, **QUICK).validation_loss != first.validation_loss


@every_direction
def test_rows_and_chunks_do_not_matter(direction: str) -> None:
    posterior, summaries = quick(direction=direction)
    theta = BOX.sample(10 * 7, torch.Generator().manual_seed(0)).view(10, 7, 2)
    whole = posterior.log_prob(theta, summaries[:10])
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(posterior.log_prob(theta[order], summaries[order]), whole[order], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(posterior.log_prob(theta, summaries[:10], chunk=8), whole, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(posterior.log_prob(theta[:, 2], summaries[:10]), whole[:, 2], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(posterior.log_prob(theta[3], summaries[3]), whole[3], rtol=1e-5, atol=1e-4)
    if direction == "posterior":
        a, b = (posterior.sample(summaries[:6], 5, torch.Generator().manual_seed(1), chunk=c) for c in (7, 10_000))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_empty_sets_have_the_prior_as_posterior() -> None:
    theta, summaries = exact_pairs(2000, 0, 20, prior=BOX)
    posterior = Posterior(BOX, kind="gmm", **SMALL)
    posterior.fit(theta, summaries, steps=300, batch_size=256, learning_rate=5e-3)
    empty = Summaries(fn.Information.zero(2, (1,)), BOX, "exact")
    samples = posterior.sample(empty, 4000, torch.Generator().manual_seed(0))[0]
    assert ((samples.mean(0) - BOX.mean).abs() / BOX.covariance.diagonal().sqrt()).max() < 0.3
    assert posterior.sample(empty[:0], 3).shape == (0, 3, 2)


@every_direction
@every_kind
@pytest.mark.parametrize("plain", [True, False])
def test_loaded_posterior_is_bit_equal(kind: str, direction: str, plain: bool, tmp_path: Path) -> None:
    theta, summaries = exact_pairs(200, 5, 30, prior=BOX)
    given: Any = summaries.vector if plain else summaries
    posterior = Posterior(BOX, kind=kind, direction=direction, seed=3, **SMALL)  # type: ignore[arg-type]
    posterior.fit(theta, given, **QUICK)
    posterior.save(tmp_path / "p.fishnet")
    loaded = load_posterior(tmp_path / "p.fishnet")
    assert torch.equal(loaded.log_prob(theta, given), posterior.log_prob(theta, given))
    a, b = (p.sample(given[:3], 5, torch.Generator().manual_seed(0)) for p in (loaded, posterior))
    assert torch.equal(a, b)
    assert loaded.fitted
    assert repr(loaded) == repr(posterior)


@every_direction
def test_prior_of_another_class_keeps_its_support(direction: str, tmp_path: Path) -> None:
    prior = Disc()
    posterior, summaries = quick(prior, direction=direction)
    samples = posterior.sample(summaries[:20], 200, torch.Generator().manual_seed(0))
    assert bool((samples.square().sum(-1) <= 1).all())
    posterior.save(tmp_path / "p.fishnet")
    with pytest.raises(DataError, match=r"only the moments of the prior .*Disc`.*`load_posterior\(path, prior=...\)`"):
        load_posterior(tmp_path / "p.fishnet")
    with pytest.raises(ConfigError, match="has other moments than the one the posterior was fitted with"):
        load_posterior(tmp_path / "p.fishnet", prior=BOX)
    loaded = load_posterior(tmp_path / "p.fishnet", prior=prior)
    assert torch.equal(loaded.log_prob(samples, summaries[:20]), posterior.log_prob(samples, summaries[:20]))


class Nowhere(Disc):
    """A prior that covers nothing the density learned."""

    def log_prob(self, theta: Tensor) -> Tensor:
        return torch.full(theta.shape[:-1], -torch.inf, dtype=torch.float64)


def test_samples_that_never_fall_inside_are_an_error() -> None:
    posterior, summaries = quick(Disc())
    posterior.prior = Nowhere()
    with pytest.raises(SupportError, match=r"After 100 rounds, samples of 3 of 3 sets \(set 0, 1, 2\) still fall"):
        posterior.sample(summaries[:3], 2, torch.Generator().manual_seed(0))


def test_a_poor_importance_sample_is_an_error() -> None:
    spikes = torch.rand(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4 - 2

    def log_density(theta: Tensor, given: Any) -> Tensor:
        nearest = (theta.unsqueeze(-2) - spikes).square().sum(-1).amin(-1)
        return -nearest * 1e9

    coordinates = quick(direction="likelihood")[0].coordinates
    array = torch.zeros(2, 1, dtype=torch.float64)
    with pytest.raises(DataError, match=r"Importance sampling failed for 2 of 2 sets \(set 0, 1\): less than 5% of"):
        resampled(log_density, BOX, coordinates, array, 100, torch.Generator().manual_seed(0))


def test_summaries_of_another_origin_are_refused() -> None:
    posterior, summaries = quick()
    info = summaries.information
    with pytest.raises(IncompatibleInformationError, match="of model exact but these come from model other"):
        posterior.sample(Summaries(info, BOX, "other"), 5)
    with pytest.raises(IncompatibleInformationError, match=r"fiducial \[0.0, 0.0\] but these are at \[1.0, 1.0\]"):
        posterior.sample(Summaries(info.at(torch.ones(2)), BOX, "exact"), 5)
    with pytest.raises(IncompatibleInformationError, match="under a prior with mean and covariance"):
        posterior.sample(Summaries(info, SIMULATOR.prior, "exact"), 5)
    with pytest.raises(ShapeError, match="was fitted on `Summaries` but was given an array with 6 columns"):
        posterior.sample(summaries.vector, 5)
    _, large = exact_pairs(2, 20_000, 20_000, prior=BOX)
    message = r"fitted on sets of 5 to 30 data; got 20,000 in 2 of 2 sets: fit on sets of that size"
    with pytest.raises(SupportError, match=message):
        posterior.log_prob(torch.zeros(2, 2), large)


def test_one_size_is_named_as_one() -> None:
    theta, summaries = exact_pairs(50, 7, 7)
    posterior = Posterior(SIMULATOR.prior, kind="gmm", **SMALL)
    posterior.fit(theta, summaries, **QUICK)
    _, larger = exact_pairs(1, 8, 8)
    with pytest.raises(SupportError, match="fitted on sets of 7 data; got 8 in 1 of 1 sets"):
        posterior.sample(larger, 5)


def test_plain_arrays_are_checked() -> None:
    theta, array = exponential(50, 0)
    posterior = Posterior(Box([0.5], [4.0]), kind="gmm", **SMALL)
    with pytest.raises(NonFiniteError, match=r"NaN or infinite values in 1 rows \(row 3\)"):
        posterior.fit(theta, torch.where(torch.arange(50).unsqueeze(1) == 3, torch.nan, array))
    with pytest.raises(ShapeError, match=r"`summaries` has shape \(50,\) but one row per set"):
        posterior.fit(theta, array[:, 0])
    posterior.fit(theta, array, **QUICK)
    with pytest.raises(ShapeError, match="an array with 1 columns but was given an array with 2 columns"):
        posterior.sample(torch.zeros(3, 2), 5)


def test_theta_is_checked() -> None:
    posterior, summaries = quick()
    theta = torch.zeros(200, 2)
    outside = theta.clone()
    outside[[3, 8]] = 7.0
    message = r"2 of 200 parameters in `theta` lie outside the support of the prior Box.* \(row 3, 8\)"
    with pytest.raises(SupportError, match=message):
        posterior.fit(outside, summaries)
    with pytest.raises(SupportError, match=message):
        posterior.log_prob(outside, summaries)
    with pytest.raises(ShapeError, match=r"one row per set, \(200, 2\), was expected"):
        posterior.fit(theta[:5], summaries)
    with pytest.raises(ShapeError, match=r"`theta` has shape \(5, 2\) but \(200, 2\) or \(200, S, 2\) was expected"):
        posterior.log_prob(theta[:5], summaries)
    with pytest.raises(ShapeError, match="summaries are of 2 parameters but the prior has 1"):
        Posterior(Box([0.0], [1.0])).fit(theta, summaries)


def test_settings_are_checked() -> None:
    for wrong, message in [
        ({"kind": "maf"}, "`kind` is 'maf' but \"nsf\" or \"gmm\" was expected"),
        ({"direction": "both"}, "`direction` is 'both'"),
        ({"hidden": ()}, "at least one layer"),
        ({"bins": 1}, "`bins` 1"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Posterior(BOX, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="Of the prior `mine` only the moments are known"):
        Posterior(Moments([0.0], [[1.0]], "mine"))
    theta, summaries = exact_pairs(20, 5, 9)
    with pytest.raises(ConfigError, match=r"20 pairs with `validation_fraction` 0\.0 leave 0 for validation"):
        Posterior(SIMULATOR.prior, kind="gmm").fit(theta, summaries, validation_fraction=0.0)
    with pytest.raises(ConfigError, match="`steps` is 0"):
        Posterior(SIMULATOR.prior).fit(theta, summaries, steps=0)
    posterior, summaries = quick()
    with pytest.raises(ConfigError, match="`num_samples` is 0"):
        posterior.sample(summaries, 0)


def test_an_unfitted_posterior_says_so(tmp_path: Path) -> None:
    posterior = Posterior(BOX)
    _, summaries = exact_pairs(2, 5, 5, prior=BOX)
    with pytest.raises(DataError, match=r"has not been fitted; call `posterior.fit\(theta, summaries\)` first"):
        posterior.sample(summaries, 5)
    with pytest.raises(DataError, match="has not been fitted, so there is nothing to save"):
        posterior.save(tmp_path / "p.fishnet")
    assert not posterior.fitted


def test_empty_sets_have_no_likelihood() -> None:
    theta, summaries = exact_pairs(50, 0, 3)
    with pytest.raises(SupportError, match="The summary of a set without data is the same for every theta"):
        Posterior(SIMULATOR.prior, direction="likelihood").fit(theta, summaries)


def test_a_loss_that_is_not_finite_stops_the_fit() -> None:
    theta, summaries = exact_pairs(200, 5, 30)
    with pytest.raises(NonFiniteLossError, match=r"The loss is (nan|inf) at step \d+, so the fit has failed"):
        Posterior(SIMULATOR.prior, kind="gmm", **SMALL).fit(
            theta, summaries, steps=50, learning_rate=1e30, clip=1e30, batch_size=64
        )


def test_a_density_that_is_not_finite_is_an_error() -> None:
    posterior, summaries = quick()
    with torch.no_grad():
        next(posterior.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=r"3 of 3 log-densities are NaN or infinite \(set 0, 1, 2\)"):
        posterior.log_prob(torch.zeros(3, 2), summaries[:3])
    with pytest.raises(NonFiniteError, match=r"Samples are NaN or infinite in 3 sets"):
        posterior.sample(summaries[:3], 5, torch.Generator())


def test_patience_ends_a_fit_early() -> None:
    theta, summaries = exact_pairs(200, 5, 30)
    history = Posterior(SIMULATOR.prior, **SMALL).fit(
        theta, summaries, steps=2000, patience=3, validate_every=10, learning_rate=0.0, batch_size=16
    )
    assert history.stopped == "patience"
    assert history.num_steps == 30


def test_missing_zuko_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zuko.flows", None)
    theta, summaries = exact_pairs(50, 5, 9)
    with pytest.raises(MissingExtraError, match=r"Density estimation needs `zuko`.*'fishnets\[posterior\]'"):
        Posterior(SIMULATOR.prior).fit(theta, summaries)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.fishnet"
    quick()[0].save(path)
    header, tensors = read_container(path, "posterior")
    del header["kind"]
    for damage in ({"recipe": {"kind": "gmm", "nonsense": 1}}, {"origin": {}}, {"prior": {"kind": "?"}}):
        write_container(path, "posterior", header | damage, tensors)
        with pytest.raises(FileFormatError, match="does not describe a posterior this release can build"):
            load_posterior(path)


@pytest.mark.gpu
@every_direction
@every_kind
def test_fit_and_sample_on_a_gpu(kind: str, direction: str) -> None:
    theta, summaries = exact_pairs(2000, 5, 200)
    posterior = Posterior(SIMULATOR.prior, kind=kind, direction=direction, **SMALL)  # type: ignore[arg-type]
    posterior.fit(theta, summaries, steps=200, device="cuda", learning_rate=5e-3)
    samples = posterior.sample(summaries[:50], 1000, torch.Generator().manual_seed(0))
    assert samples.is_cuda
    ratio = samples.std(1).cpu() / summaries[:50].gaussian.standard_deviation
    assert abs(ratio.mean() - 1) < 0.1


def test_normal_prior_needs_no_redraw_and_correlations_are_fine() -> None:
    prior = Normal([1.0, 0.0], [[1.0, 0.6], [0.6, 1.0]])
    posterior, summaries = quick(prior)
    assert posterior.sample(summaries[:2], 3, torch.Generator().manual_seed(0)).shape == (2, 3, 2)
