"""The robustness study: configs, the exact floor, equal budgets, and runs of seconds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fishnets.errors import ConfigError
from fishnets.experiments import robustness as experiment
from fishnets.experiments.report import comparison_table
from fishnets.experiments.robustness_figures import draw
from fishnets.sets import Fishnet, Regressor
from fishnets.simulators import LinearRegression

PROTOCOLS = ("clean", "published")
# SPEC 2.3: the floor of the slope and of the intercept under each reading, good to about 3 %
FLOOR = {"A": (0.0259, 0.0764), "C": (0.0066, 0.0194)}
WEIGHTS = {"fishnets": 10_855, "deepset": 87_810, "softmax": 87_811, "pairs": 87_810}


@pytest.fixture(scope="module")
def results() -> dict[str, experiment.Result]:
    """A smoke run of each protocol."""
    configs = {protocol: experiment.config_for("smoke", protocol) for protocol in PROTOCOLS}
    return {protocol: experiment.run(config, None, progress=False) for protocol, config in configs.items()}


def test_the_published_protocol_is_the_papers() -> None:
    config = experiment.config_for("paper", "published")
    assert [(c.kind, c.members, c.size) for c in config.contestants] == [
        ("fishnets", 1, (500, 500)),
        ("deepset", 1, (500, 500)),
        ("softmax", 1, (500, 500)),
    ]
    assert config.stored_sets == 10_000
    assert config.batch_data == 512 * 500
    assert config.steps == 100 * 20
    assert [rate for _, rate in experiment.PUBLISHED_EPOCHS] == [5e-4, 1e-4, 5e-5, 1e-6, 5e-6]
    assert config.test_sets == 10_000


def test_the_clean_protocol_repeats_the_papers_networks_and_adds_ours() -> None:
    config = experiment.config_for("paper", "clean")
    members = {c.kind: c.members for c in config.contestants}
    ours = {"recommended": 4, "recommended-equal-data": 4}
    assert members == ours | {"fishnets": 5, "deepset": 5, "softmax": 5, "set-transformer": 2, "pairs": 2}
    assert [c.kind for c in config.contestants if c.pooled] == list(ours)
    assert [c.kind for c in config.contestants if c.budget] == ["recommended"]
    assert config.stored_sets is None
    assert len(config.rates) == 3


def test_the_laws_are_those_of_training_and_of_both_readings() -> None:
    assert experiment.LAWS["training"] == LinearRegression()
    assert experiment.SIZES == {"training": 500, "A": 850, "C": 850}
    theta, size = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([200_000])
    for law, low, mean in (("A", 3.5, 4.5), ("C", 1.0, 3.5)):
        simulator = experiment.LAWS[law]
        _, x, sigma = simulator.columns(simulator(theta, size, torch.Generator().manual_seed(0)).values)
        assert 0 <= float(x.min()) < float(x.max()) <= 3
        assert low <= float(sigma.min()) < float(sigma.max()) <= 10
        assert float(sigma.mean()) == pytest.approx(mean, rel=0.08), "the cut at 10 takes a little off"


@pytest.mark.parametrize(("preset", "protocol"), [("huge", "clean"), ("smoke", "dirty")])
def test_unknown_presets_and_protocols_are_refused(preset: str, protocol: str) -> None:
    message = f'preset "{preset}" with protocol "{protocol}": expected smoke, quick or paper, and clean or published'
    with pytest.raises(ConfigError, match=message):
        experiment.config_for(preset, protocol)


@pytest.mark.parametrize("preset", ["smoke", "quick", "paper"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_config_is_json(preset: str, protocol: str) -> None:
    found = json.loads(json.dumps(experiment.config_for(preset, protocol, seed=2).to_dict()))
    assert (found["preset"], found["protocol"], found["seed"]) == (preset, protocol, 2)
    assert found["contestants"][0]["kind"] == "fishnets"


def test_full_networks_have_the_papers_number_of_weights() -> None:
    for protocol in PROTOCOLS:
        config = experiment.config_for("paper", protocol)
        for contestant in config.contestants:
            if contestant.kind in WEIGHTS:
                assert experiment._untrained(contestant, config).num_weights == WEIGHTS[contestant.kind]


def test_published_networks_see_raw_features() -> None:
    for protocol, standardised in (("clean", True), ("published", False)):
        config = experiment.config_for("paper", protocol)
        for contestant in config.contestants:
            assert experiment._untrained(contestant, config).recipe.standardise is standardised


@pytest.mark.parametrize("law", ["A", "C"])
def test_the_exact_floor_is_the_specifications(law: str) -> None:
    config = replace(experiment.config_for("paper", "published"), test_sets=2_500)
    residuals = experiment._exact_residuals(config, law)
    assert residuals.shape == (1, 2_500, 2)
    found = residuals.square().mean((0, 1))
    assert found.tolist() == pytest.approx(FLOOR[law], rel=0.04)
    # and what theory says: the mean squared error of a posterior mean is the posterior variance
    precision = 850 * experiment.LAWS[law].fisher_per_datum() + torch.eye(2)
    assert found.tolist() == pytest.approx(torch.linalg.inv(precision).diagonal().tolist(), rel=0.06)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_smoke_run_measures_everything(protocol: str, results: dict[str, experiment.Result]) -> None:
    result = results[protocol]
    metrics = result.metrics
    for name, found in metrics.items():
        assert math.isfinite(found.value), name
        assert math.isfinite(found.error), name
        assert found.error >= 0, name
    for law in ("training", "A", "C"):
        for parameter in "mc":
            floor = metrics[f"floor/{parameter}/{law}"]
            for contestant in result.config.contestants:
                name = f"{contestant.kind}/{parameter}/{law}"
                assert metrics[f"mse/{name}"].bound == pytest.approx(floor.value)
                ratio = metrics[f"mse/{name}"].value / floor.value
                assert metrics[f"mse_over_floor/{name}"].value == pytest.approx(ratio)
                assert metrics[f"mse_over_floor/{name}"].bound == 1.0
                assert metrics[f"mse-std-over-sets/{name}"].value > 0
                assert metrics[f"bias/{name}"].bound == 0.0
    for contestant in result.config.contestants:
        allowed = result.config.rates if protocol == "clean" else (5e-4,)
        assert metrics[f"learning-rate/{contestant.kind}"].value in allowed
        assert metrics[f"weights/{contestant.kind}"].value > 0
        assert metrics[f"seconds/{contestant.kind}"].value > 0
    assert "prior-shift/mse-over-sample-mean/deepset/shifted" in metrics
    assert "mse_over_floor" in comparison_table({"smoke": metrics}, list(metrics))


def test_table_2_stands_beside_the_shifted_tests_alone(results: dict[str, experiment.Result]) -> None:
    metrics = results["clean"].metrics
    for law in ("A", "C"):
        assert metrics[f"mse/fishnets/m/{law}"].paper == 0.007
        assert metrics[f"mse/fishnets/c/{law}"].paper == 0.046
        assert metrics[f"mse/softmax/c/{law}"].paper == 0.482
        assert metrics[f"mse-std-over-sets/deepset/m/{law}"].paper == 0.178
    assert metrics["mse/fishnets/m/training"].paper is None
    assert metrics["mse/recommended/m/A"].paper is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_residuals_are_kept_of_every_seed(protocol: str, results: dict[str, experiment.Result]) -> None:
    result = results[protocol]
    for contestant in result.config.contestants:
        number = 1 if contestant.pooled else contestant.members
        for law in experiment.LAWS:
            assert result.residuals[contestant.kind, law].shape == (number, result.config.test_sets, 2)
            assert result.residuals["exact", law].shape == (1, result.config.test_sets, 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_figures_are_drawn(protocol: str, results: dict[str, experiment.Result], tmp_path: Path) -> None:
    draw(results[protocol], tmp_path / "figure")
    for name in ("laws", "residuals-A", "residuals-C"):
        assert (tmp_path / f"figure-{name}.png").stat().st_size > 1000


def test_a_run_depends_on_its_config_alone(results: dict[str, experiment.Result]) -> None:
    first = results["published"]
    again = experiment.run(first.config, None, progress=False)
    one, two = ({k: v for k, v in r.metrics.items() if "seconds" not in k} for r in (first, again))
    assert one == two


def test_the_exact_estimator_has_ratio_one() -> None:
    config = experiment.config_for("smoke", "clean")
    for law in experiment.LAWS:
        exact = experiment._exact_residuals(config, law)
        found = experiment._errors("exact", law, exact, exact)
        for parameter in "mc":
            ratio = found[f"mse_over_floor/exact/{parameter}/{law}"]
            assert (ratio.value, ratio.error) == (1.0, 0.0)


def test_ratios_are_of_mean_squares_and_errors_of_initialisations_and_sets() -> None:
    exact = torch.tensor([[1.0, -1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64).T.unsqueeze(0)
    twice = experiment._errors("x", "A", 2 * exact, exact)
    assert twice["mse_over_floor/x/m/A"].value == pytest.approx(4)
    assert twice["mse_over_floor/x/m/A"].error == pytest.approx(0, abs=1e-12), "on the same sets the noise cancels"
    assert twice["mse/x/m/A"].value == pytest.approx(8)
    assert twice["mse/x/m/A"].bound == pytest.approx(2)
    seeds = experiment._errors("x", "A", torch.cat([exact, 3 * exact]), exact)
    assert seeds["mse_over_floor/x/c/A"].value == pytest.approx(5)
    assert seeds["mse_over_floor/x/c/A"].error == pytest.approx(4), "the standard error of 1 and 9"
    assert seeds["bias/x/c/A"].value == pytest.approx(2)


def test_test_sets_are_the_same_whatever_the_features() -> None:
    config = experiment.config_for("smoke", "clean")
    for law, simulator in experiment.LAWS.items():
        (sets, theta), (log, same) = (experiment._tests(config, law, features) for features in ("paper", "log"))
        assert torch.equal(theta, same)
        columns = simulator.columns(sets.values), replace(simulator, features="log").columns(log.values)
        for one, two in zip(*columns, strict=True):
            assert torch.allclose(one, two, rtol=1e-5)


def test_test_sets_are_not_training_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[float, ...]] = set()
    call = LinearRegression.__call__

    def noted(self: LinearRegression, theta: Any, *rest: Any) -> Any:
        seen.update(map(tuple, theta.tolist()))
        return call(self, theta, *rest)

    monkeypatch.setattr(LinearRegression, "__call__", noted)
    for protocol in PROTOCOLS:
        config = experiment.config_for("smoke", protocol)
        seen.clear()
        for contestant in config.contestants:
            experiment._train(contestant, config, None, False)
        assert len(seen) >= 40
        trained = set(seen)
        for law in experiment.LAWS:
            assert not trained & set(map(tuple, experiment._tests(config, law, "paper")[1].tolist()))


def test_contestants_have_the_same_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows per step, steps, trials and rates are the config's, unless a contestant says so; PAIRS has as many rows."""
    asked: dict[str, list[tuple[int, int, Any]]] = {}
    kind = [""]

    def note(steps: int, rows: int, rate: Any) -> Any:
        asked.setdefault(kind[0], []).append((steps, rows, rate))
        return SimpleNamespace(best_loss=[0.0])

    def fit(self: Any, *data: Any, steps: int, batch_data: int, learning_rate: Any, **rest: Any) -> Any:
        return note(steps, batch_data * steps, learning_rate)

    def pairs(
        model: Any, simulator: Any, *, size: Any, steps: int, batch_data: int, head_steps: int, num_sets: int,
        learning_rate: Any, head_learning_rate: Any, **rest: Any,
    ) -> Any:  # fmt: skip
        assert head_learning_rate == learning_rate
        return SimpleNamespace(head=note(steps + head_steps, batch_data * steps + num_sets * size[1], learning_rate))

    monkeypatch.setattr(Fishnet, "fit", fit)
    monkeypatch.setattr(Regressor, "fit", fit)
    monkeypatch.setattr(experiment, "fit_pairs", pairs)
    config = experiment.config_for("paper", "clean")
    for contestant in config.contestants:
        kind[0] = contestant.kind
        experiment._train(contestant, config, None, False)
    expected = [(500, 500 * 32_000, rate) for rate in config.rates] + [(5_000, 5_000 * 32_000, config.rates[0])]
    own = asked.pop("recommended")
    assert asked == dict.fromkeys([c.kind for c in config.contestants if c.budget is None], expected)
    assert own[-1] == (60_000, 60_000 * 200_000, config.rates[0])


def test_the_learning_rate_with_the_lowest_validation_loss_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    config = experiment.config_for("smoke", "clean")
    trials = dict(zip(config.rates, (0.3, 0.1, 0.2), strict=True))
    asked: list[tuple[int, Any]] = []

    def fit(model: Any, contestant: Any, config: Any, rate: Any, steps: int, *rest: Any) -> float:
        asked.append((steps, rate))
        return trials[rate]

    monkeypatch.setattr(experiment, "_fit", fit)
    model, rate = experiment._train(config.contestants[0], config, None, False)
    assert rate == config.rates[1]
    assert asked == [(2, r) for r in config.rates] + [(20, rate)]
    assert model.recipe.members == config.contestants[0].members


def test_the_published_staircase_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config = experiment.config_for("paper", "published")
    asked: list[tuple[int, Any]] = []
    monkeypatch.setattr(experiment, "_fit", lambda m, c, config, rate, steps, *rest: asked.append((steps, rate)))
    experiment._train(config.contestants[0], config, None, False)
    ((steps, stairs),) = asked
    assert steps == sum(length for length, _ in stairs) == 2_000
    assert stairs[0] == (500, 5e-4)
