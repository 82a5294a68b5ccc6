"""Create and delete study cells: copies of cells at one moment, which nobody can change."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.history.studies.deletion import study_delete
from scheduling.history.studies.studies import Study, study_import, study_restore
from scheduling.models import Cell


class Command(BaseCommand):
    help = "Create a study cell (a copy of a cell at one moment, or of a checkpoint), or delete a study cell."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        restore = actions.add_parser(
            "restore", help="Create a study cell: a copy of the state of a cell at one moment."
        )
        restore.add_argument("cell")
        at = restore.add_mutually_exclusive_group(required=True)
        at.add_argument("--revision", type=int)
        at.add_argument("--time", type=time_with_zone, help="Time with a zone, such as 2026-11-21T20:15Z.")
        opened = actions.add_parser(
            "import", help="Create a study cell: a copy of the cell in the file of a checkpoint."
        )
        opened.add_argument("file", type=Path)
        for one in (restore, opened):
            one.add_argument("--into", required=True, help="Name of the study cell (a copy of a cell).")
            one.add_argument("--dry-run", action="store_true", help="Do everything, and roll it back.")
            one.add_argument("--json", action="store_true", help="Print the result or the rejection as JSON.")
        gone = actions.add_parser("delete", help="Delete a study cell (a copy of a cell).")
        gone.add_argument("cell")
        for one in (restore, opened, gone):
            one.add_argument("--actor", default="system:study", help="Author of the change.")
            one.add_argument("--request", default="", help="Id of the request, for the journal.")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        principal = Principal(options["actor"], request_id=options["request"], sre=True)
        try:
            if action == "delete":
                study_delete(principal=principal, cell=cell_named(options["cell"]))
                return
            study = self._create(principal, action, options)
        except Rejected as rejection:
            if not options.get("json"):
                raise CommandError(rejection.detail) from rejection
            names = ("code", "detail", "fields", "figures", "status")
            self.stdout.write(msgspec.json.encode({name: getattr(rejection, name) for name in names}).decode())
            return
        facts = document(study)
        if options["json"]:
            self.stdout.write(msgspec.json.encode(facts).decode())
        else:
            self.stdout.write(", ".join(f"{name}: {value}" for name, value in facts.items()))

    def _create(self, principal: Principal, action: str, options: dict[str, Any]) -> Study:
        common = {"principal": principal, "into": options["into"], "dry_run": options["dry_run"]}
        if action == "restore":
            cell = cell_named(options["cell"])
            return study_restore(cell=cell, revision=options["revision"], time=options["time"], **common)
        try:
            with options["file"].open("rb") as source:
                return study_import(source=source, **common)
        except OSError as error:
            raise CommandError(
                f"Cannot read {options['file']}: {error.strerror}. Check the path of the checkpoint."
            ) from error


def document(study: Study) -> dict[str, Any]:
    """Return the values of a study cell that the command prints as JSON."""
    origin = study.cell.study_of or {}
    return {
        "cell": study.cell.name,
        "of": origin["cell"],
        "revision": origin["revision"],
        "redacted": origin["redacted"],
        "machines": study.machines,
        "jobs": study.jobs,
        "tasks": study.tasks,
        "made_specs": study.made_specs,
    }


def time_with_zone(text: str) -> dt.datetime:
    """Return the time that `text` stands for. Raises `ValueError` if it is not a time with a zone."""
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text} has no time zone; write it like 2026-11-21T20:15Z")
    return moment


def cell_named(name: str) -> Cell:
    """Return a cell. Raises `CommandError` if there is none of this name."""
    found = Cell.objects.filter(name=name).first()
    if found is None:
        raise CommandError(f"There is no cell {name!r}. Check the name.")
    return found
