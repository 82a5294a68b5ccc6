"""Record a simulated week as the history of a new study cell (a cell that nobody can change), so that pages, SQL and
statistics can be tried.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.recording.record import record
from scheduling.recording.requests import DAYS, DRAWN, MACHINES, SEED, Wish
from scheduling.simulator.sessions.sources import TRACES


class Command(BaseCommand):
    help = "Record a simulated week as the history of a new study cell, which nobody can change. Nothing is charged."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("cell", help="Name of the new cell.")
        parser.add_argument("--source", choices=sorted(TRACES), default=DRAWN)
        parser.add_argument("--data", type=Path, help="Folder with the files of the trace; `drawn` needs none.")
        parser.add_argument("--machines", type=int, default=MACHINES, help="Number of randomly generated machines.")
        parser.add_argument("--days", type=float, default=DAYS)
        parser.add_argument("--seed", type=int, default=SEED)

    def handle(self, *args: Any, cell: str, **options: Any) -> None:
        given = {name: options[name] for name in ("source", "data", "machines", "days", "seed")}
        try:
            done = record(principal=system("record"), wish=Wish(name=cell, **given), now=timezone.now())
        except Rejected as error:
            raise CommandError(error.detail) from error
        except (ValueError, FileNotFoundError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(json.dumps(asdict(done)))
