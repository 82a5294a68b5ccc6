"""Show the TLS certificate authority of the cells, or replace it without disconnecting any machine."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.identity import authority_rotation
from scheduling.identity.authority import AuthorityBroken

ME = system("authority")


class Command(BaseCommand):
    help = "Show the TLS authority of the cells, or replace it in three steps: stage, switch, retire."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("step", choices=["show", "stage", "switch", "retire"])
        parser.add_argument(
            "--certificate", type=Path, help="with `stage`: the file with the certificate of your own authority"
        )
        parser.add_argument(
            "--key", type=Path, help="with `stage`: the file with the private key of your own authority"
        )
        parser.add_argument(
            "--leave-behind",
            action="store_true",
            help="with `switch`: switch even if some machines do not trust the new authority yet",
        )

    def handle(self, *args: Any, step: str, **options: Any) -> None:
        try:
            if step == "stage":
                authority_rotation.stage(principal=ME, certificate=options["certificate"], key=options["key"])
            elif step == "switch":
                authority_rotation.switch(principal=ME, leave_behind=options["leave_behind"])
            elif step == "retire":
                authority_rotation.retire(principal=ME)
            self._show(authority_rotation.standing())
        except (Rejected, AuthorityBroken) as error:
            raise CommandError(str(error)) from error

    def _show(self, standing: authority_rotation.RotationProgress) -> None:
        for part, (fingerprint, until) in standing.part.items():
            self.stdout.write(f"{part:<5} {fingerprint}  until {until:%Y-%m-%d}")
        trusting = standing.machines - len(standing.behind)
        self.stdout.write(f"{trusting} of {standing.machines} machines trust these certificates")
        if standing.behind:
            self.stdout.write("machines that do not trust all of them yet: " + ", ".join(standing.behind[:20]))
