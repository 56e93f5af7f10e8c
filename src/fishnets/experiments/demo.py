"""The demonstration: train, measure against the exact answer, merge two parts of a data set, and say what it means."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fishnets.experiments import linear_scaling
from fishnets.experiments.records import Metric
from fishnets.experiments.report import format_metric, markdown_table
from fishnets.networks import Gated
from fishnets.ragged import Sets

__all__ = ["SMOKE", "STANDARD", "Demo", "report", "run"]

STANDARD = linear_scaling.Config(
    preset="quick",
    protocol="clean",
    candidates=(
        replace(
            linear_scaling.RECOMMENDED,
            body=Gated(width=16, depth=2),
            members=1,
            size=(5, 100),
            steps=16_000,
            batch_data=3200,
        ),
    ),
    test_sets=300,
)
SMOKE = replace(
    linear_scaling.config_for("smoke", "clean"), candidates=linear_scaling.config_for("smoke", "clean").candidates[:1]
)


@dataclass(frozen=True, eq=False)
class Demo:
    """What the demonstration found.

    Attributes:
        result: The trained network and its metrics.
        merge_difference: Largest change of the estimate, in units of its standard deviation, when a set is compressed
            in two parts that are then added.
        example: One set of a thousand data: truth, estimate, its standard deviation, exact estimate; each (m, c).
    """

    result: linear_scaling.Result
    merge_difference: float
    example: tuple[tuple[float, float], ...]

    @property
    def metrics(self) -> dict[str, Metric]:
        """Metrics of the result and of the merge; the latter is rounding, so its error is zero."""
        return self.result.metrics | {"merge-difference": Metric(self.merge_difference, 0.0, bound=0.0)}


def run(config: linear_scaling.Config = STANDARD, progress: bool | None = None) -> Demo:
    """Trains on linear regression and shows that summaries are accurate and merge exactly.

    Args:
        config: Network, training and test sets.
        progress: Whether to show a progress bar.

    Returns:
        The result, the effect of merging, and one worked example.
    """
    result = linear_scaling.run(config, None, progress)
    model = result.trained[0].model
    simulator = linear_scaling.simulator_of(config.candidates[0])
    generator = torch.Generator(config.device).manual_seed(config.seed + 5)
    theta = simulator.prior.sample(1, generator)
    sets = simulator(theta, torch.tensor([1000], device=config.device), generator)
    part, rest = Sets.from_offsets(sets.values[:300], [0, 300]), Sets.from_offsets(sets.values[300:], [0, 700])
    whole = model.estimate(sets)
    merged = (model.compress(part) + model.compress(rest)).posterior(model.prior)
    difference = float(((merged.mean - whole.mean) / whole.standard_deviation).abs().max())
    numbers = (theta, whole.mean, whole.standard_deviation, simulator.posterior(sets).mean)
    return Demo(result, difference, tuple((float(t[0, 0]), float(t[0, 1])) for t in numbers))


def report(demo: Demo) -> str:
    """The demonstration as a short Markdown page."""
    trained = demo.result.trained[0]
    sizes = demo.result.config.test_sizes
    label = trained.candidate.label
    rows = [[f"{n:,}", format_metric(demo.result.metrics[f"efficiency/{label}/n={n}"]), "1"] for n in sizes]
    truth, ours, spread, exact = demo.example
    example = [
        [name, f"{truth[i]:.3f}", f"{ours[i]:.3f} ± {spread[i]:.3f}", f"{exact[i]:.3f}"]
        for i, name in enumerate(("slope m", "intercept c"))
    ]
    low, high = trained.candidate.size
    return f"""# Fishnets on linear regression

Data `y = m x + c + noise`, each datum with its own noise level. Twin networks with {trained.model.num_weights:,}
weights learned from simulated sets of {low} to {high} data ({trained.history.seconds:.0f} s of training) what each
datum is worth.

**Efficiency**: the share of the information in the data that the estimate keeps. The exact answer, known here, has 1.

{markdown_table(["data in a set", "Fishnets", "exact"], rows)}

**One set of 1,000 data**

{markdown_table(["", "truth", "Fishnets", "exact estimate"], example)}

**Merging**: compressing 300 and 700 of these data apart and adding the two summaries moves the estimate by
{demo.merge_difference:.1e} of its standard deviation: nothing but rounding.
"""
