"""The command line: one module per verb, each parsing, calling one public function and printing."""

from __future__ import annotations

import sys

import typer

from fishnets.cli import demo, diagnose, infer, info, reproduce
from fishnets.errors import FishnetsError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Information-optimal aggregation for sets and graphs.\n\nStart with:  fishnets demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("reproduce")(reproduce.reproduce)
app.command("infer")(infer.infer)
app.command("diagnose")(diagnose.diagnose)
app.command("info")(info.info)


def main() -> None:
    """Runs the command line; our own errors become one message and exit code 1."""
    try:
        app()
    except (FishnetsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
