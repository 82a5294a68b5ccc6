"""Copy closed days of events and usage, ended jobs and metered hours to the archive. Write the tables that are computed
from events, and delete rows that are old and already in the archive.

A Celery task starts this command when there is something to archive or to delete. An operator may start it at any time.
With `--verify`, the command only reads all files of the archive, and reports those that are missing or damaged.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.parquet import UnreadableArchive, read_back
from scheduling.history.archive.store import sha256_of, store
from scheduling.history.infrastore.derived_tables import derive
from scheduling.models import ArchiveFile, ArchiveState
from scheduling.storage.files import FileStore, NotThere, StoreAway


class Command(BaseCommand):
    help = (
        "Archive events, usage, ended jobs and metered hours that are due. Delete files that are too old."
        " It is safe to repeat."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--verify", action="store_true", help="Read all files, and report those that are missing or damaged."
        )

    def handle(self, *args: Any, verify: bool, **options: Any) -> None:
        if verify:
            self._verify()
            return
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

    def _verify(self) -> None:
        """Report the files of the manifest that are missing or damaged. Changes nothing."""
        try:
            files = store()
        except (StoreAway, ValueError) as error:
            raise CommandError(str(error)) from error
        checked = bad = 0
        kept = ArchiveFile.objects.exclude(state=ArchiveState.DELETED)
        for file in kept.select_related("cell").order_by("cell", "table", "first"):
            problem = _problem_of(files, file)
            checked += 1
            # The archiver may have deleted the file meanwhile, and an erasure may have replaced it.
            if problem and kept.filter(pk=file.pk, generation=file.generation).exists():
                self.stderr.write(f"{file.key}: {problem}")
                bad += 1
        if bad:
            raise CommandError(
                f"{bad} of {checked} files of the archive cannot be used; restore the files above from a backup of the"
                " archive"
            )
        self.stdout.write(f"{checked} files of the archive checked; all are whole")


def _problem_of(files: FileStore, file: ArchiveFile) -> str:
    """Return what is wrong with a file of the archive, or "" if its bytes and rows are those that were recorded."""
    try:
        if sha256_of(files, file.key) != file.sha256:
            return "the file is missing, or its bytes are not those that were written"
        with files.local(file.key) as path:
            found = read_back(path)
    except (StoreAway, NotThere, UnreadableArchive) as error:
        return str(error)
    if (found.rows, found.content) != (file.rows, file.content):
        return f"the file has {found.rows:,} rows, and not the {file.rows:,} rows that the manifest states"
    return ""
