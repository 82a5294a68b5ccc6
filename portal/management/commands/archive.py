"""Copy closed days of events and usage, and ended jobs, to the archive, write the tables that are derived from events,
and drop rows that are archived and old.

A Celery task starts this command when something is due. An operator may start it at any time.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.parquet import UnreadableArchive
from scheduling.history.archive.store import store
from scheduling.history.infrastore.derived import derive
from scheduling.storage.files import StoreAway


class Command(BaseCommand):
    help = "Archive events, usage and ended jobs that are due. Delete files that are too old. It may run twice."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            files = store()
            archiver = Archiver(files)
            try:
                archiver.run(now=timezone.now())
            finally:  # a cell that failed does not keep others from being complete
                derive(files, archiver)
        except (ArchiveFailed, StoreAway, UnreadableArchive, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(asdict(archiver.done)))
