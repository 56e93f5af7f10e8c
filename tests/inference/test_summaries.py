"""Summaries: the vector, merging, the model they belong to, files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fishnets as fn
from fishnets.algebra.packing import triangle_from_packed
from fishnets.errors import (
    ConfigError,
    FileFormatError,
    IncompatibleInformationError,
    NonFiniteError,
    ShapeError,
)
from fishnets.inference import Summaries, load_summaries, save_summaries, summarize
from fishnets.inference.summaries import model_digest
from fishnets.priors import Box, Normal
from fishnets.sets.container import read_container, write_container

PRIOR = Normal([0.5, -1.0], [[2.0, 0.3], [0.3, 1.0]])
SIMULATOR = fn.simulators.LinearRegression()


def tiny(seed: int = 0, **changes: object) -> fn.Fishnet:
    return fn.Fishnet(**({"num_features": 3, "prior": PRIOR, "network": fn.networks.MLP(4, 1), "seed": seed} | changes))


def some_sets(generator: torch.Generator, sizes: tuple[int, ...] = (4, 0, 9)) -> fn.Sets:
    return SIMULATOR(torch.zeros(len(sizes), 2, dtype=torch.float64), torch.tensor(sizes), generator)


def test_vector_holds_estimate_log_cholesky_and_size(generator: torch.Generator) -> None:
    info = SIMULATOR.information(some_sets(generator))
    summaries = Summaries(info, PRIOR, "exact")
    vector, posterior = summaries.vector, info.posterior(PRIOR)
    assert vector.shape == (3, 6)
    assert vector.dtype == torch.float64
    torch.testing.assert_close(vector[:, :2], posterior.mean)
    factor = triangle_from_packed(vector[:, 2:5])
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    factor = factor + torch.diag_embed(diagonal.exp() - diagonal)
    torch.testing.assert_close(factor @ factor.mT, posterior.precision)
    torch.testing.assert_close(vector[:, 5].exp(), torch.tensor([5.0, 1.0, 10.0], dtype=torch.float64))


def test_an_empty_set_has_a_vector_too() -> None:
    summaries = Summaries(fn.Information.zero(2, (1,)), PRIOR, "exact")
    torch.testing.assert_close(summaries.vector[0, :2], PRIOR.mean)
    assert torch.isfinite(summaries.vector).all()


def test_summarize_compresses_in_chunks(generator: torch.Generator) -> None:
    model, sets = tiny(), some_sets(generator)
    whole, pieces = summarize(model, sets), summarize(model, sets, chunk=2)
    torch.testing.assert_close(whole.vector, pieces.vector)
    assert whole.sizes.tolist() == [4, 0, 9]
    assert whole.model == pieces.model == model_digest(model)


def test_merging_summaries_is_summarising_the_union(generator: torch.Generator) -> None:
    model = tiny()
    left, right = some_sets(generator), some_sets(generator, (1, 5, 0))
    pairs = [(left.values[i:j], right.values[k:m]) for i, j, k, m in [(0, 4, 0, 1), (4, 4, 1, 6), (4, 13, 6, 6)]]
    union = fn.Sets.from_list([torch.cat(pair) for pair in pairs])
    merged = sum([summarize(model, left), summarize(model, right)])
    torch.testing.assert_close(merged.vector, summarize(model, union).vector)


def test_summaries_are_a_sequence(generator: torch.Generator) -> None:
    summaries = Summaries(SIMULATOR.information(some_sets(generator)), PRIOR, "exact")
    assert len(summaries) == 3
    assert torch.equal(summaries[1:].vector, summaries.vector[1:])
    assert torch.equal(summaries[-1].vector, summaries.vector[-1:])
    assert torch.equal(summaries[torch.tensor([2, 0])].vector, summaries.vector[[2, 0]])
    assert repr(summaries) == "Summaries(sets=3, num_params=2, data=13, model='exact')"


def test_digest_tells_models_apart(tmp_path: Path) -> None:
    model = tiny()
    model.save(tmp_path / "m.fishnet")
    assert model_digest(fn.load(tmp_path / "m.fishnet")) == model_digest(model)
    others = [tiny(seed=1), tiny(prior=Box([-1.0, -1.0], [1.0, 1.0])), tiny(standardise=False)]
    shifted = tiny()
    shifted.feature_shift += 1e-12
    assert len({model_digest(m) for m in [model, shifted, *others]}) == 5


def test_summaries_of_two_models_do_not_merge(generator: torch.Generator) -> None:
    info = SIMULATOR.information(some_sets(generator))
    a, b = Summaries(info, PRIOR, "a" * 64), Summaries(info, PRIOR, "b" * 64)
    with pytest.raises(IncompatibleInformationError, match=r"two models, aaaaaaaaaaaa and bbbbbbbbbbbb, so"):
        a + b
    with pytest.raises(IncompatibleInformationError, match="priors of different moments"):
        a + Summaries(info, Normal([0.0, 0.0], [1.0, 1.0]), "a" * 64)
    with pytest.raises(IncompatibleInformationError, match="different fiducials"):
        a + Summaries(info.at(torch.ones(2)), PRIOR, "a" * 64)
    with pytest.raises(TypeError):
        a + 1


def test_what_is_no_batch_or_not_finite_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"batch shape \(\) but one state per set"):
        Summaries(fn.Information.zero(2), PRIOR, "exact")
    zero = fn.Information.zero(2, (3,))
    score = zero.score.clone()
    score[1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"1 of 3 sets \(set 1\) is NaN or infinite"):
        Summaries(fn.Information(score, zero.fisher, zero.fiducial, zero.count), PRIOR, "exact")


def test_float32_information_is_kept_in_float64() -> None:
    info = fn.Information(torch.ones(1, 2), torch.eye(2).unsqueeze(0), torch.zeros(2), torch.tensor([3]))
    assert Summaries(info, PRIOR, "mine").vector.dtype == torch.float64


@pytest.mark.parametrize("prior", [PRIOR, Box([-2.0, -2.0], [2.0, 3.0])], ids=["normal", "box"])
@pytest.mark.parametrize("with_theta", [True, False])
def test_file_gives_back_what_was_saved(
    prior: fn.priors.Prior, with_theta: bool, tmp_path: Path, generator: torch.Generator
) -> None:
    summaries = Summaries(SIMULATOR.information(some_sets(generator)), prior, "exact")
    theta = torch.rand(3, 2, dtype=torch.float64, generator=generator) if with_theta else None
    save_summaries(tmp_path / "s.fishnet", summaries, theta)
    loaded, read = load_summaries(tmp_path / "s.fishnet")
    assert torch.equal(loaded.vector, summaries.vector)
    assert loaded.model == "exact"
    assert type(loaded.prior) is type(prior)
    assert (read is None) if theta is None else torch.equal(read, theta)


def test_file_refusals(tmp_path: Path, generator: torch.Generator) -> None:
    path = tmp_path / "s.fishnet"
    summaries = Summaries(SIMULATOR.information(some_sets(generator)), PRIOR, "exact")
    with pytest.raises(ShapeError, match=r"`theta` has shape \(2, 2\) but one row per set, \(3, 2\), was expected"):
        save_summaries(path, summaries, torch.zeros(2, 2))
    with pytest.raises(NonFiniteError, match="`theta` is NaN or infinite in 1 rows: 1"):
        save_summaries(path, summaries, [[0.0, 0.0], [float("nan"), 0.0], [0.0, 0.0]])
    tiny().save(path)
    with pytest.raises(FileFormatError, match="is of kind 'model' but 'summaries' was expected"):
        load_summaries(path)
    save_summaries(path, summaries)
    header, tensors = read_container(path, "summaries")
    del tensors["score"], header["kind"]
    write_container(path, "summaries", header, tensors)
    with pytest.raises(FileFormatError, match="does not hold summaries this release can read: 'score'"):
        load_summaries(path)


def test_iterating_ends_with_the_sets(generator: torch.Generator) -> None:
    summaries = Summaries(SIMULATOR.information(some_sets(generator)), PRIOR, "exact")
    assert [len(one) for one in summaries] == [1] * len(summaries)
    with pytest.raises(IndexError, match="There is no set 100: there are 3"):
        summaries[100]


def test_a_regressor_has_no_summaries() -> None:
    from fishnets import Regressor

    with pytest.raises(ConfigError, match=r"`model` is a Regressor but a `fishnets.Fishnet` was expected"):
        summarize(Regressor(3, PRIOR), some_sets(torch.Generator()))  # type: ignore[arg-type]
