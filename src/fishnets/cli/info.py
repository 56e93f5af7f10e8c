"""``fishnets info``: what a file of ours holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fishnets.sets.files import describe

__all__ = ["info"]


def info(
    model: Annotated[Path, typer.Argument(help="A model, a posterior, summaries or a checkpoint.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Tell what a file holds.

    Example:  fishnets info demo/model.fishnet
    """
    found = describe(model)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    table = Table(title=str(model), show_header=False)
    for name, value in found.items():
        table.add_row(name, str(value))
    Console().print(table)
