"""Candidates: where they keep checkpoints, what they are trained on, and how fast."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fishnets.experiments.candidates import Candidate, checkpoint_path, stored_sets, throughput, train, untrained
from fishnets.networks import MLP
from fishnets.priors import Normal
from fishnets.sets import History
from fishnets.simulators import LinearRegression

LINE = LinearRegression()
FRESH = Candidate(
    label="tiny",
    body=MLP(8, 2, "elu"),
    features="paper",
    members=2,
    shared=False,
    factor="full",
    standardise=True,
    size=(10, 20),
    steps=30,
    batch_data=200,
    learning_rate=5e-3,
)
STORED = replace(FRESH, stored_sets=30, size=(20, 20), learning_rate=((20, 5e-3), (10, 1e-3)))


def test_the_folder_of_a_checkpoint_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "checkpoints"
    assert checkpoint_path(folder, "smoke-clean") == folder / "smoke-clean.checkpoint"
    assert checkpoint_path(folder, "again") == folder / "again.checkpoint"
    assert folder.is_dir()


def test_without_a_folder_there_is_no_checkpoint() -> None:
    assert checkpoint_path(None, "smoke-clean") is None


def test_a_candidate_is_plain_json() -> None:
    found = json.loads(json.dumps(STORED.to_dict()))
    assert found["body"] == {"kind": "MLP", "width": 8, "depth": 2, "activation": "elu"}
    assert found["learning_rate"] == [[20, 5e-3], [10, 1e-3]]
    assert set(found) == set(Candidate.__dataclass_fields__)


def test_a_model_has_the_simulators_prior_unless_another_is_given() -> None:
    other = Normal([1.0, 2.0], [3.0, 4.0])
    assert untrained(FRESH, LINE, 0, "cpu").prior.mean.tolist() == [0.0, 0.0]
    assert untrained(FRESH, LINE, 0, "cpu", other).prior is other
    moved = untrained(replace(FRESH, fiducial=(0.5, -0.5)), LINE, 0, "cpu")
    assert moved.fiducial.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("candidate", [FRESH, STORED], ids=["fresh", "stored"])
def test_training_on_fresh_and_on_stored_sets(candidate: Candidate, tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, "tiny")
    model, history = train(candidate, LINE, 0, "cpu", path, progress=False)
    assert model.fitted
    assert history.num_steps == candidate.steps
    assert history.stopped == "finished"
    assert path is not None
    assert path.stat().st_size > 1000
    first, last = history.validation_loss[0], history.validation_loss[-1]
    assert all(after < before for before, after in zip(first, last, strict=True))


def test_stored_sets_are_all_trained_on_and_the_last_weights_kept() -> None:
    """As in the published code: no validation sets, no choice of the best weights."""
    _, history = train(STORED, LINE, 0, "cpu", progress=False)
    assert history.best_step == [STORED.steps] * STORED.members
    per_epoch = STORED.stored_sets * STORED.size[1]  # three steps of ten sets
    assert history.num_data == STORED.steps // 3 * per_epoch


def test_stored_sets_depend_on_the_seed_alone() -> None:
    (one, theta), (two, same), (_, other) = (
        stored_sets(LINE, STORED.stored_sets, STORED.size[1], seed, "cpu") for seed in (0, 0, 1)
    )
    assert len(one) == len(theta) == STORED.stored_sets
    assert one.sizes.tolist() == [20] * 30
    assert torch.equal(one.values, two.values)
    assert torch.equal(theta, same)
    assert not torch.equal(theta, other)


def test_training_is_the_same_with_the_same_seed() -> None:
    sets, _ = stored_sets(LINE, STORED.stored_sets, STORED.size[1], 5, "cpu")
    one, two, other = (train(FRESH, LINE, seed, "cpu", progress=False)[0].estimate(sets).mean for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_throughput_is_the_median_rate_of_all_members_together() -> None:
    # the first interval, which compiles, takes ten times as long
    history = History(steps=[0, 1, 2, 3], data_seen=[0, 100, 200, 300], elapsed=[0.0, 10.0, 11.0, 12.0])
    found = throughput(history, members=4)
    assert found.value == 400
    assert found.error == 0.0


def test_throughput_has_the_error_of_a_median() -> None:
    seconds = torch.linspace(0.5, 1.5, 201, dtype=torch.float64)
    elapsed = torch.cat([torch.zeros(1, dtype=torch.float64), seconds.cumsum(0)])
    history = History(data_seen=list(range(0, 202_000, 1000)), elapsed=elapsed.tolist())
    found = throughput(history, members=1)
    assert found.value == pytest.approx(1000, rel=1e-6)
    assert 0 < found.error < 100
