"""`python -m tests.integration.killed_submission CELL [STEP]`: submit the due runs of a cell, and end with SIGKILL at
the step STEP.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    import django

    django.setup()
    from scheduling.cron import due_runs

    cell, *until = sys.argv[1:]

    def reached(step: str) -> None:
        if [step] == until:
            os.kill(os.getpid(), signal.SIGKILL)

    due_runs.runs_submit_due(int(cell), reached=reached)
