"""Replace the cell's certificate authority by a new one. Machines can connect during the whole replacement.

    stage ─► machines trust both after they reconnect ─► switch ─► the link uses the new authority
                                                           └─► retire ─► machines no longer trust the old authority

Each machine reconnects at least once in a little more than a day, because its secret is replaced. Join tokens that were
issued before the switch become invalid, because they contain the fingerprint of the old authority.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from borglet.messages import authority_digest
from quota import records
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.identity.authority import (
    AuthorityBroken,
    bundle_pem,
    ensure_authority,
    fingerprint_of,
    finish_switch,
    folder,
    load_certificate,
    load_pair,
    locked,
    make_authority,
    write_pair,
    write_whole,
)
from scheduling.models import Machine
from scheduling.models.machines import REMOVED


@dataclass(frozen=True, slots=True)
class RotationProgress:
    """The progress of a replacement of the authority.

    `part`: the fingerprint and the expiry time of each authority. The keys are `ca` (the current authority), `next`
    and `old`. `machines`: the number of all machines. `behind`: the hostnames of the machines that do not trust all
    these authorities yet.
    """

    part: dict[str, tuple[str, dt.datetime]]
    machines: int
    behind: list[str]


def standing() -> RotationProgress:
    """Return the progress of the replacement of the authority. Raises `AuthorityBroken` if a certificate cannot be
    read.
    """
    digest = authority_digest(bundle_pem())
    part = {}
    for name in ("ca", "next", "old"):
        path = folder() / f"{name}.pem"
        if path.exists():
            certificate = load_certificate(path)
            part[name] = (fingerprint_of(certificate), certificate.not_valid_after_utc)
    machines = Machine.objects.filter(cell__study_of__isnull=True).exclude(state=REMOVED)
    behind = machines.exclude(authority=digest).order_by("cell_id", "hostname")
    return RotationProgress(part, machines.count(), list(behind.values_list("hostname", flat=True)))


def stage(*, principal: Principal, certificate: Path | None = None, key: Path | None = None) -> str:
    """Store the next authority. Machines then trust both the current and the next authority. Return the fingerprint
    of the next authority.

    `certificate`, `key`: the files of your own authority. If `certificate` is None, a new authority is created. `key`
    may be None if the key is stored elsewhere. Raises `Rejected` if a next authority is already stored or a file is
    wrong, and `AuthorityBroken` if a file cannot be read.
    """
    require(principal, Action.PLATFORM_ADMIN)
    home = ensure_authority().parent
    with locked(home):
        if (home / "next.pem").exists():
            detail = "an authority is already staged; switch to it, or remove next.pem and next.key first"
            raise Conflict("authority-staged", detail)
        if certificate is None:
            write_pair(home, "next", *make_authority())
        else:
            _copy(home, certificate, key)
        found = fingerprint_of(load_certificate(home / "next.pem"))
    with records.write(principal) as entry:
        entry.append("authority.staged", fingerprint=found)
    return found


def switch(*, principal: Principal, leave_behind: bool = False) -> str:
    """Make the next authority (see `stage`) the current one. It signs certificates from now on. Return its
    fingerprint. Machines still trust the old authority until `retire` is called.

    `leave_behind`: switch even if some machines do not trust the new authority yet. These machines must then join
    again. Raises `Conflict` if there is no next authority, or if such machines exist and `leave_behind` is false.
    """
    require(principal, Action.PLATFORM_ADMIN)
    home = ensure_authority().parent
    following = home / "next.pem"
    if not following.exists():
        raise Conflict(
            "no-authority-staged", "no authority is staged; stage one with `manage.py authority stage` first"
        )
    behind = standing().behind
    if behind and not leave_behind:
        names = ", ".join(behind[:5]) + (f" and {len(behind) - 5} more" if len(behind) > 5 else "")
        detail = (
            f"{len(behind)} machines do not trust the staged authority yet: {names}; wait until these machines have"
            " reconnected, replace their secrets, or switch without them"
        )
        raise Conflict("machines-behind", detail, figures={"machines": len(behind)})
    with locked(home):
        found = fingerprint_of(load_certificate(following))
        write_whole(home / "old.pem", (home / "ca.pem").read_bytes(), 0o644)
        if (home / "next.key").exists():
            write_whole(home / "ca.key", (home / "next.key").read_bytes(), 0o600)
            finish_switch(home)
        else:
            (home / "ca.key").unlink(missing_ok=True)
            write_whole(home / "ca.pem", following.read_bytes(), 0o644)
            following.unlink()
    with records.write(principal) as entry:
        entry.append("authority.switched", fingerprint=found, left_behind=len(behind))
    return found


def retire(*, principal: Principal) -> None:
    """Delete the old authority, so that machines no longer trust it. If there is no old authority, do nothing."""
    require(principal, Action.PLATFORM_ADMIN)
    old = ensure_authority().parent / "old.pem"
    if not old.exists():
        return
    found = fingerprint_of(load_certificate(old))
    old.unlink()
    with records.write(principal) as entry:
        entry.append("authority.retired", fingerprint=found)


def _copy(home: Path, certificate: Path, key: Path | None) -> None:
    """Copy the authority in the files `certificate` and `key` to `next.pem` and `next.key`, and check it."""
    pem, secret = _given(certificate), _given(key) if key is not None else b""
    if secret:
        write_whole(home / "next.key", secret, 0o600)
    try:
        write_whole(home / "next.pem", pem, 0o644)
        load_pair(home, "next") if secret else load_certificate(home / "next.pem")
    except AuthorityBroken:
        (home / "next.pem").unlink(missing_ok=True)
        (home / "next.key").unlink(missing_ok=True)
        raise


def _given(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise invalid(
            str(path), f"cannot read this file: {error.strerror}; give a file that exists and is readable"
        ) from error
