"""`manage.py ledger_check`: verify the whole ledger, on a live system too."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from quota.billing.ledger_check import ledger_check


class Command(BaseCommand):
    help = "Verify that the ledger adds up. Changes nothing; fails when anything is wrong."

    def handle(self, *args: Any, **options: Any) -> None:
        wrong = ledger_check()
        for sentence in wrong:
            self.stderr.write(sentence)
        if wrong:
            raise CommandError(f"the ledger does not hold: {len(wrong)} findings")
        self.stdout.write("The ledger holds.")
