"""The HTTP client for the portal. It converts the portal's error responses to `CommandFailed`.

If the portal is temporarily unable to answer, or the caller has sent too many requests, the client repeats the request
for up to a minute, and a few times if the connection is lost before the answer. It repeats only requests that the
portal has not executed, or that do no harm if they are executed twice. Only commands that send a request import this
module, because importing httpx takes a third of the start time.
"""

from __future__ import annotations

import ssl
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx

from portal.cli import output
from portal.cli.failure import BAD_USAGE, CommandFailed, unreachable
from portal.cli.profiles import Profile

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_LEAST_S = 1.0  # minimum wait for an answer, even at the deadline
_REPEAT_S = 60.0  # between the beginning of the first attempt and of the last attempt
_LONGEST_PAUSE_S = 30.0
# The connection was made, and ended before the answer: for example, a web process was killed. Others take over at once.
_LOST = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
_LOST_PAUSE_S, _MOST_LOST = 0.5, 3
_LATER = frozenset({httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
# Errors that end without an action of the caller.
_NOT_EXECUTED = "too-many-requests"
_PASSES = frozenset(
    {"database-unavailable", "redis-unavailable", "overloaded", "deadline-exceeded", "cell-busy", _NOT_EXECUTED}
)
_UPLOAD_TIMEOUT = httpx.Timeout(60.0, connect=5.0, read=900.0)


class Client:
    """The HTTP client for a portal. It uses the portal's address and the token in `profile`. Every method raises
    `CommandFailed` if the request fails.

    Query parameters that are None or False are omitted, and True is sent as 1. `until`: the time (monotonic clock,
    seconds) after which the caller no longer needs an answer.
    """

    until: float | None = None

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        headers = {"Accept": "application/json", "User-Agent": "borgctl"}
        if profile.token:
            if not (profile.token.isascii() and profile.token.isprintable()):
                problem = (
                    f"the token of profile {profile.name!r} has invalid characters; sign in again with `borgctl login`"
                )
                raise CommandFailed("bad-token", problem)
            headers["Authorization"] = f"Bearer {profile.token}"
        # Loading the certificate authorities takes a tenth of the start time, so only `https:` loads them.
        verify = ssl.create_default_context() if profile.url.startswith("https:") else False
        try:
            # The profile names the portal directly, so proxy settings of the environment do not apply.
            self._http = httpx.Client(
                base_url=profile.url, headers=headers, timeout=_TIMEOUT, trust_env=False, verify=verify
            )
        except (httpx.InvalidURL, UnicodeError) as error:
            raise _bad_url(profile, error) from error

    def get(self, path: str, **query: Any) -> Any:
        """Send a GET request. Return the JSON of the answer."""
        return self._call("GET", path, params=query)

    def post(
        self, path: str, body: Any = None, *, slow: bool = False, if_revision: str | None = None, **query: Any
    ) -> Any:
        """Send a POST request. Return the JSON of the answer. `slow`: the answer may take minutes. `if_revision`: the
        portal rejects the request if the object has another revision.
        """
        timeout = {"timeout": _UPLOAD_TIMEOUT} if slow else {}
        body = body if body is not None else {}
        return self._call("POST", path, json=body, params=query, headers=_precondition(if_revision), **timeout)

    def submit(self, path: str, body: Any, *, if_revision: str | None = None, **query: Any) -> Any:
        """Send a POST request with an idempotency key. If the request is repeated, the portal executes it only once.
        `if_revision`: as in `post`.
        """
        headers = {"Idempotency-Key": uuid.uuid4().hex} | _precondition(if_revision)
        return self._call("POST", path, json=body, params=query, headers=headers)

    def put(self, path: str, body: Any, *, if_revision: str | None = None, **query: Any) -> Any:
        """Send a PUT request. Return the JSON of the answer. `if_revision`: as in `post`."""
        return self._call("PUT", path, json=body, params=query, headers=_precondition(if_revision))

    def put_once(self, path: str, body: Any, **query: Any) -> Any:
        """Send a PUT request with an idempotency key, as `submit` does with POST."""
        return self._call("PUT", path, json=body, params=query, headers={"Idempotency-Key": uuid.uuid4().hex})

    def patch(self, path: str, body: Any, **query: Any) -> Any:
        return self._call("PATCH", path, json=body, params=query)

    def upload(self, path: str, chunks: Iterator[bytes], size: int, *, digest: str = "", **query: Any) -> Any:
        """Upload a file of `size` bytes. The portal answers after it has checked the whole file. `digest`: the digest
        of the package, which the portal compares with the content; "" for any other file.
        """
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        headers |= {"X-Package-Digest": digest} if digest else {}
        return self._call("PUT", path, content=chunks, headers=headers, params=query, timeout=_UPLOAD_TIMEOUT)

    def delete(self, path: str, **query: Any) -> Any:
        return self._call("DELETE", path, params=query)

    def pages(self, path: str, *, at_most: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield all rows of a list of the API, or only the first `at_most` rows. The client requests further pages of
        the list when they are needed.
        """
        limit = {} if at_most is None else {"limit": min(at_most, 1000)}
        return islice(self._all_rows(path, query | limit), at_most)

    def _all_rows(self, path: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
        while True:
            answer = self.get(path, **query)
            if not isinstance(answer, dict) or not isinstance(answer.get("results"), list):
                problem = f"the answer of {self.profile.url}{path} is not a list; check that this is a Borg Portal"
                raise CommandFailed("unexpected-answer", problem)
            yield from answer["results"]
            if not answer.get("next"):
                return
            # Only the query is used, because behind a proxy the portal may have another address than in the profile.
            query = dict(parse_qsl(urlsplit(answer["next"]).query))

    def download(self, path: str, **query: Any) -> bytes:
        """Send a GET request. Return the body of the answer as bytes."""
        return self._answer("GET", path, params=query).content

    def download_post(self, path: str, body: Any) -> bytes:
        """Send a POST request. Return the body of the answer as bytes."""
        return self._answer("POST", path, json=body, params={}).content

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        answer = self._answer(method, path, **kwargs)
        if not answer.content:
            return None
        try:
            return answer.json()
        except ValueError as error:
            problem = f"the answer of {self.profile.url} is not JSON; check that this is a Borg Portal"
            raise CommandFailed("unexpected-answer", problem) from error

    def _answer(self, method: str, path: str, *, params: dict[str, Any], **kwargs: Any) -> httpx.Response:
        """Send a request and return its successful answer. If the portal asks for another attempt later, repeat the
        request.
        """
        kwargs["params"] = {k: 1 if v is True else v for k, v in params.items() if v is not None and v is not False}
        keyed = "Idempotency-Key" in kwargs.get("headers", {})
        waits = "content" not in kwargs and self.until is None
        until = time.monotonic() + (_REPEAT_S if waits else 0.0)
        lost = 0
        while True:
            pause_s: float | None = _LOST_PAUSE_S
            try:
                answer = self._attempt(method, path, **kwargs)
            except _LOST as error:
                lost += 1
                failure, passes = unreachable(self.profile.url, error), lost < _MOST_LOST
            else:
                if answer.is_success:
                    return answer
                failure, pause_s = _failure(answer), _pause_s(answer)
                passes = failure.code in _PASSES
            repeatable = method in _REPEATABLE or keyed or failure.code == _NOT_EXECUTED
            if not (passes and repeatable) or pause_s is None or time.monotonic() + pause_s > until:
                raise failure
            output.remark(f"{failure.detail} Trying again in {pause_s:g} s.")
            time.sleep(pause_s)

    def _attempt(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        if self.until is not None:
            left = min(60.0, max(_LEAST_S, self.until - time.monotonic()))
            kwargs["timeout"] = httpx.Timeout(left, connect=min(5.0, left))
        try:
            return self._http.request(method, path, **kwargs)
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise _bad_url(self.profile, error) from error
        except _LOST:
            raise
        except httpx.HTTPError as error:
            raise unreachable(self.profile.url, error) from error
        except UnicodeError as error:
            raise CommandFailed(
                "bad-usage", f"an argument is not UTF-8: {error}; write it in UTF-8", status=BAD_USAGE
            ) from error


def _precondition(revision: str | None) -> dict[str, str]:
    """Return the header with which the portal rejects a request if the object has another revision, or no header if
    `revision` is None. Raises `CommandFailed` if the revision cannot be sent in a header.
    """
    if revision is None:
        return {}
    if not (revision.isascii() and revision.isprintable()):
        problem = f"--if-revision: {revision!r} is not a revision; copy it from the output of `borgctl plan`"
        raise CommandFailed("bad-usage", problem, status=BAD_USAGE)
    return {"If-Match": f'"{revision}"'}


def _bad_url(profile: Profile, error: Exception) -> CommandFailed:
    return CommandFailed(
        "bad-url",
        f"{profile.url!r} is not the address of a portal: {error}. Write it like http://127.0.0.1:8000",
        fields={"url": str(error)},
    )


def _pause_s(answer: httpx.Response) -> float | None:
    """Return the number of seconds to wait before the next attempt. Return None unless the answer has the status 429
    or 503, and the header `Retry-After`.
    """
    pause = answer.headers.get("Retry-After", "")
    if answer.status_code not in _LATER or not (pause.isascii() and pause.isdigit()):
        return None
    return min(float(pause), _LONGEST_PAUSE_S)


def _failure(answer: httpx.Response) -> CommandFailed:
    passing = answer.status_code >= 500
    try:
        document = answer.json()
        code, detail = str(document["code"]), str(document["detail"])
        fields = {str(name): str(what) for name, what in (document.get("fields") or {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return CommandFailed("unexpected-answer", _unexplained(answer), passing=passing)
    if code == "not-authenticated":
        detail = f"{detail.rstrip('.')}. Sign in with `borgctl login`."
    return CommandFailed(code, detail, fields=fields, document=document, passing=passing)


def _unexplained(answer: httpx.Response) -> str:
    summary = f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}".rstrip()
    if answer.is_redirect:
        place = answer.headers.get("location", "another address")
        return f"{summary}: the portal is at {place}; write this address into the profile"
    if request_id := answer.headers.get("x-request-id"):
        return f"{summary}; the portal's log has details about request {request_id}"
    return summary
