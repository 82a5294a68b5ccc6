"""Headers of requests that change jobs: `If-Match`, the revision that the job must still have, and `Idempotency-Key`,
by which a repeated request is recognised.
"""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from quota.vocabulary.errors import invalid

_HEADER = "If-Match"
IF_REVISION = OpenApiParameter(
    _HEADER,
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The `job_revision` of a plan. If the job has changed since, nothing changes and the status is 412.",
)


def if_revision(request: Request) -> str:
    """Return the job revision in the header `If-Match`, or "" if the request has none. Raises `Rejected` if the value
    is empty or too long.
    """
    if _HEADER not in request.headers:
        return ""
    given = request.headers[_HEADER].strip().strip('"')
    if not given or len(given) > 80 or not (given.isascii() and given.isprintable()):
        raise invalid(_HEADER, f"{given[:90]!r} is not the revision of a job; give the `job_revision` of a plan")
    return given


IDEMPOTENCY_KEY = "Idempotency-Key"
KEY = OpenApiParameter(
    IDEMPOTENCY_KEY,
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="A key that you choose, at most 64 characters. A tenant submits one job or workflow per key, and a"
    " repeated request with the same key gets the same answer.",
)


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of the request, or "" if it has none. Raises `Rejected` if the key is too long or not
    printable ASCII.
    """
    given: str = request.headers.get(IDEMPOTENCY_KEY, "")
    if len(given) > 64 or not (given.isascii() and given.isprintable()):
        detail = f"the idempotency key {given[:70]!r} is not accepted; give at most 64 printable ASCII characters"
        raise invalid(IDEMPOTENCY_KEY, detail)
    return given
