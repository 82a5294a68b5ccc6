"""Check grants. A grant is a permission to open one shell in one incarnation of a task. The cell's authority signs it,
and it is valid for a minute.

A shell opens only with a signed grant. So an attacker who has a shard's certificate or intercepts the connection cannot
open a shell.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from borglet.identity.signatures import authority_keys, is_signed
from borglet.messages import SHELL_CONTEXT, ShellClaims, ShellGrant

MAX_LIFE_S = 60.0
# The largest accepted difference between the clocks of machine and shard.
SKEW_S = 30.0
MAX_SIDE = 1000


class GrantRefused(Exception):
    """The error for a grant that is not valid on this machine. The message contains the reason. `session`: the id of
    the shell session in the grant; empty if it is unknown.
    """

    def __init__(self, detail: str, session: str = "") -> None:
        super().__init__(detail)
        self.session = session


class Grants:
    """Checks grants for one machine. A grant is a signed permission to open a shell, and can be used once."""

    def __init__(self, authority: Callable[[], str], hostname: str) -> None:
        """Set up the check of shell grants for the machine `hostname`. `authority` returns the present certificates of
        the cell's authorities (PEM).
        """
        self._authority, self._hostname = authority, hostname
        self._seen: dict[str, float] = {}  # session -> the time at which its grant expires

    def take(self, grant: ShellGrant, *, now: float) -> ShellClaims:
        """Check a grant and mark it as used. Return its content. `now`: seconds since the epoch. Raises `GrantRefused`
        if the grant is not valid or was used before.
        """
        if not is_signed(authority_keys(self._authority()), SHELL_CONTEXT + grant.claims, grant.signature):
            raise GrantRefused(
                "the permission (grant) for this shell is not signed by this cell's authority; open another shell"
            )
        try:
            claims = msgspec.json.decode(grant.claims, type=ShellClaims)
        except msgspec.MsgspecError as error:
            raise GrantRefused(
                f"cannot read the permission (grant) for this shell: {error}; use the same release of Borglet and cell"
            ) from error
        if reason := self._reason_against(claims, now):
            raise GrantRefused(reason, claims.session)
        self._seen = {session: until for session, until in self._seen.items() if until > now - SKEW_S}
        self._seen[claims.session] = claims.expires_at
        return claims

    def _reason_against(self, claims: ShellClaims, now: float) -> str:
        if claims.machine != self._hostname:
            return (
                f"the permission (grant) for this shell is for machine {claims.machine}, and this machine is"
                f" {self._hostname}; open another shell"
            )
        if claims.expires_at - claims.issued_at > MAX_LIFE_S:
            return (
                f"the permission (grant) for this shell is valid for longer than {MAX_LIFE_S:g} s, which is the limit;"
                " report this as a bug"
            )
        if now > claims.expires_at + SKEW_S:
            return (
                f"the permission (grant) for this shell expired {now - claims.expires_at:.0f} s ago by this machine's"
                " clock; check that the clock is right"
            )
        if claims.issued_at > now + SKEW_S:
            return (
                f"the permission (grant) for this shell becomes valid in {claims.issued_at - now:.0f} s by this"
                " machine's clock; check that the clock is right"
            )
        if claims.session in self._seen:
            return "the permission (grant) for this shell was already used; open another shell"
        if not (1 <= claims.rows <= MAX_SIDE and 1 <= claims.cols <= MAX_SIDE):
            return f"rows, cols: {claims.rows} x {claims.cols} is not a terminal's size; give 1 to {MAX_SIDE} for each"
        return ""
