"""Remove the second factors of people and end their sessions, without an SRE who can sign in.

manage.py reset_sign_in ann             ann has lost her app, passkeys and recovery codes
manage.py reset_sign_in ann --unlink    ann no longer comes from the identity provider
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from quota.tenancy.authentication import user_named
from quota.tenancy.provider_accounts import provider_unlink
from quota.tenancy.second_factor import second_factors_remove
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import system

ME = system("reset-sign-in")


class Command(BaseCommand):
    help = "Remove the second factors of people, and end their sessions. Passwords and tokens stay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="+", metavar="NAME", help="user name of a person")
        parser.add_argument(
            "--unlink",
            action="store_true",
            help="also separate the accounts from the identity provider; then set passwords with `changepassword`",
        )

    def handle(self, *args: Any, names: list[str], unlink: bool, **options: Any) -> None:
        try:
            users = [user_named(name) for name in names]
        except NotFound as error:
            raise CommandError(f"{error}. Give user names; nothing was changed.") from error
        with transaction.atomic():
            removed = second_factors_remove(principal=ME, users=users)
            unlinked = provider_unlink(principal=ME, users=users) if unlink else 0
        self.stdout.write(f"second factors removed: {removed}, accounts separated from the provider: {unlinked}")
