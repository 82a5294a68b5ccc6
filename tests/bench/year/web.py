"""The web process of the simulated year: `portal.web` with the clock in the file `BENCH_CLOCK`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.bench.year.clock import Clock

if __name__ == "__main__":
    Clock(Path(os.environ["BENCH_CLOCK"])).follow()
    from portal.web import main

    sys.exit(main())
