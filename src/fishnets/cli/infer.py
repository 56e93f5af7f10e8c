"""``fishnets infer``: the posterior of each observed set."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fishnets.cli.options import Device, resolve_device, say
from fishnets.errors import DataError
from fishnets.experiments.records import refuse_overwrite
from fishnets.inference import Posterior, Summaries, load_posterior, load_summaries
from fishnets.priors import Prior
from fishnets.sets.container import write_container

__all__ = ["infer"]

SHOWN = 20  # sets in the table on the screen; --json has them all


class Kind(StrEnum):
    """The density estimator."""

    nsf = "nsf"
    gmm = "gmm"


class Direction(StrEnum):
    """What is learned."""

    posterior = "posterior"
    likelihood = "likelihood"


def infer(
    observed: Annotated[Path, typer.Argument(help="Summaries of the observed sets, written by `save_summaries`.")],
    train: Annotated[Path | None, typer.Option(help="Summaries of simulated sets with their theta, to fit on.")] = None,
    posterior: Annotated[Path | None, typer.Option(help="A fitted posterior, instead of --train.")] = None,
    kind: Annotated[Kind, typer.Option(help="nsf: neural spline flow; gmm: mixture density network.")] = Kind.nsf,
    direction: Annotated[
        Direction, typer.Option(help="posterior: learn p(theta|summary); likelihood: p(summary|theta) times the prior.")
    ] = Direction.posterior,
    steps: Annotated[int, typer.Option(help="Updates of the fit.")] = 4000,
    samples: Annotated[int, typer.Option(help="Samples for each observed set.")] = 4000,
    save: Annotated[Path | None, typer.Option(help="File for the fitted posterior.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the samples, safetensors.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace earlier files.")] = False,
) -> None:
    """Sample the posterior of each observed set.

    Example:  fishnets infer observed.fishnet --train pairs.fishnet --save posterior.fishnet --out samples.safetensors
    """
    if (train is None) == (posterior is None):
        say("error: Give either --train, pairs to fit a posterior on, or --posterior, one fitted before.")
        raise typer.Exit(2)
    if save is not None and train is None:
        say("error: --save goes with --train: the posterior given by --posterior is already a file.")
        raise typer.Exit(2)
    for path in (save, out):
        if path is not None:
            refuse_overwrite(path, overwrite)
    where = resolve_device(device)
    summaries, _ = load_summaries(observed)
    if train is not None:
        fitted = _fitted(train, kind.value, direction.value, steps, seed, where)
        if save is not None:
            fitted.save(save)
    else:
        fitted = load_posterior(cast(Path, posterior), device=where)
    drawn = fitted.sample(summaries, samples, torch.Generator().manual_seed(seed)).cpu()
    if out is not None:
        header = {"model": summaries.model, "seed": seed, "observed": str(observed)}
        write_container(out, "samples", header, {"samples": drawn, "sizes": summaries.sizes})
    _show(describe_samples(drawn, summaries), as_json)
    written = [str(path) for path in (save, out) if path is not None]
    if written:
        say(f"Written: {', '.join(written)}.")


def _fitted(
    train: Path, kind: Literal["nsf", "gmm"], direction: Literal["posterior", "likelihood"], steps: int, seed: int,
    device: str,
) -> Posterior:
    pairs, theta = load_summaries(train)
    if theta is None:
        raise DataError(
            f"{train} holds summaries without theta; write them with `save_summaries(path, summaries, theta)`."
        )
    posterior = Posterior(cast(Prior, pairs.prior), kind=kind, direction=direction, seed=seed)
    say(f"Fitting the posterior on {len(pairs):,} pairs ...")
    say(str(posterior.fit(theta, pairs, steps=steps, device=device)))
    return posterior


def describe_samples(samples: Tensor, summaries: Summaries) -> list[dict[str, Any]]:
    """Mean, standard deviation and 5 and 95 % quantiles of each set and parameter, as plain values."""
    levels = torch.tensor([0.05, 0.95], dtype=samples.dtype)
    low, high = torch.quantile(samples, levels, dim=1)  # (B, p) each
    mean, sd = samples.mean(1), samples.std(1)
    columns = {"mean": mean, "sd": sd, "5%": low, "95%": high}
    return [
        {"set": i, "size": int(size), "parameter": a} | {name: float(value[i, a]) for name, value in columns.items()}
        for i, size in enumerate(summaries.sizes)
        for a in range(samples.shape[-1])
    ]


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("set", "data", "parameter", "mean", "sd", "5 %", "95 %", title="Posterior")
    for row in (row for row in rows if row["set"] < SHOWN):
        head = (str(row["set"]), f"{row['size']:,}", str(row["parameter"]))
        table.add_row(*head, *(f"{row[name]:.5g}" for name in ("mean", "sd", "5%", "95%")))
    Console().print(table)
    if rows and rows[-1]["set"] >= SHOWN:
        say(f"The first {SHOWN} of {rows[-1]['set'] + 1} sets are shown; --json has them all.")
