"""Models as files: equal outputs, a readable header, the prior that comes along."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.sets.helpers import FACTORS, PRIOR, QUICK, SIMULATOR, Disc, generator, same_weights, some_sets, stored, tiny

from fishnets import Fishnet, Sets, load
from fishnets.errors import ConfigError, ConvergenceWarning, DataError, FileFormatError, SupportError
from fishnets.networks import MLP, Gated
from fishnets.priors import Box, Moments, Normal
from fishnets.sets import pools
from fishnets.sets.container import read_container, write_container
from fishnets.sets.files import describe
from fishnets.simulators import LinearRegression, NormalSample

PRIORS = [PRIOR, Normal([1.0, -2.0], [[4.0, 0.5], [0.5, 0.25]]), Box([-3.0, 0.0], [3.0, 5.0])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.fishnet"


def same_outputs(a: Fishnet, b: Fishnet, sets: Sets | None = None) -> bool:
    sets = some_sets() if sets is None else sets
    left, right = a.compress(sets), b.compress(sets)
    return torch.equal(left.score, right.score) and torch.equal(left.fisher, right.fisher)


@pytest.mark.parametrize("prior", PRIORS, ids=["normal", "correlated", "box"])
@pytest.mark.parametrize("network", [Gated(8, 1), MLP(8, 2, "swish")], ids=["gated", "mlp"])
@pytest.mark.parametrize("shared", [True, False])
def test_loaded_model_is_bit_equal(prior: Any, network: Any, shared: bool, path: Path) -> None:
    model = tiny(prior, network=network, shared=shared, members=2, seed=3)
    model.fit(SIMULATOR, **QUICK)
    model.save(path)
    loaded = load(path)
    assert same_weights(loaded, model)
    assert same_outputs(loaded, model)
    assert same_outputs(loaded, model, some_sets(torch.float32))
    assert torch.equal(loaded.estimate(some_sets()).mean, model.estimate(some_sets()).mean)
    assert loaded.recipe.to_dict() == model.recipe.to_dict()
    assert loaded.fitted


@pytest.mark.parametrize("factor", FACTORS)
def test_untrained_model_is_saved_as_such(factor: str, path: Path) -> None:
    model = tiny(factor=factor, fiducial=[0.25, -1.0], standardise=False)
    model.save(str(path))
    loaded = load(str(path))
    assert same_outputs(loaded, model)
    assert not loaded.fitted
    model.fit(SIMULATOR, **QUICK)
    loaded.fit(SIMULATOR, **QUICK)
    assert same_weights(loaded, model)


def test_second_fit_after_loading_does_not_rescale(path: Path) -> None:
    model = tiny()
    history = model.fit(SIMULATOR, **QUICK)
    model.save(path)
    loaded = load(path)
    again = loaded.fit(SIMULATOR, **(QUICK | {"learning_rate": 0.0}))
    assert again.validation_loss[0][0] < history.validation_loss[0][0] - 0.1
    assert same_outputs(loaded, model)


def test_saving_and_loading_touch_no_random_state(path: Path) -> None:
    before = torch.get_rng_state()
    tiny().save(path)
    load(path)
    assert torch.equal(torch.get_rng_state(), before)


AT = torch.tensor([[0.1, -1.0], [0.5, 0.5], [-2.0, 0.3], [0.0, 0.0], [1.0, 1.5]], dtype=torch.float64)


def same_refined(a: Fishnet, b: Fishnet, **settings: Any) -> bool:
    """Whether local information and refined estimates are equal to the last bit."""
    for sets in (some_sets(), some_sets(torch.float32)):
        left, right = a.compress(sets, at=AT), b.compress(sets, at=AT)
        if not (torch.equal(left.score, right.score) and torch.equal(left.fisher, right.fisher)):
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # too little trained to settle
            estimates = [model.estimate(sets, passes=3, **settings) for model in (a, b)]
        names = ("mean", "precision", "previous", "settled", "added_noise", "num_simulated")
        if not all(torch.equal(*(getattr(estimate, name) for estimate in estimates)) for name in names):
            return False
    return True


@pytest.mark.parametrize("prior", [PRIOR, Box([-3.0, -4.0], [3.0, 5.0])], ids=["normal", "box"])
@pytest.mark.parametrize("shared", [True, False])
def test_loaded_model_with_local_networks_is_bit_equal(
    prior: Any, shared: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "SMALLEST_POOL", 1000)
    monkeypatch.setattr(pools, "SLOPE_POOL", (1000, 1000))
    model = tiny(prior, shared=shared, members=2, seed=3, refine=True)
    model.fit(SIMULATOR, **QUICK)
    model.save(path)
    loaded = load(path)
    assert same_weights(loaded, model)
    assert same_outputs(loaded, model)
    assert loaded.recipe.refine
    assert loaded.centring is None
    assert same_refined(loaded, model)
    assert same_refined(loaded, model, simulator=SIMULATOR)
    assert same_refined(loaded, model, simulator=SIMULATOR, pilot=5)
    again = QUICK | {"learning_rate": 1e-3}
    model.fit(SIMULATOR, **again)
    loaded.fit(SIMULATOR, **again)
    assert same_weights(loaded, model), "a second fit goes on from the same state"


def test_loaded_model_keeps_its_stored_centring(path: Path) -> None:
    model = tiny(members=2, refine=True)
    model.fit(SIMULATOR, **QUICK)
    stored_centring = model.fit_centring(SIMULATOR, num_data=10_000, num_points=40)
    model.save(path)
    loaded = load(path)
    assert loaded.centring is not None
    for name, tensor in stored_centring.tensors().items():
        assert torch.equal(loaded.centring.tensors()[name], tensor), name
        assert loaded.centring.tensors()[name].dtype == tensor.dtype
    assert same_refined(loaded, model)
    assert same_refined(loaded, model, centre=True)
    assert same_refined(loaded, model, centre=False)
    other = LinearRegression("log", x_range=(0.0, 3.0))(torch.zeros(1, 2), torch.tensor([500]), generator())
    with pytest.raises(DataError, match=r"Column 1 of the sets follows another law"):
        loaded.estimate(other)


def test_a_centring_without_covariates_is_kept_too(path: Path) -> None:
    simulator = NormalSample()
    model = Fishnet(1, simulator.prior, Gated(8, 1), refine=True)
    model.fit(simulator, **QUICK)
    model.fit_centring(simulator, num_data=10_000, num_points=40)
    model.save(path)
    loaded = load(path)
    assert loaded.centring is not None
    assert loaded.centring.columns.tolist() == []
    assert model.centring is not None
    points = simulator.prior.sample(50, generator())
    found, expected = loaded.centring.at(points), model.centring.at(points)
    for name in ("intercept", "slope", "spread", "num_simulated"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_description_counts_the_weights_of_local_networks(path: Path) -> None:
    model = tiny(members=2, refine=True)
    model.save(path)
    description = describe(path)
    assert description["refine"] is True
    assert description["num_weights"] == model.num_weights
    model.fit(SIMULATOR, **QUICK)
    model.fit_centring(SIMULATOR, num_data=10_000, num_points=40)
    model.save(path)
    assert describe(path)["num_weights"] == model.num_weights
    assert json.loads(json.dumps(describe(path))) == describe(path)


def test_damaged_centring_is_refused(path: Path) -> None:
    model = tiny(refine=True)
    model.fit(SIMULATOR, **QUICK)
    model.fit_centring(SIMULATOR, num_data=10_000, num_points=40)
    model.save(path)
    header, tensors = read_container(path, "model")
    del tensors["centring.law"]
    write_container(path, "model", header, tensors)
    with pytest.raises(FileFormatError, match=r"does not describe a model this release can build: .*'law'"):
        load(path)


def test_a_file_from_before_local_networks_is_read(path: Path) -> None:
    model = tiny()
    model.save(path)
    header, tensors = read_container(path, "model")
    del header["recipe"]["refine"]
    write_container(path, "model", header, tensors)
    loaded = load(path)
    assert not loaded.recipe.refine
    assert same_outputs(loaded, model)


def test_prior_known_by_its_moments_still_refines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "SMALLEST_POOL", 1000)
    monkeypatch.setattr(pools, "SLOPE_POOL", (1000, 1000))
    model = tiny(Disc(), refine=True)
    model.fit(SIMULATOR, **QUICK)
    model.save(path)
    loaded = load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = loaded.estimate(some_sets(), simulator=SIMULATOR)
    assert bool(found.inside.all()), "where the prior's support is unknown, all is allowed"
    assert same_refined(load(path, prior=Disc()), model)


def test_header_is_json_and_holds_the_recipe(path: Path) -> None:
    tiny(Box([-3.0, 0.0], [3.0, 5.0]), members=2, seed=7, factor="rank-1").save(path)
    with safetensors.safe_open(path, framework="pt") as stream:
        header = json.loads(stream.metadata()["fishnets"])
    assert header["kind"] == "model"
    assert header["format_version"] == 1
    assert header["recipe"] == {
        "num_features": 3,
        "prior": {"kind": "Box", "low": [-3.0, 0.0], "high": [3.0, 5.0]},
        "network": {"kind": "Gated", "width": 8, "depth": 1},
        "members": 2,
        "seed": 7,
        "shared": False,
        "factor": "rank-1",
        "fiducial": [0.0, 2.5],
        "standardise": True,
        "refine": False,
    }


def test_description_of_a_file(path: Path) -> None:
    model = tiny(members=2)
    model.fit(SIMULATOR, **QUICK)
    model.save(path)
    description = describe(path)
    assert description["num_weights"] == model.num_weights
    assert description["member_weights"] == model.weights.tolist()
    assert description["fitted"] is True
    assert description["members"] == 2
    assert json.loads(json.dumps(description)) == description


def test_file_holds_no_pickle(path: Path) -> None:
    tiny().save(path)
    data = path.read_bytes()
    assert data[8:9] == b"{", "a safetensors header"
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(data)


def test_prior_of_the_users_own_class_is_kept_by_its_moments(path: Path) -> None:
    model = tiny(Disc())
    model.fit(SIMULATOR, **QUICK)
    model.save(path)
    loaded = load(path)
    assert isinstance(loaded.prior, Moments)
    assert same_outputs(loaded, model)
    assert torch.equal(loaded.estimate(some_sets()).mean, model.estimate(some_sets()).mean)
    message = r"The file keeps only the mean and covariance of the prior `tests.sets.helpers.Disc`, so it cannot be "
    with pytest.raises(DataError, match=message + r"sampled. Give the prior itself: `fishnets.load\(path, prior=...\)"):
        loaded.prior.sample(3)
    with pytest.raises(DataError, match=message + "evaluated"):
        loaded.fit(*stored(), steps=1)
    with pytest.raises(DataError, match=message + "sampled"):
        loaded.fit(SIMULATOR, **QUICK)


def test_prior_of_the_users_own_class_can_be_given_back(path: Path) -> None:
    model = tiny(Disc())
    model.save(path)
    prior = Disc()
    loaded = load(path, prior=prior)
    assert loaded.prior is prior
    assert same_outputs(loaded, model)
    model.fit(SIMULATOR, **QUICK)
    loaded.fit(SIMULATOR, **QUICK)
    assert same_weights(loaded, model)
    with pytest.raises(SupportError, match=r"lie outside the support of the prior"):
        loaded.fit(stored()[0], torch.full((60, 2), 9.0))


def test_moments_survive_a_second_save(path: Path) -> None:
    tiny(Disc()).save(path)
    load(path).save(path)
    assert "Disc" in repr(load(path).prior)


@pytest.mark.parametrize("other", [Normal([0.0], [1.0]), Normal([0.0, 0.0], [9.0, 9.0])])
def test_prior_with_other_moments_is_refused(path: Path, other: Normal) -> None:
    tiny(Disc()).save(path)
    with pytest.raises(ConfigError, match=r"The given prior has mean .* but the model was trained with"):
        load(path, prior=other)


def test_model_goes_to_the_device_that_is_asked(path: Path, device) -> None:
    tiny().save(path)
    assert load(path, device=device).fiducial.device.type == device.type


def test_network_of_a_foreign_class_is_not_saved(path: Path) -> None:
    class Mine(Gated):
        pass

    with pytest.raises(ValueError, match=r"`network` is a Mine, which a file cannot describe"):
        tiny(network=Mine(4, 1)).save(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, tensors: header["recipe"].pop("members"), r"missing 1 required positional argument: 'members'"),
        (lambda header, tensors: header["recipe"].update(colour="red"), r"unexpected keyword argument 'colour'"),
        (lambda header, tensors: header["recipe"]["network"].update(kind="Transformer"), r"Unknown network kind"),
        (lambda header, tensors: header["recipe"]["prior"].update(kind="Cauchy"), r"Unknown prior kind 'Cauchy'"),
        (lambda header, tensors: header.pop("fitted"), r"'fitted'"),
        (lambda header, tensors: header.pop("recipe"), r"'recipe'"),
        (lambda header, tensors: tensors.pop("weights"), r"Missing key\(s\) in state_dict: \"weights\""),
        (lambda header, tensors: tensors.update(more=torch.zeros(1)), r"Unexpected key\(s\) in state_dict: \"more\""),
        (lambda header, tensors: tensors.update(fiducial=torch.zeros(5)), r"size mismatch for fiducial"),
    ],
)
def test_file_that_describes_no_model_is_refused(change: Any, message: str, path: Path) -> None:
    tiny().save(path)
    header, tensors = read_container(path, "model")
    change(header, tensors)
    write_container(path, "model", header, tensors)
    with pytest.raises(FileFormatError, match=rf"(?s)does not describe a model this release can build: .*{message}"):
        load(path)


def test_damaged_files_are_refused(path: Path) -> None:
    tiny().save(path)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(FileFormatError, match=r"cannot be read as a fishnets file.*truncated"):
        load(path)
    path.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])
    with pytest.raises(FileFormatError, match=r"was changed after it was written"):
        load(path)
    path.write_bytes(good.replace(b'\\"seed\\": 0', b'\\"seed\\": 1'))
    with pytest.raises(FileFormatError, match=r"was changed after it was written"):
        load(path)


def test_foreign_files_are_refused(path: Path) -> None:
    torch.save(tiny().state_dict(), path)
    with pytest.raises(FileFormatError, match=r"is a pickle or a `torch.save` archive"):
        load(path)
    path.write_bytes(pickle.dumps([1, 2, 3]))
    with pytest.raises(FileFormatError, match=r"is a pickle or a `torch.save` archive"):
        load(path)
    safetensors.torch.save_file({"weights": torch.ones(1)}, path)
    with pytest.raises(FileFormatError, match=r"is a safetensors file but not one of fishnets"):
        load(path)


def test_missing_file_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*model.fishnet"):
        load(path)


def test_interrupted_save_keeps_the_old_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("no space left")

    old = tiny(seed=1)
    old.save(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="no space left"):
            tiny(seed=2).save(path)
    assert same_outputs(load(path), old)
    assert list(path.parent.iterdir()) == [path]


def test_saving_again_replaces_the_file(path: Path) -> None:
    tiny(seed=1).save(path)
    new = tiny(seed=2)
    new.save(path)
    assert same_outputs(load(path), new)
