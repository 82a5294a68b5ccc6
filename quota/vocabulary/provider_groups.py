"""Reads which groups of an identity provider give which roles in the portal (pure).

BORG_OIDC_ROLES=search-team=operator@ubar, search-leads=owner@ubar, borg-sres=sre, borg-sres=group@Fleet

group = viewer|operator|buyer|owner @ TENANT ──► the role in the tenant
group = sre ───────────────────────────────────► an SRE, who may open the console
group = group @ NAME ──────────────────────────► the user group NAME of the console, which has permissions
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from quota.vocabulary.permissions import Role

# A person whose groups give several roles in a tenant gets the first of these.
_STRONGEST = (Role.OWNER, Role.OPERATOR, Role.BUYER, Role.VIEWER)
_SRE, _GROUP = "sre", "group"


@dataclass(frozen=True)
class Rights:
    """What the groups of a person give: the role in each tenant, the user groups, and whether the person is an SRE."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    sre: bool = False

    def __bool__(self) -> bool:
        return bool(self.roles or self.groups or self.sre)


@dataclass(frozen=True)
class GroupRoles:
    """The setting BORG_OIDC_ROLES: pairs of a group of the provider and what it gives, such as `operator@ubar`."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, text: str) -> GroupRoles:
        """Return the setting in `text`. Raises `ValueError` with the wrong part and what to write instead."""
        pairs = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            group, equals, right = (piece.strip() for piece in part.rpartition("="))
            kind, _, name = right.partition("@")
            known = right == _SRE or (bool(name) and kind in (*Role, _GROUP))
            if not (group and equals and known):
                roles = ", ".join(f"{role}@TENANT" for role in Role)
                raise ValueError(f"{part!r} is not GROUP=RIGHT, where RIGHT is {roles}, {_GROUP}@NAME or {_SRE}")
            pairs.append((group, right))
        return cls(tuple(pairs))

    @property
    def tenants(self) -> set[str]:
        """The tenants in which the provider decides about the roles of its people."""
        return {name for kind, name in self._split() if kind not in (_GROUP, _SRE)}

    @property
    def groups(self) -> set[str]:
        """The user groups of the console about whose members the provider decides."""
        return {name for kind, name in self._split() if kind == _GROUP}

    @property
    def sre(self) -> bool:
        """Whether the provider decides who is an SRE."""
        return any(kind == _SRE for kind, _ in self._split())

    def rights_of(self, groups: Collection[str]) -> Rights:
        """Return what a person with these groups at the provider gets."""
        held = [right.partition("@")[::2] for group, right in self.pairs if group in groups]
        roles: dict[str, Role] = {}
        for role in reversed(_STRONGEST):
            roles |= {name: role for kind, name in held if kind == role}
        names = frozenset(name for kind, name in held if kind == _GROUP)
        return Rights(roles, names, any(kind == _SRE for kind, _ in held))

    def _split(self) -> list[tuple[str, str]]:
        return [right.partition("@")[::2] for _, right in self.pairs]
