"""``fishnets reproduce``: an experiment of the paper, beside its exact answer."""

from __future__ import annotations

import contextlib
import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fishnets.cli.options import Device, command_line, resolve_device, say
from fishnets.errors import ConfigError, MissingExtraError
from fishnets.experiments import EXPERIMENTS
from fishnets.experiments.records import Record, hardware_name, refuse_overwrite, versions, write_record
from fishnets.experiments.report import comparison_table
from fishnets.ops.allocation import keep_freed_memory

__all__ = ["reproduce"]


class Preset(StrEnum):
    """How much to compute."""

    smoke = "smoke"
    quick = "quick"
    paper = "paper"


class Protocol(StrEnum):
    """The careful way, the paper's as its code ran it, or that of the baselines' own authors."""

    clean = "clean"
    published = "published"
    original = "original"


def reproduce(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(EXPERIMENTS)}.")],
    preset: Annotated[
        Preset, typer.Option(help="smoke: seconds; quick: a CPU, minutes to an hour; paper: a GPU.")
    ] = Preset.quick,
    protocol: Annotated[
        Protocol,
        typer.Option(
            help="clean: the careful way; published: as the paper's code ran it; original: as the authors of a graph "
            "network did."
        ),
    ] = Protocol.clean,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    data: Annotated[
        Path | None,
        typer.Option(
            help="Table or folder of an experiment on real data: SCPUnion2.1_mu_vs_z.txt for supernovae; for graphs a "
            "folder in OGB's layout, for arxiv also one that holds citation graphs (.npz)."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an earlier record.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the config and do nothing.")] = False,
) -> None:
    """Run an experiment of the paper and record it.

    Example:  fishnets reproduce linear-scaling --preset quick

    An interrupted run continues from its checkpoints when the same command is given again.
    """
    if name not in EXPERIMENTS:
        say(f'error: There is no experiment "{name}"; the experiments are: {", ".join(EXPERIMENTS)}.')
        raise typer.Exit(2)
    where = resolve_device(device)
    experiment = EXPERIMENTS[name]
    config = experiment.config_for(preset.value, protocol.value, seed, where, **_table(name, data))
    if dry_run:
        print(json.dumps(config.to_dict(), indent=1))
        return
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out names {out}, which is a file; a folder was expected.")
    hardware = hardware_name(where)
    refuse_overwrite(out / name / f"{preset}-{protocol}-{hardware}.json", overwrite)
    if where == "cpu":
        keep_freed_memory()
    device_name = "" if experiment.anywhere else f"-{where}"
    checkpoints = out / name / "checkpoints" / f"{preset}-{protocol}{device_name}-seed{seed}"
    try:
        result = experiment.run(config, checkpoints)
    except KeyboardInterrupt:
        say(f"Interrupted. What is finished is in {checkpoints}: the same command continues from there.")
        raise typer.Exit(130) from None
    record = Record(
        name, preset, protocol, command_line(data, out), config.to_dict(), [seed], versions(), hardware, result.seconds,
        result.metrics,
    )
    path = write_record(record, out, overwrite)
    print(comparison_table({f"{preset} {protocol}": result.metrics}, list(result.metrics)))
    try:
        experiment.draw(result, path.with_suffix(""))
    except MissingExtraError as error:
        say(f"No figures: {error}")
    shutil.rmtree(checkpoints, ignore_errors=True)  # done: the same command starts anew
    with contextlib.suppress(OSError):  # other runs may keep theirs there
        checkpoints.parent.rmdir()
    say(f"Recorded in {path}.")


def _table(name: str, data: Path | None) -> dict[str, Any]:
    """What a data file holds, for the experiments that read one."""
    read = EXPERIMENTS[name].read
    if read is not None:
        return {"table": read(data)}
    if data is not None:
        raise ConfigError(f'--data was given but the experiment "{name}" reads no file; leave it out.')
    return {}
