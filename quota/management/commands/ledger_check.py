"""`manage.py ledger_check`: check the whole ledger, even while the system runs."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from quota.billing.ledger_check import ledger_check


class Command(BaseCommand):
    help = "Verify the ledger. The command changes nothing, and fails if it finds an error."

    def handle(self, *args: Any, **options: Any) -> None:
        wrong = ledger_check()
        for sentence in wrong:
            self.stderr.write(sentence)
        if wrong:
            raise CommandError(
                f"the ledger has {len(wrong)} errors, which the lines above describe; report them as a bug"
            )
        self.stdout.write("The ledger has no errors.")
