"""``fishnets diagnose``: whether a posterior may be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fishnets.cli.options import Device, resolve_device, say
from fishnets.errors import DataError
from fishnets.experiments.records import refuse_overwrite
from fishnets.inference import Posterior, Summaries, load_posterior, load_summaries
from fishnets.inference.calibration import coverage_levels, pit, tarp_levels
from fishnets.inference.uniformity import uniformity

__all__ = ["diagnose"]

LEAST_SETS = 50  # in a group of set sizes: fewer tell little
LEVEL = 0.01  # of the test as a whole, shared over its parts


def diagnose(
    pairs: Annotated[Path, typer.Argument(help="Summaries of sets with their true theta, not used in the fit.")],
    posterior: Annotated[Path, typer.Option(help="The fitted posterior.")],
    samples: Annotated[int, typer.Option(help="Samples for each set.")] = 500,
    plots: Annotated[Path | None, typer.Option(help="Folder for figures.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace earlier figures.")] = False,
) -> None:
    """Test whether the truth falls where a posterior says it does.

    Example:  fishnets diagnose test-pairs.fishnet --posterior posterior.fishnet --plots figures
    """
    figure = None if plots is None else plots / "calibration.png"
    if figure is not None:
        refuse_overwrite(figure, overwrite)
    summaries, theta = load_summaries(pairs)
    if theta is None:
        raise DataError(
            f"{pairs} holds no theta to compare with; write it with `save_summaries(path, summaries, theta)`."
        )
    fitted = load_posterior(posterior, device=resolve_device(device))
    levels = levels_of(fitted, summaries, theta, samples, seed)
    groups = {
        name: tests_of({check: found[rows] for check, found in levels.items()}) for name, rows in groups_of(summaries)
    }
    verdict = verdict_of(groups)
    if as_json:
        print(json.dumps({"verdict": verdict, "groups": groups}, indent=1))
    else:
        _show(groups)
        print(verdict)
    if figure is not None:
        _draw(levels, figure)


def levels_of(
    posterior: Posterior, summaries: Summaries, theta: Tensor, num_samples: int, seed: int
) -> dict[str, Tensor]:
    """Levels (T,) of each check, uniform for a calibrated posterior."""
    drawn = posterior.sample(summaries, num_samples, torch.Generator().manual_seed(seed))
    density = coverage_levels(posterior.log_prob(drawn, summaries), posterior.log_prob(theta, summaries))
    marginal = pit(drawn, theta)
    checks = {f"PIT of parameter {a}": marginal[:, a] for a in range(marginal.shape[1])}
    # references that follow the data see what random ones cannot, such as a posterior that is the prior
    near = summaries.gaussian.sample(1, torch.Generator(summaries.device).manual_seed(seed + 1))[0]
    found = checks | {
        "joint coverage": density,
        "TARP": tarp_levels(drawn, theta),
        "TARP near the data": tarp_levels(drawn, theta, references=near),
    }
    return {name: levels.cpu() for name, levels in found.items()}


def groups_of(summaries: Summaries) -> list[tuple[str, Tensor]]:
    """All sets and, where sizes differ, those of each size or, of many sizes, of each quarter from small to large."""
    sizes = summaries.sizes.cpu()
    everything = [("all sets", torch.arange(len(sizes)))]
    distinct = sizes.unique()
    if len(distinct) == 1:
        return everything
    if len(distinct) <= 8:
        parts = [(f"{int(n):,} data", (sizes == n).nonzero().flatten()) for n in distinct]
    else:
        order = sizes.argsort(stable=True)
        parts = [
            (f"{int(sizes[rows[0]]):,} to {int(sizes[rows[-1]]):,} data", rows)
            for rows in order.tensor_split(4)
            if len(rows)
        ]
    return everything + [(name, rows) for name, rows in parts if len(rows) >= LEAST_SETS]


def tests_of(levels: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Statistic and p-value of each check; for the joint coverage, the shares in the 68 and 95 % regions too."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in levels.items():
        test = uniformity(values)
        outcome = {"ks": float(test.statistic), "p": float(test.p_value), "inside": bool(test.inside)}
        inner = (2 * values - 1).abs() if name.startswith("PIT") else values
        shares = {f"within {c}%": float((inner < c / 100).double().mean()) for c in (68, 95)}
        found[name] = {"sets": len(values), **outcome, **shares}
    return found


def verdict_of(groups: dict[str, dict[str, dict[str, Any]]]) -> str:
    """One sentence: whether any test fails, with the level shared over all tests."""
    tests = [(group, check, test["p"]) for group, checks in groups.items() for check, test in checks.items()]
    bound = LEVEL / len(tests)
    failed = [f"{check} ({group}, p = {p:.1e})" for group, check, p in tests if p < bound]
    if not failed:
        return f"No sign of miscalibration in {len(tests)} tests on {groups['all sets']['TARP']['sets']:,} sets."
    return f"Miscalibrated: {len(failed)} of {len(tests)} tests fail at the {LEVEL:.0%} level: {'; '.join(failed)}."


def _show(groups: dict[str, dict[str, dict[str, Any]]]) -> None:
    table = Table("sets", "number", "check", "KS", "p", "in band", "in 68 %", "in 95 %", title="Calibration")
    for group, checks in groups.items():
        for check, test in checks.items():
            shares = (f"{test[f'within {c}%']:.3f}" for c in (68, 95))
            numbers = (f"{test['ks']:.3f}", f"{test['p']:.3g}", "yes" if test["inside"] else "no")
            table.add_row(group, f"{test['sets']:,}", check, *numbers, *shares)
    Console().print(table)


def _draw(levels: dict[str, Tensor], path: Path) -> None:
    from fishnets.inference.plots import ecdf_plot

    path.parent.mkdir(parents=True, exist_ok=True)
    ecdf_plot(levels).savefig(path, dpi=150)
    say(f"Written: {path}.")
