"""Updates replayed as CUDA graphs equal plain ones; batches drawn ahead keep a run exactly resumable."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

import fishnets as fn
from fishnets.sets import training

pytestmark = pytest.mark.gpu

SIMULATOR = fn.simulators.LinearRegression(features="log")


def model(body: object = None) -> fn.Fishnet:
    return fn.Fishnet(3, SIMULATOR.prior, body or fn.networks.Gated(8, 1), members=2, factor="rank-2").to("cuda")


def weights(one: fn.Fishnet) -> list[torch.Tensor]:
    return [p.detach().cpu() for p in one.networks.parameters()]


def fit(one: fn.Fishnet, simulator: object = SIMULATOR, **options: object) -> fn.History:
    settings = {"size": (20, 200), "steps": 120, "batch_data": 4000, "compile": "off", "progress": False}
    return one.fit(simulator, **(settings | options))


def test_replayed_updates_equal_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = model()
    history = fit(replayed)
    monkeypatch.setattr(training, "Replayed", lambda update: update)
    plain = model()
    expected = fit(plain)
    assert history.num_data == expected.num_data
    for a, b in zip(weights(replayed), weights(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert history.validation_loss[-1] == pytest.approx(expected.validation_loss[-1], abs=1e-3)


def test_a_run_on_a_gpu_resumes_exactly(tmp_path: Path) -> None:
    whole = model()
    expected = fit(whole)

    class Stopping:
        calls = 0

        def __call__(self, theta: torch.Tensor, size: torch.Tensor, generator: torch.Generator) -> fn.Sets:
            self.calls += 1
            if self.calls == 60:
                signal.raise_signal(signal.SIGINT)
            return SIMULATOR(theta, size, generator)

    with pytest.raises(KeyboardInterrupt):
        fit(model(), Stopping(), checkpoint=tmp_path / "run.checkpoint")
    resumed = model()
    history = fit(resumed, checkpoint=tmp_path / "run.checkpoint")
    assert history.validation_loss == expected.validation_loss
    for a, b in zip(weights(resumed), weights(whole), strict=True):
        assert torch.equal(a, b)


def test_stored_sets_train_in_bfloat16_with_fused_networks() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    theta = SIMULATOR.prior.sample(300, generator)
    sets = SIMULATOR(theta.float(), torch.full((300,), 50, device="cuda"), generator)
    one = model(fn.networks.MLP(64, 3, "elu"))
    assert one.networks.fuses(sets.values[:4])
    history = one.fit(sets, theta, steps=200, batch_data=4000, precision="bfloat16", progress=False)
    assert min(history.best_loss) < history.validation_loss[0][0] - 0.5


@pytest.mark.filterwarnings("default")  # compiling warns of deprecations inside torch
def test_compiled_networks_are_captured() -> None:
    one = model()
    history = fit(one, compile="on")
    assert min(history.best_loss) < history.validation_loss[0][0]


def test_compress_follows_the_device_of_its_input() -> None:
    one = model()
    sets = fn.Sets.from_list([torch.ones(5, 3), torch.zeros(0, 3)])
    on_gpu, on_cpu = one.compress(sets.to("cuda")), one.compress(sets)
    assert on_gpu.score.device.type == "cuda"
    torch.testing.assert_close(on_gpu.score.cpu(), on_cpu.score, rtol=1e-4, atol=1e-5)
