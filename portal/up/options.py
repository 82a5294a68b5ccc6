"""The options of `make up`, read from the environment and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from portal.settings import checks

DEFAULT_CELL = "dev"
TENANT = "demo"
_LARGEST_FLEET = 100_000
_MOST_STANDBYS = 4
_MOST_CELLS = 10
_FLEET_CURE = "write MACHINES=simulated:100 or MACHINES=simulated:FILE.csv"


class OptionError(ValueError):
    """The error for an invalid setting. The message names the setting and says what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one `make up`. `host`: address of all servers. `hostname`: name of this machine in the cell.

    `cells`: the names of the cells. The Borglet of this host joins the first one, and `borgctl` uses it by default.
    `standbys`: number of warm standby masters per cell. `fleet`: an option and its value for the command `borglet
    fleet`, which simulates more machines in each cell; None: no fleet.
    """

    home: Path
    host: str
    port: int
    dns_port: int
    link_port: int
    zone: str
    hostname: str
    fleet: tuple[str, str] | None
    standbys: int
    cells: tuple[str, ...] = (DEFAULT_CELL,)

    @property
    def cell(self) -> str:
        """Return the first cell."""
        return self.cells[0]

    @property
    def portal_url(self) -> str:
        """Return the URL of the web process."""
        return f"http://{self.host}:{self.port}"

    @property
    def ports(self) -> dict[str, int]:
        """Return the port numbers. The keys are the names of the settings, such as `DNS_PORT`."""
        return {"PORT": self.port, "DNS_PORT": self.dns_port, "LINK_PORT": self.link_port}

    @property
    def link_url(self) -> str:
        """Return the URL of the link, the server to which Borglets connect."""
        return f"https://{self.host}:{self.link_port}"

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Options:
        """Read the options from the environment. Raises `OptionError` if an option is not valid."""
        options = cls(
            home=Path(env.get("BORG_HOME") or ".borg").resolve(),
            host="127.0.0.1",
            port=_port(env, "PORT", 8000),
            dns_port=_port(env, "DNS_PORT", 5353),
            link_port=_port(env, "LINK_PORT", 8443),
            zone=env.get("BORG_ZONE") or "borg.internal",
            hostname=_label(env.get("BORGLET_HOSTNAME") or os.uname().nodename),
            fleet=_fleet(env.get("MACHINES") or ""),
            standbys=_standbys(env.get("STANDBYS") or "0"),
            cells=_cells(env.get("CELLS") or DEFAULT_CELL),
        )
        # DNS listens on TCP too, so the three ports must differ.
        if len(set(options.ports.values())) < len(options.ports):
            story = ", ".join(f"{name}={port}" for name, port in options.ports.items())
            raise OptionError(f"{story}: the three ports must differ; change one of them")
        return options


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if wrong := checks.port(text):
        raise OptionError(f"{name}={text!r}: {wrong}, for example {name}={default}")
    return int(text)


def _label(nodename: str) -> str:
    """Return the name of a host, changed so that it is a valid DNS label."""
    label = re.sub(r"[^a-z0-9-]+", "-", nodename.partition(".")[0].lower())[:63].strip("-")
    return label or "localhost"


def _standbys(text: str) -> int:
    if wrong := checks.number(0, _MOST_STANDBYS)(text):
        raise OptionError(f"STANDBYS={text!r}: {wrong}, for example STANDBYS=1")
    return int(text)


def _cells(text: str) -> tuple[str, ...]:
    cells = tuple(name.strip() for name in text.split(","))
    cure = "for example CELLS=dev,prod"
    for name in cells:
        if wrong := checks.label(name):
            raise OptionError(f"CELLS={text!r}: {name!r} is not the name of a cell: {wrong}; {cure}")
    if len(set(cells)) < len(cells):
        raise OptionError(f"CELLS={text!r}: a cell is named twice; {cure}")
    if len(cells) > _MOST_CELLS:
        raise OptionError(f"CELLS={text!r}: {len(cells)} cells are too many; give at most {_MOST_CELLS}")
    return cells


def _fleet(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    kind, _, what = text.partition(":")
    if kind != "simulated" or not what:
        raise OptionError(f"MACHINES={text!r}: the value does not begin with simulated:; {_FLEET_CURE}")
    if what.isascii() and what.isdigit():
        if wrong := checks.number(1, _LARGEST_FLEET)(what):
            raise OptionError(f"MACHINES={text!r}: the number of machines is not valid: {wrong}")
        return "--machines", what
    file = Path(what).resolve()
    if not file.is_file():
        raise OptionError(
            f"MACHINES={text!r}: {what} is neither a number of machines nor a file ({file}); {_FLEET_CURE}"
        )
    return "--file", str(file)
