"""The command line. No mathematics here."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

import learn2pfed.cli.data
import learn2pfed.cli.experiments
import learn2pfed.cli.own
import learn2pfed.cli.tune  # noqa: F401, each module adds its commands
from learn2pfed.cli.common import app
from learn2pfed.errors import Learn2pFedError


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except Learn2pFedError as error:
        Console(stderr=True).print(Text.assemble(("Error:", "bold red"), f" {error}"), soft_wrap=True)
        sys.exit(2)
