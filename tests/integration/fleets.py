"""Simulated machines in processes of their own, which a test can freeze, resume and kill."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from scheduling.machines.joining import join_token_issue
from scheduling.models import Cell, Machine
from tests.integration import rows
from tests.integration.link_world import Link, until

_HEADER = "hostname,platform,cpu_milli,ram_bytes,disk_bytes,rack,power_domain,attributes\n"


class FleetProcess:
    """A process that simulates several machines. They can only freeze, resume or die together."""

    def __init__(self, process: subprocess.Popen[bytes], hostnames: Sequence[str]) -> None:
        self.process, self.hostnames = process, list(hostnames)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP. Its connections stay open, but its machines send nothing any more."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextlib.contextmanager
def fleet(folder: Path, link: Link, cell: Cell, hostnames: Sequence[str]) -> Iterator[FleetProcess]:
    """Start simulated machines with these names in one process. Yield it when all of them are connected to the link."""
    home = folder / hostnames[0]
    listed = folder / f"{hostnames[0]}.csv"
    listed.write_text(_HEADER + "".join(f"{name},x86,8000,{2**34},{2**37},r-{name},p-{name},\n" for name in hostnames))
    argv = [
        *(sys.executable, "-m", "borglet", "fleet", "--home", str(home), "--file", str(listed)),
        *("--link", f"https://127.0.0.1:{link.port}"),
        *("--join-token", join_token_issue(principal=rows.ME, cell=cell, uses=len(hostnames))),
    ]
    with (folder / f"{hostnames[0]}.log").open("ab") as output:
        process = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        there = Machine.objects.filter(cell=cell, hostname__in=hostnames, session__gt=0)
        until(lambda: there.count() == len(hostnames), seconds=40, what=f"{hostnames[0]} and others connected")
        yield FleetProcess(process, hostnames)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
