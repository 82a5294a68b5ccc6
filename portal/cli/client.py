"""HTTP to the portal: one connection a command, problem documents as `Failed`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx

from portal.cli.failure import Failed
from portal.cli.profiles import Profile

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)


class Client:
    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        headers = {"Accept": "application/json"}
        if profile.token:
            headers["Authorization"] = f"Bearer {profile.token}"
        # The portal is named in the profile: a proxy for the outer world has no part in this.
        self._http = httpx.Client(base_url=profile.url, headers=headers, timeout=_TIMEOUT, trust_env=False)

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, params={k: v for k, v in query.items() if v is not None})

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        return self._call("POST", path, json=body if body is not None else {}, params=query)

    def put(self, path: str, body: Any, **query: Any) -> Any:
        return self._call("PUT", path, json=body, params=query)

    def delete(self, path: str, **query: Any) -> Any:
        return self._call("DELETE", path, params=query)

    def pages(self, path: str, *, at_most: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """All rows of a list, page by page."""
        given = 0
        answer = self.get(path, **query)
        while True:
            for row in answer["results"]:
                if at_most is not None and given >= at_most:
                    return
                given += 1
                yield row
            if not answer.get("next"):
                return
            answer = self._call("GET", answer["next"])

    def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        try:
            answer = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise Failed(
                "unreachable",
                f"can't reach the portal at {self.profile.url}: {error}. Is it up (`make up`)?",
            ) from error
        if answer.is_success:
            return answer.json() if answer.content else None
        raise _failure(answer)


def part(text: object) -> str:
    """One segment of a path."""
    return quote(str(text), safe="")


def _failure(answer: httpx.Response) -> Failed:
    try:
        document = answer.json()
        code, detail = document["code"], document["detail"]
    except (ValueError, KeyError, TypeError):
        return Failed("unexpected-answer", f"the portal answered {answer.status_code} {answer.reason_phrase}")
    return Failed(code, detail, fields=document.get("fields"), document=document)
