"""`python -m portal.up.schema FILE CELL…`: migrate the database, create the cells, a tenant and users if they are
missing, and write the generated secrets to FILE.

The output of `manage.py bootstrap` contains secrets that are stored nowhere else. So the output is written to a private
file instead of a log. The file is on disk before the transaction commits.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from portal.up.home import write_private

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def main(argv: list[str]) -> int:
    """Migrate the database, and create the cells, a tenant and users if they are missing. Return the exit status."""
    import django
    from django.core.management import call_command
    from django.db import connection, transaction

    django.setup()
    if unknown := migrations_of_later(connection):
        print(
            f"Cannot use this database: a newer version migrated it, and this version does not have {unknown[0]}. Use "
            "the newer version, or restore an earlier backup into another BORG_HOME with make restore.",
            file=sys.stderr,
        )
        return 1
    call_command("migrate", interactive=False, verbosity=1)
    printed = io.StringIO()
    with transaction.atomic():
        call_command("bootstrap", cells=argv[1:], stdout=printed)
        write_private(Path(argv[0]), printed.getvalue())
    return 0


def migrations_of_later(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the migrations in the database that this version of the portal does not have, sorted, as `app.name`."""
    from django.db.migrations.loader import MigrationLoader

    loader = MigrationLoader(connection, ignore_no_migrations=True)
    squashed = loader.replacements.values()
    known = {*loader.disk_migrations, *(each for migration in squashed for each in migration.replaces)}
    applied = loader.applied_migrations or {}
    return sorted(f"{app}.{name}" for app, name in applied if app in loader.migrated_apps and (app, name) not in known)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
