"""Uploads of large packages. The portal checks the rights of the client before it reads the body.

Django's handler reads the whole body before a view checks the client. Therefore, if the body is large, this module
first checks the token in the headers, and only then passes the request to Django. The view checks the token again.
"""

from __future__ import annotations

import re
import uuid
from typing import Any
from urllib.parse import unquote

from channels.db import database_sync_to_async

from portal.http.asgi_responses import Receive, Send, reject
from portal.http.handler import ThreadedHandler
from quota.tenancy.authentication import InvalidToken, principal_of_token
from quota.vocabulary.errors import Rejected
from scheduling.access import selectors
from scheduling.packages.packages import may_upload
from scheduling.packages.uploads import too_large

_PATH = re.compile(r"/api/v1/cells/([^/]+)/packages/([^/]+)/[^/]+/[^/]+/")


class PackageUploads:
    """An ASGI application that passes each request to `inner`. It allows large bodies, but only from clients that may
    upload packages.
    """

    def __init__(self, inner: ThreadedHandler) -> None:
        self._inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path = _PATH.fullmatch(scope["path"]) if scope["method"] == "PUT" else None
        headers = dict(scope["headers"])
        length = int(headers.get(b"content-length", b"0"))  # the server has checked that it is a number
        if path is None or length <= self._inner.most_bytes:
            return await self._inner(scope, receive, send)
        scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        request_id = uuid.uuid4().hex
        try:
            if scheme.lower() != "bearer":
                raise Rejected(
                    "unauthorized",
                    "Authorization: the header is missing or has no bearer token; send 'Authorization: Bearer TOKEN'",
                    status=401,
                )
            cell, tenant = map(unquote, path.groups())
            await database_sync_to_async(_check)(secret.strip(), cell, tenant, length, request_id)
        except Rejected as problem:
            return await reject(send, problem, request_id=request_id, headers={"connection": "close"})
        return await self._inner.answer(scope, receive, send, most_bytes=length)


def _check(secret: str, cell: str, tenant: str, length: int, request_id: str) -> None:
    """Raise `Rejected` if the owner of the token may not upload a package of `length` bytes. `secret`: the token."""
    try:
        _, principal = principal_of_token(secret, request_id=request_id)
    except InvalidToken as error:
        raise Rejected("unauthorized", str(error), status=401) from error
    allowed = may_upload(principal=principal, cell=selectors.cell_named(principal, cell), tenant=tenant)
    if length > allowed.most:
        raise too_large(length, allowed.most)
