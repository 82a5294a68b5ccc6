"""Join a cell with a token from an SRE. The machine receives its identity.

    token: borg1.<id>.<secret>.<sha256 of the authority's certificate, DER, hex>

    GET /authority.pem  (any certificate)  ─► its fingerprint is the token's? ─► POST /join (that authority) ─► identity

No public authority signs the certificates of a cell. The fingerprint in the token lets the Borglet detect a false
server before the Borglet sends the token.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import logging
import re
import ssl
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from borglet.identity.credentials import pinned_context
from borglet.identity.saved_state import DiskStore, Identity
from borglet.machine_specs import MachineSpec, link_address
from borglet.messages import JoinAnswer, JoinRequest

log = logging.getLogger(__name__)

TIMEOUT_S = 30.0
MAX_AUTHORITY_BYTES = 64 * 2**10
MAX_ANSWER_BYTES = 8 * 2**20
_TOKEN = re.compile(r"borg1\.([0-9A-Za-z_-]{1,64})\.([0-9A-Za-z_-]{1,256})\.([0-9a-f]{64})")
Answer = TypeVar("Answer")


class JoinFailed(Exception):
    """The error if this machine could not join its cell. The message contains the reason and what to do."""


class LinkUnreachable(JoinFailed):
    """The error if no server answered at the link's address. A retry can help."""


class Problem(msgspec.Struct):
    """An error that a server sent (RFC 9457). `fields`: the error of each wrong field, by name of the field."""

    code: str = ""
    title: str = ""
    detail: str = ""
    fields: msgspec.Raw = msgspec.Raw(b"")

    def __str__(self) -> str:
        fields = bytes(self.fields).decode(errors="replace")
        text = f"{self.code}: {self.detail or self.title}".strip(": ")
        return f"{text} {fields}" if fields not in ("", "null", "{}", "[]") else text


def parse_token(text: str) -> str:
    """Return the fingerprint of the cell's authority, which the token contains. Raises `JoinFailed` if the token does
    not have the right form.
    """
    match = _TOKEN.fullmatch(text.strip())
    if match is None:
        raise JoinFailed(
            "join token: it must have the form borg1.<id>.<secret>.<64 hex digits>; copy the whole token, as"
            " `borgctl machine join-token` printed it"
        )
    return match.group(3)


def join_request(
    machine: MachineSpec, measured: Mapping[str, str], token: str, *, ports: tuple[int, int]
) -> JoinRequest:
    """Return the request of one machine to join. `measured`: attributes found on the machine; the attributes in
    `machine` override them. `ports`: lowest and highest port for tasks.
    """
    return JoinRequest(
        token=token,
        hostname=machine.hostname,
        address=machine.address,
        capacity=machine.capacity,
        attributes={**measured, **dict(machine.attributes)},
        platform=machine.platform,
        rack=machine.rack,
        power_domain=machine.power_domain,
        port_low=ports[0],
        port_high=ports[1],
    )


