"""Set a cell back to an earlier moment, in place. A dry run shows what would be lost."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError

from portal.management.commands.study import cell_named, time_with_zone
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.history.restoring.restoring import cell_restore


class Command(BaseCommand):
    help = "Set a cell back to an earlier moment, in place. Begin with --dry-run, which shows what would be lost."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cell")
        at = parser.add_mutually_exclusive_group(required=True)
        at.add_argument("--revision", type=int)
        at.add_argument("--time", type=time_with_zone, help="Time with a zone, such as 2026-11-21T20:15Z.")
        parser.add_argument("--if-revision", type=int, help="The revision that the dry run showed.")
        parser.add_argument("--dry-run", action="store_true", help="Do everything, and roll it back.")
        parser.add_argument("--json", action="store_true", help="Print a rejection as JSON too.")
        parser.add_argument("--actor", default="system:restore", help="Author of the change.")
        parser.add_argument("--request", default="", help="Id of the request, for the journal.")

    def handle(self, *args: Any, cell: str, **options: Any) -> None:
        names = ("revision", "time", "if_revision", "dry_run")
        try:
            done = cell_restore(
                principal=Principal(options["actor"], request_id=options["request"], sre=True),
                cell=cell_named(cell),
                **{name: options[name] for name in names},
            )
        except Rejected as rejection:
            if not options["json"]:
                raise CommandError(rejection.detail) from rejection
            facts = ("code", "detail", "fields", "figures", "status")
            self.stdout.write(msgspec.json.encode({name: getattr(rejection, name) for name in facts}).decode())
            return
        text = msgspec.json.encode(done)
        self.stdout.write((text if options["json"] else msgspec.json.format(text)).decode())
