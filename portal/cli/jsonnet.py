"""Converts a Jsonnet program to JSON. The conversion runs in a separate process, and the kernel limits the CPU time and
memory of this process.

A Jsonnet program may run forever or fill the memory, and neither Ctrl-C nor a timer can interrupt the Jsonnet library.
The separate process executes this file as its program.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

CPU_S = 1  # job files need milliseconds; a program that never ends is rejected soon
MEMORY_BYTES = 2**30
MAX_RESULT_BYTES = 4 * 2**20  # the same limit as for a job file
LIBRARY = Path(__file__).resolve().parent
_FAILED = 3


class JsonnetError(Exception):
    """The error if a Jsonnet program cannot be evaluated. The message comes from the Jsonnet library, or says which
    limit was exceeded.
    """


def evaluate(name: str, text: str, *, folder: Path, cpu_s: int = CPU_S) -> str:
    """Return the result of the Jsonnet program `text` as JSON. `name`: the file name in error messages. `folder`: the
    folder in which imported files are searched first. Imported files must be in it or below it, or in the library, so
    that a job file of somebody else cannot read other files of the user.

    Raises `JsonnetError` if the program has an error or uses more than `cpu_s` seconds of CPU.
    """
    done = subprocess.run(
        [sys.executable, "-P", __file__, name, str(folder), str(cpu_s)],
        input=text.encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout.decode()
    if done.returncode == _FAILED:
        raise JsonnetError(done.stderr.decode(errors="replace"))
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise JsonnetError(
            f"the Jsonnet program used more than {cpu_s} s of CPU; look for an infinite recursion, or convert the file"
            " with the program jsonnet, and submit the result"
        )
    raise JsonnetError(f"the Jsonnet program used more than {MEMORY_BYTES >> 20} MiB of memory; reduce its result")


def _main(name: str, folder: Path, cpu_s: int) -> int:
    import _jsonnet

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    allowed = (folder.resolve(), LIBRARY)

    def find(base: str, wanted: str) -> tuple[str, bytes]:
        for place in (Path(base) if base else folder, folder, LIBRARY):
            candidate = place / wanted
            if candidate.is_file():
                if not any(candidate.resolve().is_relative_to(parent) for parent in allowed):
                    raise RuntimeError("the imported file is outside of the folder of the job file; move it there")
                return str(candidate), candidate.read_bytes()
        raise RuntimeError("the imported file is neither beside the job file nor in the library; check its name")

    try:
        made = _jsonnet.evaluate_snippet(name, sys.stdin.buffer.read().decode(), import_callback=find).encode()
    except RuntimeError as error:
        sys.stderr.buffer.write(str(error).encode())
        return _FAILED
    if len(made) > MAX_RESULT_BYTES:
        sys.stderr.write(f"the result has {len(made)} bytes; reduce it to at most {MAX_RESULT_BYTES} bytes")
        return _FAILED
    sys.stdout.buffer.write(made)
    return 0


if __name__ == "__main__":
    code = _main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # does not free the memory of the library, which takes time
