"""Refined models on a GPU: fused and replayed training, local information, centred estimates, centrings, files."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sets.helpers import generator, same_weights
from torch import Tensor

import fishnets as fn
from fishnets import Estimate, Fishnet, History, Information, Sets
from fishnets.sets import training
from fishnets.sets.replay import Replayed
from fishnets.simulators import GammaPopulation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::fishnets.errors.ConvergenceWarning"),  # `settled` is looked at where it counts
]

SIMULATOR = GammaPopulation(features="log")  # a box for a prior, and measurement times that `like` keeps
NUM_SETS, SIZE, LOSS = 64, 2_000, 0.02
FAST: dict[str, Any] = {"precision": "bfloat16", "chunk": 2**20}


def fresh_times(theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
    """The simulator without ``like``."""
    return SIMULATOR(theta, size, generator)


def untrained() -> Fishnet:
    prior = SIMULATOR.prior
    return Fishnet(3, prior, fn.networks.Gated(16, 2), members=2, shared=True, refine=True).to("cuda")


def fit(model: Fishnet, steps: int) -> History:
    settings: dict[str, Any] = {"size": (20, 500), "batch_data": 20_000, "num_validation": 200, "progress": False}
    return model.fit(SIMULATOR, steps=steps, **settings)


@pytest.fixture(scope="module")
def trained() -> tuple[Fishnet, History]:
    model = untrained()
    return model, fit(model, 600)


@pytest.fixture(scope="module")
def model(trained: tuple[Fishnet, History]) -> Fishnet:
    """The one model of this file; a test that would change it takes a copy."""
    return trained[0]


@pytest.fixture(scope="module")
def truth() -> Tensor:
    """Parameters far enough from the prior's edges for estimates to stay inside, shape (NUM_SETS, 2)."""
    prior = SIMULATOR.prior
    return (prior.mean + 0.7 * (prior.sample(NUM_SETS, generator(3)) - prior.mean)).to("cuda")


@pytest.fixture(scope="module")
def sets(truth: Tensor) -> Sets:
    sizes = torch.full((NUM_SETS,), SIZE, device="cuda")
    return SIMULATOR(truth.float(), sizes, generator(4, "cuda"))


@pytest.fixture(scope="module")
def stored_model(model: Fishnet) -> Fishnet:
    """A copy with a stored centring."""
    twin = copy.deepcopy(model)
    twin.fit_centring(SIMULATOR, num_data=16_000_000, num_points=256)
    return twin


@pytest.fixture(scope="module")
def centred(model: Fishnet, sets: Sets) -> Estimate:
    """Estimates centred by simulations, to compare others with."""
    return model.estimate(sets, simulator=SIMULATOR, loss=LOSS, **FAST)


def in_noise(a: Information, b: Information) -> Tensor:
    """Differences of scores in standard deviations of the second, shape (B, p)."""
    return (a.score.to(b.score) - b.score) / b.fisher.diagonal(dim1=-2, dim2=-1).sqrt()


def distance(a: Estimate, b: Estimate) -> float:
    """Root mean square of the differences of estimates, in widths of the second."""
    gap = (a.mean.to(b.mean) - b.mean).unsqueeze(-1)
    return (gap.mT @ b.precision @ gap).mean().div(gap.shape[1]).sqrt().item()


def mean_squared_pull(estimate: Estimate, theta: Tensor) -> float:
    """One for honest widths, up to chance: with 64 sets of two parameters, to an eighth."""
    gap = (estimate.mean - theta).unsqueeze(-1)
    return ((gap.mT @ estimate.precision @ gap).mean() / gap.shape[1]).item()


def on_gpu(estimate: Estimate) -> bool:
    information = estimate.information
    tensors = (
        estimate.mean, estimate.precision, estimate.fisher_covariance, estimate.previous, estimate.settled,
        estimate.inside, estimate.added_noise, estimate.num_simulated, information.score, information.fisher,
        information.fiducial, information.count,
    )  # fmt: skip
    return all(tensor.is_cuda for tensor in tensors)


