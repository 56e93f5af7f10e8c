"""``fishnets demo``: two minutes from nothing to a trained network and its exact check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from fishnets.cli.options import Device, command_line, resolve_device, say
from fishnets.errors import MissingExtraError
from fishnets.experiments import demo as experiment
from fishnets.experiments.linear_figures import residual_figure
from fishnets.experiments.records import Record, hardware_name, record_text, refuse_overwrite, versions

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report, figure, model and record.")] = Path("demo"),
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.cpu,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    smoke: Annotated[bool, typer.Option(help="A run of seconds that checks the machinery and learns little.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the files of an earlier run.")] = False,
) -> None:
    """Train on linear regression and compare with the exact answer.

    Example:  fishnets demo

    Takes about two minutes on two CPU cores.
    """
    torch.set_num_threads(1)  # so small a network gains nothing from more
    config = replace(experiment.SMOKE if smoke else experiment.STANDARD, seed=seed, device=resolve_device(device))
    hardware = hardware_name(config.device)
    record_name = f"{config.preset}-{config.protocol}-{hardware}.json"
    files = {name: out / name for name in ("report.md", "residuals.png", "model.fishnet", record_name)}
    for path in files.values():
        refuse_overwrite(path, overwrite)
    say("Training twin networks on simulated linear regressions (a minute or two) ...")
    found = experiment.run(config)
    out.mkdir(parents=True, exist_ok=True)
    record = Record(
        name="demo",
        preset=config.preset,
        protocol=config.protocol,
        command=command_line(),
        config=config.to_dict(),
        seeds=[seed],
        versions=versions(),
        hardware=hardware,
        seconds=found.result.seconds,
        metrics=found.metrics,
    )
    files[record_name].write_text(record_text(record))
    found.result.trained[0].model.save(files["model.fishnet"])
    page = experiment.report(found)
    try:
        residual_figure(found.result.trained[0], config.test_sizes[-1], files["residuals.png"])
        page += "\n![Residuals of the estimates](residuals.png)\n"
    except MissingExtraError as error:
        say(f"No figure: {error}")
    files["report.md"].write_text(page)
    print(page)
    say(
        f"Written to {out}/: {', '.join(files)}.\n"
        f"Next: `fishnets info {files['model.fishnet']}`, then your own simulator: see README.md, "
        "or `fishnets reproduce linear-scaling --preset quick`."
    )
