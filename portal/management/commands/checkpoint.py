"""Save a checkpoint of a cell at its present revision."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.models import Cell


class Command(BaseCommand):
    help = "Save a checkpoint of a cell in the store of the archive, and print its name there. Locks nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cell")

    def handle(self, *args: Any, cell: str, **options: Any) -> None:
        found = Cell.objects.filter(name=cell).first()
        if found is None:
            raise CommandError(f"Cannot save a checkpoint of cell {cell!r}: there is no such cell. Check the name.")
        self.stdout.write(checkpoint_write(found.id))
