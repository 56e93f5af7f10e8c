"""Interruptions: a run that is told to end resumes from its checkpoint as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.sets.helpers import (
    QUICK,
    SIMULATOR,
    Disc,
    Recorded,
    at_step,
    mean_loss,
    same_history,
    same_weights,
    spoiled,
    stored,
    tiny,
)

from fishnets import History, Sets, load
from fishnets.errors import CheckpointError, FileFormatError, NonFiniteLossError
from fishnets.networks import Gated
from fishnets.priors import Box
from fishnets.sets import training
from fishnets.sets.sources import StoredSource

LONG = QUICK | {"steps": 60, "validate_every": 7}


def interrupted(number: int, step: int = 25) -> Any:
    return at_step(step, lambda sets: signal.raise_signal(number))


SIGNALS = pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["int", "term"]
)


@SIGNALS
@pytest.mark.parametrize("members", [1, 2])
def test_resuming_an_interrupted_run_gives_the_uninterrupted_one(number, error, members: int, tmp_path: Path) -> None:
    whole, first, second = (tiny(members=members) for _ in range(3))
    expected = whole.fit(SIMULATOR, **LONG)
    with pytest.raises(error) as caught:
        first.fit(interrupted(number), **LONG, checkpoint=tmp_path / "run")
    if number == signal.SIGTERM:
        assert caught.value.code == 143
    history = second.fit(SIMULATOR, **LONG, checkpoint=str(tmp_path / "run"))
    assert same_history(history, expected)
    assert same_weights(second, whole)


@SIGNALS
def test_resuming_on_stored_sets(number, error, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(source: StoredSource, step: int, generator: torch.Generator, original=StoredSource.batch) -> Any:
        if step == 25:
            signal.raise_signal(number)
        return original(source, step, generator)

    sets, theta = stored()
    settings = {"steps": 60, "validate_every": 7, "patience": None, "batch_data": 150}
    whole, first, second = tiny(), tiny(), tiny()
    expected = whole.fit(sets, theta, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(StoredSource, "batch", batch)
        with pytest.raises(error):
            first.fit(sets, theta, **settings, checkpoint=tmp_path / "run")
    assert same_history(second.fit(sets, theta, **settings, checkpoint=tmp_path / "run"), expected)
    assert same_weights(second, whole)


@pytest.mark.parametrize("prior", [SIMULATOR.prior, Box([-4.0, -4.0], [4.0, 4.0])], ids=["normal", "box"])
def test_resuming_a_model_with_local_networks(prior: Any, tmp_path: Path) -> None:
    whole, first, second = (tiny(prior, refine=True, members=2) for _ in range(3))
    expected = whole.fit(SIMULATOR, **LONG)
    with pytest.raises(KeyboardInterrupt):
        first.fit(interrupted(signal.SIGINT), **LONG, checkpoint=tmp_path / "run")
    assert same_history(second.fit(SIMULATOR, **LONG, checkpoint=tmp_path / "run"), expected)
    assert same_weights(second, whole)
    with pytest.raises(CheckpointError):
        tiny(prior, members=2).fit(SIMULATOR, **LONG, checkpoint=tmp_path / "run")


def test_resuming_a_model_with_local_networks_on_stored_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(source: StoredSource, step: int, generator: torch.Generator, original=StoredSource.batch) -> Any:
        if step == 25:
            signal.raise_signal(signal.SIGINT)
        return original(source, step, generator)

    sets, theta = stored()
    settings = {"steps": 60, "validate_every": 7, "batch_data": 150}
    whole, first, second = (tiny(refine=True) for _ in range(3))
    expected = whole.fit(sets, theta, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(StoredSource, "batch", batch)
        with pytest.raises(KeyboardInterrupt):
            first.fit(sets, theta, **settings, checkpoint=tmp_path / "run")
    assert same_history(second.fit(sets, theta, **settings, checkpoint=tmp_path / "run"), expected)
    assert same_weights(second, whole)


@pytest.mark.parametrize("step", [0, 6, 7, 58, 59])
def test_an_interruption_may_come_at_any_step(step: int, tmp_path: Path) -> None:
    whole, first, second = tiny(), tiny(), tiny()
    expected = whole.fit(SIMULATOR, **LONG)
    with pytest.raises(KeyboardInterrupt):
        first.fit(interrupted(signal.SIGINT, step), **LONG, checkpoint=tmp_path / "run")
    assert same_history(second.fit(SIMULATOR, **LONG, checkpoint=tmp_path / "run"), expected)
    assert same_weights(second, whole)


def test_a_run_may_be_interrupted_many_times(tmp_path: Path) -> None:
    whole, last = tiny(factor="rank-1"), tiny(factor="rank-1")
    expected = whole.fit(SIMULATOR, **LONG)
    for step in (10, 3, 20):  # counted from where the part before stopped
        with pytest.raises(KeyboardInterrupt):
            tiny(factor="rank-1").fit(interrupted(signal.SIGINT, step), **LONG, checkpoint=tmp_path / "run")
    assert same_history(last.fit(SIMULATOR, **LONG, checkpoint=tmp_path / "run"), expected)
    assert same_weights(last, whole)


def test_the_interrupted_model_itself_can_go_on(tmp_path: Path) -> None:
    whole, model = tiny(), tiny()
    expected = whole.fit(SIMULATOR, **LONG)
    with pytest.raises(KeyboardInterrupt):
        model.fit(interrupted(signal.SIGINT), **LONG, checkpoint=tmp_path / "run")
    assert same_history(model.fit(SIMULATOR, **LONG, checkpoint=tmp_path / "run"), expected)
    assert same_weights(model, whole)


def test_a_prior_of_the_users_own_class_does_not_hinder_resuming(tmp_path: Path) -> None:
    whole, second = tiny(Disc()), tiny(Disc())
    expected = whole.fit(SIMULATOR, **LONG)
    with pytest.raises(KeyboardInterrupt):
        tiny(Disc()).fit(interrupted(signal.SIGINT), **LONG, checkpoint=tmp_path / "run")
    assert same_history(second.fit(SIMULATOR, **LONG, checkpoint=tmp_path / "run"), expected)
    assert same_weights(second, whole)


def test_an_interrupted_model_holds_its_best_weights(capfd: pytest.CaptureFixture[str]) -> None:
    model, simulator = tiny(), Recorded(interrupted(signal.SIGINT))
    expected = tiny().fit(SIMULATOR, **LONG)
    with pytest.raises(KeyboardInterrupt):
        model.fit(simulator, **LONG)
    best = min(loss for step, (loss,) in zip(expected.steps, expected.validation_loss, strict=True) if step <= 26)
    assert mean_loss(model, simulator.sets, simulator.theta) == pytest.approx(best, abs=1e-4)
    message = "Training interrupted after step 26; the best weights are in the model; give `checkpoint=` to be able"
    assert message in capfd.readouterr().err


def test_an_interruption_says_how_to_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tiny().fit(interrupted(signal.SIGTERM), **LONG, checkpoint=tmp_path / "run")
    assert f"run the same command to resume from {tmp_path / 'run'}" in capfd.readouterr().err


def test_a_second_signal_is_obeyed_at_once(tmp_path: Path) -> None:
    def twice(sets: Sets) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the step went on")

    with pytest.raises(KeyboardInterrupt):
        tiny().fit(at_step(25, twice), **LONG, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists(), "no exact resume from the middle of a step"


def test_a_simulator_that_raises_leaves_no_inexact_checkpoint(tmp_path: Path) -> None:
    def fall(sets: Sets) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        tiny().fit(at_step(25, fall), **LONG, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@SIGNALS
def test_signal_handlers_are_restored(number, error) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    tiny().fit(SIMULATOR, **QUICK)
    assert {n: signal.getsignal(n) for n in before} == before
    with pytest.raises(error):
        tiny().fit(interrupted(number), **LONG)
    assert {n: signal.getsignal(n) for n in before} == before
    with pytest.raises(NonFiniteLossError):
        tiny().fit(at_step(3, spoiled), **QUICK)
    assert {n: signal.getsignal(n) for n in before} == before


def test_training_works_outside_the_main_thread() -> None:
    histories: list[History] = []
    thread = threading.Thread(target=lambda: histories.append(tiny().fit(SIMULATOR, **QUICK)))
    thread.start()
    thread.join()
    assert same_history(histories[0], tiny().fit(SIMULATOR, **QUICK))


def test_a_finished_checkpoint_returns_at_once(tmp_path: Path) -> None:
    first, second, simulator = tiny(members=2), tiny(members=2), Recorded()
    expected = first.fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "run")
    history = second.fit(simulator, **QUICK, checkpoint=tmp_path / "run")
    assert simulator.calls == 1, "only the validation sets are drawn"
    assert history == expected
    assert same_weights(first, second)


def test_a_checkpoint_stopped_by_patience_returns_at_once(tmp_path: Path) -> None:
    settings = QUICK | {"learning_rate": 0.0, "patience": 2}
    expected = tiny().fit(SIMULATOR, **settings, checkpoint=tmp_path / "run")
    assert tiny().fit(SIMULATOR, **settings, checkpoint=tmp_path / "run") == expected


@pytest.mark.parametrize(
    "other",
    [
        lambda path: tiny(seed=1).fit(SIMULATOR, **QUICK, checkpoint=path),
        lambda path: tiny(members=2).fit(SIMULATOR, **QUICK, checkpoint=path),
        lambda path: tiny(network=Gated(8, 2)).fit(SIMULATOR, **QUICK, checkpoint=path),
        lambda path: tiny(Box([-1.0, -1.0], [1.0, 1.0])).fit(SIMULATOR, **QUICK, checkpoint=path),
        lambda path: tiny().fit(SIMULATOR, **(QUICK | {"steps": 21}), checkpoint=path),
        lambda path: tiny().fit(SIMULATOR, **(QUICK | {"size": 9}), checkpoint=path),
        lambda path: tiny().fit(SIMULATOR, **QUICK, learning_rate=0.123, checkpoint=path),
        lambda path: tiny().fit(SIMULATOR, **QUICK, precision="bfloat16", checkpoint=path),
        lambda path: tiny().fit(*stored(), steps=20, checkpoint=path),
    ],
    ids=["seed", "members", "network", "prior", "steps", "size", "rate", "precision", "data"],
)
def test_a_checkpoint_of_another_run_is_refused(other: Callable[[Path], Any], tmp_path: Path) -> None:
    tiny().fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "run")
    before = (tmp_path / "run").read_bytes()
    with pytest.raises(CheckpointError, match=r"(?s)The checkpoint .* belongs to another run.*Delete it or give"):
        other(tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == before


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    sets, theta = stored()
    tiny().fit(sets, theta, steps=5, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"belongs to another run"):
        tiny().fit(sets, theta + 0.01, steps=5, checkpoint=tmp_path / "run")


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    tiny().fit(SIMULATOR, **QUICK, checkpoint=path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match=r"cannot be read as a fishnets file.*truncated or of another kind"):
        tiny().fit(SIMULATOR, **QUICK, checkpoint=path)


def test_a_model_is_no_checkpoint_and_a_checkpoint_no_model(tmp_path: Path) -> None:
    model = tiny()
    model.fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "run")
    with pytest.raises(FileFormatError, match=r"run is of kind 'checkpoint' but 'model' was expected"):
        load(tmp_path / "run")
    model.save(tmp_path / "model")
    with pytest.raises(FileFormatError, match=r"model is of kind 'model' but 'checkpoint' was expected"):
        tiny().fit(SIMULATOR, **QUICK, checkpoint=tmp_path / "model")


SCRIPT = """
import sys, time
import torch
from fishnets import Fishnet
from fishnets.networks import Gated
from fishnets.simulators import LinearRegression

