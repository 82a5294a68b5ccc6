"""The keys that encrypt the secrets of tenants.

manage.py secrets status        print how many values each key encrypts, and which secrets cannot be decrypted
manage.py secrets rekey         encrypt all values with the newest key; it can be interrupted and repeated

Before `rekey`, all hosts must have the newest key, and their web and link processes must have been restarted with it.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.secrets import rekeying


class Command(BaseCommand):
    help = (
        "Show which keys encrypt the secrets of tenants, or encrypt all with the newest key, which all hosts must have."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("do", choices=["status", "rekey"], help="what to do")

    def handle(self, *args: Any, do: str, **options: Any) -> None:
        if do == "status":
            keys = [asdict(use) for use in rekeying.key_uses()]
            self.stdout.write(json.dumps({"keys": keys, "unreadable": rekeying.unreadable_secrets()}))
            return
        try:
            done = rekeying.rekey(principal=system("secrets"))
        except Rejected as error:
            raise CommandError(error.detail) from error
        self.stdout.write(json.dumps(asdict(done)))
        if done.unreadable:
            raise CommandError(
                f"{len(done.unreadable)} values cannot be decrypted, and stay as they are. Add their keys to"
                " BORG_SECRET_KEYS, or set these secrets again."
            )
