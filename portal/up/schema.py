"""`python -m portal.up.schema FILE`: migrate the database, make what a first start needs, write that to FILE.

One process does both, since loading Django takes longer than either when there is nothing to do. What
`manage.py bootstrap` prints holds secrets, so it goes to a private file and not to a log.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from portal.up.home import write_private


def main(argv: list[str]) -> int:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", interactive=False, verbosity=1)
    printed = io.StringIO()
    call_command("bootstrap", stdout=printed)
    write_private(Path(argv[0]), printed.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
