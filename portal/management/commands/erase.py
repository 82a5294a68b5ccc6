"""Erase a person or a tenant from the history: the journal, the archive and checkpoints.

    manage.py erase --user ann --dry-run        print how many rows and files contain the name
    manage.py erase --tenant ads

If the command is interrupted, start it again with the same name.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.history.archive.archiver import ArchiveFailed
from scheduling.history.archive.parquet import UnreadableArchive
from scheduling.history.archive.store import store
from scheduling.history.erasure.erasing import Eraser
from scheduling.history.erasure.identities import IdentityKind
from scheduling.storage.files import NotThere, StoreAway


class Command(BaseCommand):
    help = "Replace a person or a tenant in the history by a random pseudonym. Accounts, quota and invoices stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        named = parser.add_mutually_exclusive_group(required=True)
        named.add_argument("--user", default="", help="user name of a person or of a service account")
        named.add_argument("--tenant", default="", help="name of a tenant without live jobs")
        parser.add_argument("--dry-run", action="store_true", help="only print how much contains the name")

    def handle(self, *args: Any, user: str, tenant: str, dry_run: bool, **options: Any) -> None:
        kind, name = (IdentityKind.TENANT, tenant) if tenant else (IdentityKind.PERSON, user)
        if not name:
            raise CommandError("The name to erase is empty. Give the name of a user or of a tenant.")
        eraser, principal = Eraser(store()), system("erase")
        try:
            if dry_run:
                found = eraser.preview(kind, name, principal=principal)
            else:
                found = eraser.erase(kind, name, principal=principal, now=timezone.now())
        except (Rejected, ArchiveFailed, UnreadableArchive, StoreAway, NotThere, ValueError) as error:
            raise CommandError(f"Cannot erase {kind.value} {name}: {error}") from error
        self.stdout.write(json.dumps(asdict(found)))