torch.set_num_threads(int(sys.argv[2]))
simulator = LinearRegression("log")
calls = 0

def slow(theta, size, generator):
    global calls
    calls += 1
    if calls == 10:
        print("ready", flush=True)
    if calls >= 10:
        time.sleep(0.2)
    return simulator(theta, size, generator)

model = Fishnet(3, simulator.prior, Gated(8, 1))
model.fit(slow, **SETTINGS, checkpoint=sys.argv[1])
"""


def test_a_process_that_is_told_to_end_leaves_an_exact_checkpoint(tmp_path: Path) -> None:
    script, path = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.replace("SETTINGS", repr(LONG)))
    command = [sys.executable, str(script), str(path), str(torch.get_num_threads())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGTERM)
        _, messages = process.communicate(timeout=60)
    assert process.returncode == 143, messages
    assert "run the same command to resume from" in messages
    whole, resumed = tiny(), tiny()
    expected = whole.fit(SIMULATOR, **LONG)
    simulator = Recorded()
    assert same_history(resumed.fit(simulator, **LONG, checkpoint=path), expected)
    assert simulator.calls < 55, "it went on from the checkpoint"
    assert same_weights(resumed, whole)


def test_checkpoints_are_written_while_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**9, 50))  # fifty seconds from look to look
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    seen: list[bool] = []
    whole, resumed = tiny(), tiny()

    def look(sets: Sets) -> None:
        seen.append((tmp_path / "run").exists())
        (tmp_path / "copy").write_bytes((tmp_path / "run").read_bytes())

    expected = whole.fit(at_step(33, look), **LONG, checkpoint=tmp_path / "run")
    assert seen == [True]
    assert same_history(resumed.fit(SIMULATOR, **LONG, checkpoint=tmp_path / "copy"), expected)
    assert same_weights(resumed, whole)
