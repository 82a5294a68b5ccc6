"""Where the cell is and who one is: `client.toml`, written by `make up` and by `borgctl login`.

default_profile = "demo"
url = "http://127.0.0.1:8000"
cell = "dev"
[profiles.demo]
token = "borg_…"
tenant = "demo"        # any of url, cell, tenant may stand here or above
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal.cli.failure import Failed


@dataclass(frozen=True, slots=True)
class Profile:
    """One way of talking to a portal. Empty strings where the file says nothing."""

    name: str
    url: str
    token: str = ""
    cell: str = ""
    tenant: str = ""


def path() -> Path:
    """`$BORG_CLIENT`; else client.toml in `$BORG_HOME`, in ./.borg, or in the user's configuration folder."""
    if given := os.environ.get("BORG_CLIENT"):
        return Path(given)
    if home := os.environ.get("BORG_HOME"):
        return Path(home) / "client.toml"
    here = Path(".borg") / "client.toml"
    return here if here.exists() else _user_folder() / "client.toml"


def load(name: str | None = None) -> Profile:
    """The profile of that name, of `$BORG_PROFILE`, or the file's default. Raises `Failed`."""
    file = path()
    table = _read(file)
    wanted = name or os.environ.get("BORG_PROFILE") or table.get("default_profile", "default")
    profiles = table.get("profiles", {})
    url = os.environ.get("BORG_URL")
    if wanted not in profiles and not url:
        known = ", ".join(sorted(profiles)) or "none"
        raise Failed(
            "no-profile",
            f"there is no profile {wanted!r} in {file} (there: {known}). "
            "Start a portal with `make up`, or sign in with `borgctl login --url URL`.",
        )
    entry = {**{k: v for k, v in table.items() if isinstance(v, str)}, **profiles.get(wanted, {})}
    return Profile(
        name=wanted,
        url=(url or entry.get("url", "")).rstrip("/"),
        token=os.environ.get("BORG_TOKEN") or entry.get("token", ""),
        cell=os.environ.get("BORG_CELL") or entry.get("cell", ""),
        tenant=os.environ.get("BORG_TENANT") or entry.get("tenant", ""),
    )


def save(profile: Profile) -> Path:
    """Add or replace one profile and make it the default, keeping the others. Mode 0600, atomically."""
    file = path()
    table = _read(file) if file.exists() else {}
    profiles = dict(table.get("profiles", {}))
    entry = {"url": profile.url, "token": profile.token, "cell": profile.cell, "tenant": profile.tenant}
    profiles[profile.name] = {key: value for key, value in entry.items() if value}
    lines = [f"{key} = {_quoted(value)}" for key, value in table.items() if isinstance(value, str)]
    lines = [line for line in lines if not line.startswith("default_profile ")]
    lines.insert(0, f"default_profile = {_quoted(profile.name)}")
    for name, values in sorted(profiles.items()):
        lines += ["", f"[profiles.{_quoted(name)}]"]
        lines += [f"{key} = {_quoted(value)}" for key, value in values.items()]
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write("\n".join(lines) + "\n")
    fresh.replace(file)
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Failed("bad-profile-file", f"{file}: {error}") from error


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "borg"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
