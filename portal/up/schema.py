"""`python -m portal.up.schema FILE`: migrate the database, make what a first start needs, write that to FILE.

One process does both, since loading Django takes longer than either when there is nothing to do. What
`manage.py bootstrap` prints holds secrets that are kept nowhere else: they go to a private file and not to a
log, and the file is on disk before the transaction that made them commits.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from portal.up.home import write_private


def main(argv: list[str]) -> int:
    import django
    from django.core.management import call_command
    from django.db import transaction

    django.setup()
    call_command("migrate", interactive=False, verbosity=1)
    printed = io.StringIO()
    with transaction.atomic():
        call_command("bootstrap", stdout=printed)
        write_private(Path(argv[0]), printed.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
