"""`python -m tests.deployment.tools`: check the files in `deploy/` with the tools that read them (`make deploy-check`).

Compose is checked by `docker-compose config`, the chart by Helm's own library and by the JSON schemas of Kubernetes,
scripts by ShellCheck, and units by `systemd-analyze verify`. Docker and Kubernetes are not needed. Nothing is started.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint

ROOT = Path(__file__).parents[2]
HA = ROOT / "deploy" / "ha"
_BIN = Path(sys.executable).parent
_KUBERNETES = "1.30"


def compose(folder: Path) -> None:
    """Read the Compose file of a control host, with the settings that `prepare.py` writes, and that of one host."""
    prepared = folder / "prepared"
    script = [str(ROOT / ".venv" / "bin" / "python"), str(HA / "prepare.py"), "--url", "https://borg.test"]
    subprocess.run([*script, "--out", str(prepared), "c1=192.0.2.1", "c2=192.0.2.2", "c3=192.0.2.3"], check=True)
    (prepared / "host.env").write_bytes((prepared / "host.c1.env").read_bytes())
    text = (HA / "compose.yaml").read_text().replace("path: /etc/borg/", f"path: {prepared}/")
    text = text.replace("path: etc/", f"path: {HA}/etc/").replace("context: ../..", f"context: {ROOT}")
    (folder / "compose.yaml").write_text(text)
    environment = {"BORG_SECRET_KEY": "x", "POSTGRES_PASSWORD": "x"}
    for path in (folder / "compose.yaml", ROOT / "deploy" / "compose" / "compose.yaml"):
        subprocess.run([_BIN / "docker-compose", "-f", path, "config", "--quiet"], env=environment, check=True)


def chart() -> None:
    """Render the chart, and validate each object."""
    found = lint(HA / "chart", strict=True)
    assert not found["errors"], found
    with Chart.load(HA / "chart") as loaded:
        rendered = loaded.render(values={"cells": ["dev", "prod"]}, name="borg")
    for text in rendered.values():
        for document in filter(None, yaml.safe_load_all(text)):
            kubernetes_validate.validate(document, _KUBERNETES, strict=True)


def scripts() -> None:
    paths = [*(HA / "bin").iterdir(), *HA.glob("install-*")]
    subprocess.run([_BIN / "shellcheck", *paths], check=True)


def units(folder: Path) -> None:
    """Verify the units, with programs that exist here."""
    verified = folder / "units"
    for path in (*(ROOT / "deploy" / "systemd").glob("borg*"), *(HA / "systemd").glob("borg*")):
        verified.mkdir(exist_ok=True)
        (verified / path.name).write_text(re.sub(r"/opt/borg/\S+", "/bin/true", path.read_text()))
        if path.suffix == ".service" and path.stem != "borg-borglet":
            added = verified / f"{path.name}.d"
            added.mkdir()
            (added / "ha.conf").write_bytes((HA / "systemd" / "ha.conf").read_bytes())
    command = [
        "systemd-analyze",
        "verify",
        *sorted(path for path in verified.iterdir() if path.is_file() and path.suffix != ".env"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr  # an unknown key is only a warning


def main() -> int:
    with tempfile.TemporaryDirectory() as made:
        compose(Path(made))
        chart()
        scripts()
        units(Path(made))
    print("deploy/ is as Compose, Helm, Kubernetes, ShellCheck and systemd expect it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
