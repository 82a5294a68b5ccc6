"""The keys that encrypt the secrets of tenants, and values that look like secrets in stored specs.

manage.py secrets status        print how many values each key encrypts, and which secrets cannot be decrypted
manage.py secrets rekey         encrypt all values with the newest key; it can be interrupted and repeated
manage.py secrets erase-env     erase values in `env` that look like secrets from specs that nothing uses any more;
                                --tenant TEAM only those of one tenant, --dry-run only counts them

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
from scheduling.history.erasure.env_values import env_values_erase
from scheduling.secrets import rekeying


class Command(BaseCommand):
    help = (
        "Show which keys encrypt the secrets of tenants. Or encrypt all secrets with the newest key; all hosts must"
        " have it. Or erase values in `env` that look like secrets, in specs that nothing uses any more."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("do", choices=["status", "rekey", "erase-env"], help="what to do")
        parser.add_argument("--tenant", default="", help="only with erase-env: erase only values of this tenant")
        parser.add_argument("--dry-run", action="store_true", help="only with erase-env: only count the values")

    def handle(self, *args: Any, do: str, tenant: str = "", dry_run: bool = False, **options: Any) -> None:
        if do == "erase-env":
            return self._erase(tenant, dry_run=dry_run)
        if tenant or dry_run:
            raise CommandError("--tenant and --dry-run belong to erase-env. Leave them out.")
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

    def _erase(self, tenant: str, *, dry_run: bool) -> None:
        try:
            done = env_values_erase(principal=system("secrets"), tenant=tenant, dry_run=dry_run)
        except Rejected as error:
            raise CommandError(error.detail) from error
        self.stdout.write(json.dumps({**asdict(done), "dry_run": dry_run}))
