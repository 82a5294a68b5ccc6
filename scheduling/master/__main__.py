"""`python -m scheduling.master CELL` runs the master of a cell (§3.1). Start it on several hosts: one of the processes
places tasks, and the others are warm standbys.

    python -m scheduling.master dev             the scheduler of cell `dev`, or its scheduler for services
    python -m scheduling.master dev.batch       its scheduler for batch jobs, if `schedulers` is `by-workload`
    python -m scheduling.master dev --release   release the leases of processes of this host that have ended, and exit
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import threading

# A master creates tens of thousands of objects per second, and they form no cycles. With Python's default thresholds,
# the garbage collector takes half of the time of a large commit (DESIGN §3).
_GC_THRESHOLDS = (100_000, 50, 100)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scheduling.master", description="Run the master of a cell.")
    parser.add_argument("name", metavar="CELL", help="name of the cell; CELL.batch for its scheduler of batch jobs")
    parser.add_argument(
        "--release",
        action="store_true",
        help="release the leases of processes of this host that have ended, and exit; standbys then take over at once",
    )
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")
    if options.release:  # without Django's apps, whose start would take 1.2 s, while standbys wait
        from scheduling.master import lease

        lease.release_ended(options.name.partition(".")[0])
        return
    import django

    django.setup()
    from scheduling.master.process import MasterProcess, pulse_file

    process = MasterProcess(options.name, pulse=pulse_file())
    for number in (signal.SIGTERM, signal.SIGINT):
        # In a thread, because `Event.set` in a handler would wait for a lock that the interrupted code may hold.
        signal.signal(number, lambda *_: threading.Thread(target=process.stopping.set, daemon=True).start())
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    process.run()


if __name__ == "__main__":
    main()
