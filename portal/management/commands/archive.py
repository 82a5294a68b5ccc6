"""Copy closed days of events and usage, ended jobs and metered hours to the archive. Write the tables that are computed
from events, and delete rows that are old and already in the archive.

A Celery task starts this command when there is something to archive or to delete. An operator may start it at any time.
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
    help = (
        "Archive events, usage, ended jobs and metered hours that are due. Delete files that are too old."
        " It is safe to repeat."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        failures = []
        try:
            files = store()
            archiver = Archiver(files)
            for step in (lambda: archiver.run(now=timezone.now()), lambda: derive(files, archiver)):
                try:
                    step()
                except ArchiveFailed as error:  # some cells failed; the next step still handles the others
                    failures.append(str(error))
        except (StoreAway, UnreadableArchive, ValueError) as error:
            raise CommandError("; ".join([*failures, str(error)])) from error
        if failures:
            raise CommandError("; ".join(failures))
        self.stdout.write(json.dumps(asdict(archiver.done)))
