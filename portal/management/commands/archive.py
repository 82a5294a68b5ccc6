"""Copy closed days of events and usage, and ended jobs, to the archive, and drop rows that are archived and old.

A Celery task starts this command when something is due. An operator may start it at any time.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.store import store


class Command(BaseCommand):
    help = "Archive events, usage and ended jobs that are due. Delete files that are too old. It may run twice."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            done = Archiver(store()).run(now=timezone.now())
        except (ArchiveFailed, ValueError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(asdict(done)))
