"""What the study of saturation measures of estimates: distance from the bound, coverage, and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fishnets.experiments.records import Metric, metric
from fishnets.inference.efficiency import efficiency, mean_with_error, paired_chi2
from fishnets.ragged import Sets
from fishnets.sets import Estimate

__all__ = ["Tested", "compared", "said"]


@dataclass(frozen=True, eq=False)
class Tested:
    """Test sets of one parameter, and what is known of them exactly."""

    theta: Tensor  # (T, 2)
    sets: Sets
    fisher: Tensor  # (T, 2, 2)
    score: Tensor  # at the truth, (T, 2)
    exact: Tensor  # the exact estimate, (T, 2)


def compared(label: str, size: int, tested: list[Tested], means: dict[str, Tensor]) -> dict[str, Metric]:
    """Figures of merit of every method: over all test sets, and at the worst of the sixteen parameters."""
    found = {}
    columns = {name: [getattr(one, name).cpu() for one in tested] for name in ("theta", "score", "fisher", "exact")}
    theta, score, fisher, exact = (torch.cat(column) for column in columns.values())
    number = len(columns["theta"][0])
    for method, mean in means.items():
        name = f"{label}/{method}/n={size}"
        bound = 1.0 if size > 500 else None
        found[f"chi2/{name}"] = metric(paired_chi2(mean, theta, score, fisher), bound=bound)
        if method != "exact":
            found[f"efficiency/{name}"] = metric(efficiency(mean, exact, fisher), bound=1.0)
        if number > 1:
            parts = [slice(i, i + number) for i in range(0, len(theta), number)]
            each = [paired_chi2(mean[part], theta[part], score[part], fisher[part]) for part in parts]
            found[f"chi2-worst/{name}"] = metric(max(each, key=lambda one: one.value), bound=bound)
    return found


def said(
    label: str, size: int, refined: list[Estimate], tested: list[Tested], seconds: float
) -> dict[str, Metric]:
    """What the centred estimates say of themselves: coverage of their intervals, cost, and whether they settled."""
    name = f"{label}/centred/n={size}"
    error = torch.cat([(one.mean - test.theta).cpu() for one, test in zip(refined, tested, strict=True)])
    learned = torch.cat([one.fisher_covariance.cpu() for one in refined]).diagonal(dim1=-2, dim2=-1).sqrt()
    sandwich = torch.cat([one.standard_deviation.cpu() for one in refined])
    found = {}
    for level, width in ((68, 0.9944578832097531), (95, 1.959963984540054)):
        bound = math.erf(width / math.sqrt(2))
        for kind, spread in (("centred", sandwich), ("learned", learned)):
            inside = (error.abs() <= width * spread).to(torch.float64).mean(1)
            found[f"coverage{level}/{label}/{kind}/n={size}"] = metric(mean_with_error(inside), bound=bound)
    simulated = torch.cat([one.num_simulated.cpu().double() for one in refined])
    settled = torch.cat([one.settled.cpu().double() for one in refined])
    noise = torch.cat([one.added_noise.cpu() for one in refined])
    found[f"simulated-per-estimate/{name}"] = metric(mean_with_error(simulated))
    found[f"added-noise/{name}"] = metric(mean_with_error(noise))
    found[f"settled/{name}"] = metric(mean_with_error(settled), bound=1.0)
    found[f"passes/{name}"] = Metric(float(max(one.num_passes for one in refined)), 0.0)
    found[f"seconds-per-estimate/{name}"] = Metric(seconds / len(error), 0.0)
    return found