def test_both_networks_learn_in_fused_kernels(trained: tuple[Fishnet, History], sets: Sets) -> None:
    model, history = trained
    assert model.local is not None
    rows = sets.values[:10]
    assert model.networks.fuses(rows), "so that `auto` takes bfloat16"
    assert model.local.fuses(rows.repeat(1, 2)[:, :5]), "likewise, with two columns for the expansion point"
    assert history.stopped == "finished"
    assert max(history.best_loss) < min(history.validation_loss[0]) - 2, "the loss of both networks, per set"
    found = model.estimate(sets)
    assert on_gpu(found)
    assert bool(torch.isfinite(found.mean).all())
    assert bool(torch.isfinite(found.covariance).all())


def test_local_networks_lead_back_to_the_truth(model: Fishnet, sets: Sets, truth: Tensor) -> None:
    """From a point five widths off, as far as the noise lets them; an untrained network's step leads anywhere."""
    covariance = torch.linalg.inv(model.compress(sets, at=truth).fisher)
    point = truth + 5 * covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    step = model.compress(sets, at=point).estimate() - point
    assert 0.7 < (step / (truth - point)).median().item() < 1.3


def test_training_is_the_same_from_run_to_run_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit between runs; updates replayed as graphs, with their points' noise, equal plain ones."""
    replays: list[Replayed] = []

    def watched(update: Any) -> Replayed:
        replays.append(Replayed(update))
        return replays[-1]

    monkeypatch.setattr(training, "Replayed", watched)
    first, again, plain = untrained(), untrained(), untrained()
    fit(first, 80)
    fit(again, 80)
    assert replays[0].graphs, "the fast updates were captured"
    assert same_weights(first, again)
    monkeypatch.setattr(training, "Replayed", lambda update: update)
    fit(plain, 80)
    for one, other in zip(first.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_local_information_is_that_of_the_cpu(model: Fishnet, sets: Sets, truth: Tensor) -> None:
    """Rounding in float32 comes to a hundred-thousandth of the noise; in TF32 it would be about a hundredth."""
    on_cpu = copy.deepcopy(model).to("cpu").compress(sets.to("cpu"), at=truth.cpu())
    found = model.compress(sets, at=truth)
    assert found.score.is_cuda
    assert torch.equal(found.fiducial, truth)
    assert in_noise(found, on_cpu).abs().max().item() < 1e-4
    gap = torch.linalg.solve(on_cpu.fisher, found.fisher.cpu()) - torch.eye(2)
    assert gap.abs().max().item() < 1e-4


@pytest.mark.parametrize("size", [100, SIZE])
def test_local_information_in_bfloat16_is_close(model: Fishnet, sets: Sets, truth: Tensor, size: int) -> None:
    """Rounded by 2^-9, the weights are off alike for all rows: the error may grow as n and the noise as its root."""
    thinned = sets.thinned(size)
    exact, rounded = (model.compress(thinned, at=truth, precision=p) for p in ("input", "bfloat16"))
    error = in_noise(rounded, exact).square().mean().sqrt().item()
    assert 1e-3 < error < 2**-9 * math.sqrt(size), "a fiftieth in sets of 100; less than 1e-3 would not be bfloat16"


@pytest.mark.parametrize("simulator", [SIMULATOR, fresh_times], ids=["own times", "fresh times"])
def test_centred_estimates_are_honest_in_either_precision(
    model: Fishnet, sets: Sets, truth: Tensor, simulator: Any
) -> None:
    """What bfloat16 does to the score it does to simulations too; their own noise is a fifth of a width."""
    settings: dict[str, Any] = {"simulator": simulator, "loss": LOSS, "chunk": 2**20}
    rounded = model.estimate(sets, precision="bfloat16", generator=generator(5, "cuda"), **settings)
    exact = model.estimate(sets, generator=generator(5, "cuda"), **settings)
    for found in (rounded, exact):
        assert on_gpu(found)
        assert bool(found.settled.all())
        assert bool(((found.added_noise > 0) & (found.added_noise <= LOSS)).all())
        assert found.num_simulated.min().item() >= SIZE / LOSS
        assert 0.6 < mean_squared_pull(found, truth) < 1.6
    assert distance(rounded, exact) < 0.3
    ratio = rounded.standard_deviation / exact.standard_deviation
    assert ratio.mean().item() == pytest.approx(1, abs=0.05), "each to a tenth or so, as slopes are measured"


class Redrawn:
    """The simulator if it could do nothing but redraw, and what it was asked to redraw."""

    def __init__(self) -> None:
        self.templates: list[Sets] = []

    def __call__(self, theta: Tensor, size: Tensor, generator: torch.Generator) -> Sets:
        raise AssertionError("data were drawn at times of their own")

    def like(self, sets: Sets, theta: Tensor, generator: torch.Generator) -> Sets:
        self.templates.append(sets)
        return SIMULATOR.like(sets, theta, generator)


def test_data_are_redrawn_at_the_observed_times(model: Fishnet, sets: Sets) -> None:
    simulator, few = Redrawn(), sets[:3]
    found = model.estimate(few, simulator=simulator, generator=generator(5, "cuda"), **FAST)
    assert on_gpu(found)
    times = few.values[:, 0]
    assert simulator.templates
    assert all(template.values.is_cuda for template in simulator.templates)
    assert all(bool(torch.isin(template.values[:, 0], times).all()) for template in simulator.templates)
    redrawn = SIMULATOR.like(few, found.mean.float(), generator(6, "cuda"))
    torch.testing.assert_close(redrawn.values[:, 0], times)
    assert not torch.equal(redrawn.values[:, 1], few.values[:, 1])


def test_a_stored_centring_needs_no_simulator(
    stored_model: Fishnet, centred: Estimate, sets: Sets, truth: Tensor
) -> None:
    assert stored_model.centring is not None
    assert all(tensor.is_cuda for tensor in stored_model.centring.tensors().values())
    assert stored_model.centring.columns.tolist() == [0], "that of the times, whose law is remembered"
    found = stored_model.estimate(sets)
    assert on_gpu(found)
    assert not bool(found.num_simulated.any())
    assert bool((found.added_noise > 0).all())
    assert 0.6 < mean_squared_pull(found, truth) < 1.6
    assert distance(found, centred) < 0.5


@pytest.mark.parametrize("simulator", [SIMULATOR, None], ids=["simulated", "stored"])
def test_a_pilot_leaves_one_pass_over_the_data(
    stored_model: Fishnet, centred: Estimate, sets: Sets, truth: Tensor, simulator: Any
) -> None:
    found = stored_model.estimate(sets, simulator=simulator, pilot=400)
    assert on_gpu(found)
    assert found.num_passes == 1 < centred.num_passes
    assert 0.6 < mean_squared_pull(found, truth) < 1.6
    assert distance(found, centred) < 0.5


def test_a_model_saved_on_a_gpu_is_the_same_on_a_cpu(
    stored_model: Fishnet, sets: Sets, truth: Tensor, tmp_path: Path
) -> None:
    stored_model.save(tmp_path / "model.fishnet")
    loaded, few, points = fn.load(tmp_path / "model.fishnet"), sets[:8], truth[:8]
    copied, on_cpu = copy.deepcopy(stored_model).to("cpu"), few.to("cpu")
    assert same_weights(loaded, copied)
    expected, found = (one.compress(on_cpu, at=points.cpu()) for one in (copied, loaded))
    assert torch.equal(found.score, expected.score)
    assert torch.equal(found.fisher, expected.fisher)
    assert in_noise(stored_model.compress(few, at=points), found).abs().max().item() < 1e-4
    assert distance(loaded.estimate(on_cpu), stored_model.estimate(few)) < 0.05
