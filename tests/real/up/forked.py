"""A program that tests of the preload process let it fork: `forked describe`, `forked exit STATUS`, `forked sleep`.

The preload process imports modules once and forks the servers.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import uuid
from pathlib import Path

if __name__ == "__main__":
    what, *more = sys.argv[1:]
    if what == "exit":
        sys.exit(int(more[0]))
    if what == "describe":
        found = {
            "parent": os.getppid(),
            "session": os.getsid(0),
            "environment": dict(os.environ),
            "arguments": more,
            "name": Path("/proc/self/comm").read_text().strip(),
            "command": Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode().split("\0"),
            "files": sorted(os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()),
            "threads": threading.active_count(),
            "random": [random.random(), str(uuid.uuid4())],
        }
        print(json.dumps(found), flush=True)
    if what == "sleep":
        print("sleeps", flush=True)
        time.sleep(600)
