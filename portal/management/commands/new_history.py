"""Give each cell a new history number. An operator runs this command after the database was restored from a backup.
Without a new number, Borglets would stop the tasks that the backup does not contain.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from quota.vocabulary.permissions import system
from scheduling.cells.cells import cell_new_history
from scheduling.models import Cell


class Command(BaseCommand):
    help = "Start a new history of every cell. Run it once after restoring a backup, before anything starts."

    def handle(self, *args: Any, **options: Any) -> None:
        for cell in Cell.operated.order_by("id"):
            cell_new_history(principal=system("restore"), cell=cell)
            self.stdout.write(f"{cell.name}: history {cell.history_id} ({cell.history_ordinal})")