class JoinClient:
    """A client that joins machines to a cell. It keeps one connection open. Call `close` at the end."""

    def __init__(self, url: str, fingerprint: str) -> None:
        """Download the certificate of the cell's authority, and compare it with `fingerprint` (from the token). Raises
        `BadMachine` if `url` is not the address of a link server. Raises `JoinFailed` if the certificate cannot be
        downloaded or has another fingerprint.
        """
        self._address = link_address(url)
        self._url = url
        self.authority = self._fetch_authority(fingerprint)
        self._connection = http.client.HTTPSConnection(
            *self._address, timeout=TIMEOUT_S, context=pinned_context(self.authority)
        )

    def close(self) -> None:
        self._connection.close()

    def join(self, request: JoinRequest) -> JoinAnswer:
        """Join the cell and return the new identity. Raises `JoinFailed` if the link cannot be reached or rejects the
        machine.
        """
        return self._post("/join", request, JoinAnswer)

    def join_many(self, requests: list[JoinRequest]) -> list[JoinAnswer]:
        """Join all machines or none. Return the answers in the order of `requests`. Raises `JoinFailed` if the link
        cannot be reached or rejects a machine.
        """
        answers = self._post("/join:bulk", requests, list[JoinAnswer])
        if [answer.hostname for answer in answers] != [request.hostname for request in requests]:
            raise JoinFailed("the link server's answer names other machines than the request; try again")
        return answers

    def _fetch_authority(self, fingerprint: str) -> str:
        blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        blind.check_hostname = False
        blind.verify_mode = ssl.CERT_NONE  # the fingerprint is checked below
        connection = http.client.HTTPSConnection(*self._address, timeout=TIMEOUT_S, context=blind)
        try:
            status, body = self._exchange(connection, "GET", "/authority.pem", None, MAX_AUTHORITY_BYTES)
        finally:
            connection.close()
        if status != 200:
            raise JoinFailed(
                f"{self._url}/authority.pem answered HTTP {status}; check that this is the address of a link server"
            )
        try:
            authority = body.decode("ascii")
            certificate = ssl.PEM_cert_to_DER_cert(authority)
        except ValueError as error:
            raise JoinFailed(
                f"{self._url}/authority.pem is not a certificate in PEM form: {error}; check the link server's address"
            ) from error
        found = hashlib.sha256(certificate).hexdigest()
        if not hmac.compare_digest(found, fingerprint):
            raise JoinFailed(
                f"authority: the link server at {self._url} has the authority {found}, and the token expects"
                f" {fingerprint}. The token belongs to another cell, or someone intercepts the connection; check the"
                " address, and ask an SRE of the cell for a new token"
            )
        # The text may hold more certificates, but the token proves only the first.
        return ssl.DER_cert_to_PEM_cert(certificate)

    def _post(self, path: str, content: object, kind: type[Answer]) -> Answer:
        status, body = self._exchange(self._connection, "POST", path, msgspec.json.encode(content), MAX_ANSWER_BYTES)
        if status not in (200, 201):
            try:
                problem = str(msgspec.json.decode(body, type=Problem))
            except msgspec.MsgspecError:
                problem = body[:200].decode(errors="replace")
            raise JoinFailed(
                f"the cell rejected the request to join (HTTP {status}):"
                f" {problem or 'it gave no reason; check the join token'}"
            )
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise JoinFailed(
                f"cannot read the answer of {self._url}{path}: {error}; use the same release of Borglet and cell"
            ) from error

    def _exchange(
        self, connection: http.client.HTTPSConnection, method: str, path: str, content: bytes | None, limit_bytes: int
    ) -> tuple[int, bytes]:
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = response.read(limit_bytes + 1)
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise JoinFailed(
                f"the link server at {self._url} has no certificate of the cell's authority: {error.verify_message};"
                " check that the address names a link server of the token's cell"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise LinkUnreachable(f"cannot reach the link server at {self._url}: {error}; check the address") from error
        if len(body) > limit_bytes:
            connection.close()
            raise JoinFailed(
                f"{self._url}{path} answered with more than {limit_bytes} bytes, which is the limit; check that this is"
                " the address of a link server"
            )
        return response.status, body


def join_cell(store: DiskStore, url: str, request: JoinRequest) -> Identity:
    """Join the cell. Store and return the machine's new identity. If the Borglet's home folder already contains an
    identity, return that identity and do not join again.

    Raises `JoinFailed` if the identity in the folder belongs to another machine, the token is missing or wrong, or the
    cell rejects the machine.
    """
    try:
        known = store.identity()
    except ValueError as error:
        raise JoinFailed(str(error)) from error
    if known is not None:
        if known.hostname != request.hostname:
            raise JoinFailed(
                f"hostname: the directory of --home belongs to machine {known.hostname!r} of cell {known.cell!r}, not"
                f" to {request.hostname!r}; give a different --home"
            )
        return known
    if not request.token:
        raise JoinFailed(
            "join token: this machine has not joined a cell yet; give --join-token with a token of"
            " `borgctl machine join-token`"
        )
    client = JoinClient(url, parse_token(request.token))
    try:
        answer = client.join(request)
    finally:
        client.close()
    identity = Identity(answer.hostname, answer.cell, answer.secret)
    store.save_identity(identity, authority=client.authority)
    log.info("joined cell %s as %s", identity.cell, identity.hostname)
    return identity
