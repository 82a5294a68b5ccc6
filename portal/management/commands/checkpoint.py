"""Save a checkpoint (a file with the state of a cell) at the present revision, or write a checkpoint of any other
moment to a given file.
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from quota.vocabulary.errors import Rejected
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.history.checkpoints.simulator_checkpoint import write_following
from scheduling.models import Cell


class Command(BaseCommand):
    help = "Save a checkpoint of a cell in the store of the archive, and print its name there. Locks nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cell")
        parser.add_argument(
            "--output", type=Path, help="Write the file here instead, with the usage of tasks, for the simulator."
        )
        parser.add_argument("--revision", type=int, help="With --output: the revision. Default: the present one.")
        parser.add_argument("--time", type=datetime.fromisoformat, help="With --output: the time, as ISO 8601.")
        parser.add_argument(
            "--hours", type=float, default=0.0, help="With --output: also what happened in the hours afterwards."
        )

    def handle(self, *args: Any, cell: str, output: Path | None, **options: Any) -> None:
        found = Cell.objects.filter(name=cell).first()
        if found is None:
            raise CommandError(f"Cannot save a checkpoint of cell {cell!r}: there is no such cell. Check the name.")
        if output is None:
            self.stdout.write(checkpoint_write(found.id))
            return
        given = {name: options[name] for name in ("revision", "time", "hours")}
        try:
            with output.open("wb") as out:
                write_following(out, found, **given)
        except Rejected as error:
            raise CommandError(error.detail) from error
        self.stdout.write(str(output))
