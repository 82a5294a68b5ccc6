"""Profiles of borgctl. A profile contains the address of a portal, a token and default values. The file `client.toml`
contains the profiles:

    default_profile = "demo"
    url = "http://127.0.0.1:8000"    # url, cell and tenant may be here or in a profile
    cell = "dev"
    [profiles.demo]
    token = "borg_…"
    tenant = "demo"

`make up` and `borgctl login` write this file.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portal.cli.failure import CommandFailed


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of borgctl: the address of a portal, a token and default values. Unset values are empty."""

    name: str
    url: str
    token: str = ""
    cell: str = ""
    tenant: str = ""


def path() -> Path:
    """Return the path of the file with the profiles. This is `$BORG_CLIENT` if it is set, or else client.toml in
    `$BORG_HOME`, in ./.borg or in the user's folder, in this order.
    """
    if given := os.environ.get("BORG_CLIENT"):
        return Path(given)
    if home := os.environ.get("BORG_HOME"):
        return Path(home) / "client.toml"
    here = Path(".borg") / "client.toml"
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return here if here.exists() else folder / "borg" / "client.toml"


def load(name: str | None = None) -> Profile:
    """Return the profile `name`. If `name` is None, return the profile that `$BORG_PROFILE` names, or else the default
    profile of the file. Raises `CommandFailed` if the profile does not exist or the file is not valid.

    `$BORG_URL`, `$BORG_TOKEN`, `$BORG_CELL` and `$BORG_TENANT` override the values in the file. If there is no file and
    borgctl runs inside a task, the profile uses the identity of this task (`$BORG_IDENTITY_FILE`, `$BORG_API_URL`).
    """
    file = path()
    table = _read(file)
    if not (name or os.environ.get("BORG_PROFILE") or table) and (own := _of_the_task()) is not None:
        return own
    wanted = name or os.environ.get("BORG_PROFILE") or table.get("default_profile", "default")
    profiles = table.get("profiles", {})
    url = os.environ.get("BORG_URL")
    if wanted not in profiles and (name or not url):
        known = ", ".join(sorted(profiles)) or "none"
        raise CommandFailed(
            "no-profile",
            f"profile {wanted!r} is not in {file} (profiles there: {known}). "
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
    """Write a profile to the file of profiles, and make it the default profile. Return the path of the file.

    The write is atomic, and the mode of the file is 0600. Raises `CommandFailed` if the file cannot be read or written.
    """
    file = path()
    table = _read(file)
    # The profile contains empty values too, because the shared values of the file may belong to another portal.
    entry = {"url": profile.url, "token": profile.token, "cell": profile.cell, "tenant": profile.tenant}
    profiles = {**table.get("profiles", {}), profile.name: entry}
    shared = {key: value for key, value in table.items() if isinstance(value, str)}
    return _write(file, {**shared, "default_profile": profile.name}, profiles)


def replace_token(name: str, *, old: str, new: str) -> Path | None:
    """Replace the token `old` of the profile `name` by `new`, and return the path of the file.

    Return None, and change nothing, if the file does not contain the old token, for example because the token comes
    from `$BORG_TOKEN`.
    """
    file = path()
    table = _read(file)
    profiles = table.get("profiles", {})
    if profiles.get(name, {}).get("token") != old:
        return None
    shared = {key: value for key, value in table.items() if isinstance(value, str)}
    return _write(file, shared, {**profiles, name: {**profiles[name], "token": new}})


def _write(file: Path, shared: Mapping[str, str], profiles: Mapping[str, Any]) -> Path:
    text = as_toml(shared, dict(sorted(profiles.items())))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")  # has mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        Path(fresh).replace(file)
    except OSError as error:
        raise CommandFailed(
            "bad-profile-file", f"cannot write the profile to {file}: {error.strerror}; set another file in BORG_CLIENT"
        ) from error
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(
            "bad-profile-file", f"cannot read the profiles in {file}: {error}; correct the file"
        ) from error
    profiles = table.get("profiles", {})
    if not isinstance(profiles, dict) or not all(isinstance(entry, dict) for entry in profiles.values()):
        raise CommandFailed("bad-profile-file", f"{file}: a profile is not a table; write it as [profiles.NAME]")
    for name, entry in {"": {"default_profile": table.get("default_profile", "")}, **profiles}.items():
        for key, value in entry.items():
            if not isinstance(value, str):
                place = f"profiles.{name}.{key}" if name else key
                problem = f"{file}: {place} is not a string; put it in quotes"
                raise CommandFailed("bad-profile-file", problem, fields={place: "not a string"})
    return table


def _of_the_task() -> Profile | None:
    """Return a profile with the identity of the task that runs this process. Return None if no task runs it. Raises
    `CommandFailed` if the file that contains the identity cannot be read.
    """
    url, file = os.environ.get("BORG_API_URL", ""), os.environ.get("BORG_IDENTITY_FILE", "")
    if not url or not file:
        return None
    try:
        token = os.environ.get("BORG_TOKEN") or Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = (
            f"cannot read this task's identity from {file}: {error}. The machine gets the identity from its cell; "
            "try again in a few seconds"
        )
        raise CommandFailed("no-identity", problem, passing=True) from error
    address = (os.environ.get("BORG_URL") or url).rstrip("/")
    return Profile("task", address, token, os.environ.get("BORG_CELL", ""), os.environ.get("BORG_TENANT", ""))


def as_toml(shared: Mapping[str, str], profiles: Mapping[str, Mapping[str, str]]) -> str:
    """Return the profiles as the text of a TOML file. `shared`: the values that the file contains outside of
    profiles.
    """
    lines = _lines(shared)
    for name, values in profiles.items():
        lines += ["", f"[profiles.{_quoted(name)}]", *_lines(values)]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, str]) -> list[str]:
    return [f"{_key(key)} = {_quoted(value)}" for key, value in values.items()]


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").isalnum() else _quoted(key)


def _quoted(text: str) -> str:
    """Return `text` as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
