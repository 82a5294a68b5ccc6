"""Machines join a cell with a token. Their facts are checked, and each machine gets a secret, which is sent only once.

token + JoinRequest ─► check of each field ─► the token's uses decrease ─► Machine row, MachineSet event
"""

from __future__ import annotations

import datetime as dt
import hmac
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from borglet.messages import JoinAnswer, JoinRequest
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require, system
from scheduling.identity import authority
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import execute
from scheduling.machines import last_contact
from scheduling.machines.credentials import SECRET, secret_digest
from scheduling.machines.facts import COLUMNS, Facts, read_facts, wrong_facts
from scheduling.machines.machines import DRAINING, UP, publish_capacity
from scheduling.models import Cell, Drain, JoinToken, Machine
from scheduling.models.machines import REMOVED
from scheduling.policy import cell_settings
from scheduling.policy.cpu_factors import factor_of, parse_cpu_factors
from scheduling.pools.membership import Membership

TOKEN_PREFIX = "borg1"  # noqa: S105 - the name of the format
MAX_BULK = 20_000
_MAX_TTL_S = 30 * 86_400


def join_token_issue(*, principal: Principal, cell: Cell, uses: int = 1, ttl_s: float = 3600) -> str:
    """Return a new token with which `uses` machines can join within `ttl_s` seconds. The cell stores only a hash of
    it. Raises `Rejected` if a value is not valid, and `Conflict` if the cell was deleted.

    The token is `borg1.<key>.<secret>.<fingerprint of the authority>`. A machine recognises its cell by the
    fingerprint.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    if cell.deleted_at is not None:
        raise Conflict("cell-deleted", f"cell {cell.name} was deleted, and no machine can join it; name another cell")
    problems = {}
    if not 1 <= uses <= 1_000_000:
        problems["uses"] = f"{uses} is out of range; give 1 to 1000000"
    if not 1 <= ttl_s <= _MAX_TTL_S:
        problems["ttl_s"] = f"{ttl_s:g} s is out of range; give 1 to {_MAX_TTL_S}"
    if problems:
        raise wrong_facts(problems)
    key, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    JoinToken.objects.create(
        cell=cell,
        key=key,
        digest=secret_digest(secret),
        uses_left=uses,
        created_by=principal.name,
        expires_at=timezone.now() + dt.timedelta(seconds=ttl_s),
    )
    return f"{TOKEN_PREFIX}.{key}.{secret}.{authority.fingerprint()}"


def machine_join(request: JoinRequest) -> JoinAnswer:
    """Add one machine to its cell. Return the answer, with the machine's new secret. Raises `Rejected` if the request
    is not valid; the error names the wrong field.
    """
    try:
        return machines_join([request])[0]
    except Rejected as error:
        fields = {path.removeprefix("[0]."): what for path, what in error.fields.items()}
        detail = error.detail.replace("[0].", "")
        raise Rejected(error.code, detail, fields=fields, figures=error.figures, status=error.status) from error


def machines_join(requests: Sequence[JoinRequest]) -> list[JoinAnswer]:
    """Add machines to one cell with one token. If one machine is rejected, none is added. Return one answer per
    request, in the same order.

    A machine with a known hostname gets a new secret, which replaces the old one. Raises `Rejected` with the code
    `invalid` for a wrong field (such as `[3].capacity.cpu`), `join-token-…` for a wrong token, or `machine-live` if a
    machine with this hostname has reported recently. Locks: the row of the token, then the row of the cell, then the
    rows of the machines.
    """
    if not 1 <= len(requests) <= MAX_BULK:
        raise invalid("machines", f"the request has {len(requests)} machines; send 1 to {MAX_BULK}")
    token = _token_of(requests)
    cell = token.cell
    facts = _facts_of(requests, extra=cell.extra_resources)
    keys = [secrets.token_urlsafe(32) for _ in requests]
    with transaction.atomic():
        _use(token, len(requests))
        for first in range(0, len(requests), journal.CHUNK):
            part = slice(first, first + journal.CHUNK)
            with journal.write(cell.id, system("join")) as entry:
                machines = _store(entry, cell, facts[part], keys[part])
                for machine in machines:
                    entry.append(machine_set_event(machine))
                publish_capacity(entry)
    pem = authority.authority_pem()
    return [
        JoinAnswer(cell=cell.name, hostname=request.hostname, secret=key, authority=pem)
        for request, key in zip(requests, keys, strict=True)
    ]


def _token_of(requests: Sequence[JoinRequest]) -> JoinToken:
    if len({request.token for request in requests}) > 1:
        raise invalid(
            "[1].token", "the token differs from the first token; use one token for all machines of a request"
        )
    parts = requests[0].token.split(".")
    if len(parts) != 4 or parts[0] != TOKEN_PREFIX:
        raise _rejected_token(
            "malformed", "the token does not have the form borg1.<key>.<secret>.<fingerprint>; copy the whole token"
        )
    token = JoinToken.objects.select_related("cell").filter(key=parts[1][:16]).first()
    digest = token.digest if token else "0" * 64
    if not hmac.compare_digest(secret_digest(parts[2]), digest) or token is None:
        raise _rejected_token("unknown", "no cell has issued this join token; issue a new token")
    return token


def _use(token: JoinToken, uses: int) -> None:
    if execute(
        "UPDATE scheduling_jointoken SET uses_left = uses_left - %s"
        " WHERE id = %s AND uses_left >= %s AND expires_at > clock_timestamp()",
        [uses, token.id, uses],
    ):
        return
    token.refresh_from_db()
    if token.expires_at <= timezone.now():
        raise _rejected_token("expired", f"the join token expired at {token.expires_at:%F %T} UTC; issue a new token")
    raise _rejected_token(
        "spent",
        f"the join token has {token.uses_left} uses left, and this request needs {uses}; issue a new token",
        figures={"uses_left": token.uses_left, "asked": uses},
    )


def _rejected_token(what: str, detail: str, *, figures: Mapping[str, Any] | None = None) -> Rejected:
    return Rejected(f"join-token-{what}", detail, fields={"token": detail}, figures=figures, status=403)


def _facts_of(requests: Sequence[JoinRequest], *, extra: Sequence[str]) -> list[Facts]:
    problems: dict[str, str] = {}
    facts: list[Facts] = []
    first_at: dict[str, int] = {}
    for number, request in enumerate(requests):
        found, wrong = read_facts(request, extra=extra)
        problems |= {f"[{number}].{path}": what for path, what in wrong.items()}
        if first_at.setdefault(request.hostname, number) != number:
            problems[f"[{number}].hostname"] = f"{request.hostname} is in the request twice; name each machine once"
        if found is not None:
            facts.append(found)
    if problems:
        raise wrong_facts(problems)
    return facts


def _store(entry: JournalEntry, cell: Cell, many: Sequence[Facts], keys: Sequence[str]) -> list[Machine]:
    known = {
        machine.hostname: machine
        for machine in Machine.objects.select_for_update()
        .filter(cell=cell, hostname__in=[facts.hostname for facts in many])
        .order_by("id")
    }
    live = last_contact.heard_within(
        cell.id,
        # A machine without a valid secret cannot be connected, even if a late heartbeat names it.
        [machine.id for machine in known.values() if machine.state != REMOVED and machine.secret_digest],
    )
    draining = set(Drain.objects.filter(machine__in=known.values()).order_by().values_list("machine_id", flat=True))
    membership = Membership(cell.id)
    settings = Cell.objects.values_list("settings", flat=True).get(pk=cell.id)  # under the cell's lock
    factors = parse_cpu_factors(cell_settings.load(settings).cpu_factors)
    machines, new = [], []
    for facts, key in zip(many, keys, strict=True):
        machine = known.get(facts.hostname)
        if machine is None:
            machine = Machine(cell=cell, hostname=facts.hostname)
            new.append(machine)
        elif machine.id in live:
            detail = (
                f"hostname {facts.hostname} belongs to a machine that has just reported; choose another hostname, or"
                " stop its Borglet and join again in a minute"
            )
            raise Conflict("machine-live", detail, fields={"hostname": detail})
        elif machine.state == REMOVED:
            machine.quarantined = []
        for name, value in facts.columns(factor_of(factors, facts.platform)).items():
            setattr(machine, name, value)
        membership.apply(machine, facts.attributes)
        machine.granted = []
        machine.state, machine.reason = DRAINING if machine.id in draining else UP, ""
        machine.secret_digest, machine.next_digest = secret_digest(key), ""
        machine.secret_at, machine.rotation_asked = entry.time, False
        machine.state_since = entry.time
        machine.session += 1  # the shard closes a connection with the old secret
        machines.append(machine)
    Machine.objects.bulk_create(new)
    Machine.objects.bulk_update(
        [machine for machine in machines if machine.hostname in known],
        [*COLUMNS, "hidden_attributes", "granted", "state", "state_since", "reason", *SECRET, "session", "quarantined"],
        batch_size=500,
    )
    return machines
