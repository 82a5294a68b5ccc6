"""Control hosts as Linux namespaces with the files that `install-control-host` installs, in the same places.

Each host sees a file system of its own at the places that the units use: /etc, /opt/borg, /run, /srv, /var/lib and
/usr/lib/postgresql. So the shipped files run unchanged, as the users that the units name.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.deployment import units
from tests.ha.network import Host
from tests.ha.services import Service

ROOT = units.ROOT
# The accounts that Debian's packages and the installer create.
_ACCOUNTS = ("postgres", "etcd", "redis", "haproxy", "borg")
_INSTALL = r"""
set -eu
mkdir -p "$1/etc" "$1/etc.work" "$1/lib" "$1/run"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/etc.work" /etc
for each in borg-engines $4; do getent group $each >/dev/null || groupadd --system $each; done
for each in $4; do id -u $each >/dev/null 2>&1 || useradd --system --gid $each --no-create-home $each; done
# Python may be below /root, which other users may not enter.
mkdir -p "$1/run/home"
if [ -d /root/.pyenv ]; then
    mkdir "$1/run/pyenv"; mount --bind /root/.pyenv "$1/run/pyenv"
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir /root/.pyenv; mount --bind "$1/run/pyenv" /root/.pyenv
fi
mount -t tmpfs -o mode=755 tmpfs /opt; mkdir /opt/borg; mount --bind "$5" /opt/borg
mkdir -p /usr/lib/postgresql; mount -t tmpfs -o mode=755 tmpfs /usr/lib/postgresql
mkdir /usr/lib/postgresql/18; mount --bind "$6" /usr/lib/postgresql/18
mount --bind "$1/lib" /var/lib
mount -t tmpfs -o mode=755 tmpfs /srv; mkdir /srv/borg; mount --bind "$3/srv" /srv/borg
mount --bind "$1/run" /run

# As install-control-host does after it has installed packages.
/opt/borg/deploy/ha/bin/install-settings "$2" "$3/prepared" borg borg-engines postgres
"""


@dataclass(frozen=True)
class Installed:
    """A control host. `folder`: its own files, and its logs."""

    host: Host
    folder: Path

    def service(self, unit: units.Unit, instance: str = "") -> Service:
        """Return a service that runs the command of a unit, as its user and with its folders and variables."""
        user = unit.one("User", "root")
        groups = " ".join((user, *unit.values.get("SupplementaryGroups", ())))
        folders = [f"/var/lib/{name}" for name in unit.values.get("StateDirectory", ())]
        folders += [f"/run/{name}" for name in unit.values.get("RuntimeDirectory", ())]
        setup = [f"install -d -o {user} -g {user} -m {unit.one('StateDirectoryMode', '0755')} {one}" for one in folders]
        ids = f"$(for each in {groups}; do getent group $each | cut -d: -f3; done | paste -sd,)"
        # Ports below 1024 as with AmbientCapabilities.
        bind = "CAP_NET_BIND_SERVICE" in unit.one("AmbientCapabilities")
        caps = "--inh-caps +net_bind_service --ambient-caps +net_bind_service" if bind else ""
        run = f'exec setpriv --reuid {user} --regid {user} --groups "{ids}" {caps} -- "$@"'
        env = {"HOME": f"/var/lib/{user}", "LC_ALL": "C"}
        for path in unit.values.get("EnvironmentFile", ()):
            env |= units.environment_file(self.path(path))
        argv = [part.replace("%i", instance).replace("%h", self.host.name) for part in unit.command]
        name = unit.name + instance
        return Service(
            self.host,
            name,
            [
                "sh",
                "-ec",
                "; ".join(["umask 077", *setup, f"cd {unit.one('WorkingDirectory', '/')}", run]),
                name,
                *argv,
            ],
            self.folder / f"{name}.log",
            env=env,
            restart_s=float(re.sub(r"\D", "", unit.one("RestartSec", "1"))),
            also="postgres" if name == "borg-postgres" else "",
        )

    def path(self, path: str) -> Path:
        """Return the path, as this test sees it, of a file of the host in /etc, /var/lib or /opt/borg."""
        if path.startswith("/opt/borg/"):
            return ROOT / path.removeprefix("/opt/borg/")
        return self.folder / path.removeprefix("/").removeprefix("var/")

    def run(self, user: str, *argv: str, timeout: float = 600.0) -> str:
        """Run a command of the host as a user, with the variables that the user's processes have. Return its output."""
        env = {"PATH": "/usr/lib/postgresql/18/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp", "LC_ALL": "C"}
        env |= units.environment_file(self.path("/etc/borg/borg.env" if user == "borg" else "/etc/borg/host.env"))
        wrapped = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", "--", *argv]
        done = subprocess.run(
            self.host.inside.command(*wrapped),
            env=env,
            cwd="/",
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            errors = done.stderr.strip()[-3000:]
            raise RuntimeError(f"{argv[0]} on {self.host.name} ended with {done.returncode}: {errors}")
        return done.stdout.strip()


def install(host: Host, folder: Path, shared: Path, postgres: Path) -> Installed:
    """Install the files of a control host. `shared`: a folder with what `prepare.py` wrote, and with the folder `srv`
    that all hosts share. `postgres`: a folder with PostgreSQL 18 that speaks TLS.
    """
    folder.mkdir(mode=0o755)
    script = ("sh", "-c", _INSTALL, "install", str(folder), host.name, str(shared), " ".join(_ACCOUNTS), str(ROOT))
    host.inside.run(*script, str(postgres))
    return Installed(host, folder)
