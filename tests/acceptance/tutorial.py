"""Helpers that run the commands of `docs/tutorial.md` as a reader would type them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.acceptance.installation import ROOT, Failed, Installation

TUTORIAL = ROOT / "docs" / "tutorial.md"
COMMAND_S = 120.0


def commands() -> list[str]:
    """Return the commands in the console blocks of the tutorial: the lines that begin with `$`, without it."""
    blocks = re.findall(r"^```console\n(.*?)^```", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def folder_of_a_reader(folder: Path) -> Path:
    """Create a folder with links to the examples and to this Python's virtual environment, and return it."""
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def run(command: str, folder: Path, installation: Installation) -> str:
    """Run one command in the folder, and return its output. Raises `Failed` if its exit status is not 0.

    The port of the resolver in the tutorial, 5353, is replaced by that of the installation.
    """
    typed = command.replace("-p 5353", f"-p {installation.dns_port}")
    environment = installation.environment()
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", typed],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"`{command}` ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout
