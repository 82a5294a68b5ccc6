"""`python -m scheduling.link` starts one link shard: a server to which Borglets connect (§3.3). Any number of shards
can serve the same cells.

Settings: BORG_LINK_HOST, BORG_LINK_PORT, BORG_LINK_URL, BORG_AUTHORITY, BORG_CELLS, BORG_ZONE.
"""

from __future__ import annotations

import gc
import os
import sys

SWITCH_S = 0.0005


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")
    import django

    django.setup()
    from scheduling.identity.authority import AuthorityBroken
    from scheduling.link.server import make_server

    try:
        server = make_server()
    except AuthorityBroken as error:
        sys.exit(f"cannot start the link shard: {error}")
    # A shard holds many long-lived objects. The garbage collector should rarely look at them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    # The event loop needs the interpreter's lock again after each system call. It should not wait long for the database
    # thread, which computes while many machines connect.
    sys.setswitchinterval(SWITCH_S)
    server.run()


if __name__ == "__main__":
    main()
