"""All routes of the web process, read from Django's URL resolver, so that tests cannot miss a new route."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

_VERBS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class Route:
    """A URL pattern of the web process.

    `path` has `{name}` in the place of each variable part. `methods` is in lower case. It is empty if the view is a
    plain function.
    """

    path: str
    name: str
    view: Callable[..., Any]
    methods: tuple[str, ...]

    def __str__(self) -> str:
        return self.path


def routes() -> list[Route]:
    return list(_walk(get_resolver().url_patterns, ""))


def api_routes() -> list[Route]:
    """Return the routes whose views are classes: those of the REST API, of `/bns/` and of Envoy's API (`/v3/`)."""
    return [route for route in routes() if route.path.startswith(("api/v1/", "bns/", "v3/"))]


def pages() -> list[Route]:
    """Return the routes of the portal's own pages, without APIs, the admin console, sign-in pages and probes."""
    others = (
        "api/",
        "bns/",
        "v3/",
        "admin/",
        "accounts/",
        "healthz",
        "readyz",
        "metrics",
        ".well-known/",
        "favicon.ico",
    )
    return [route for route in routes() if not route.path.startswith(others)]


def _walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[Route]:
    for pattern in patterns:
        path = prefix + _readable(str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, path)
        else:
            view_class = getattr(pattern.callback, "view_class", None) or getattr(pattern.callback, "cls", None)
            methods = tuple(
                verb for verb in _VERBS if view_class and inspect.isfunction(getattr(view_class, verb, None))
            )
            yield Route(path, pattern.name or "", pattern.callback, methods)


def _readable(pattern: str) -> str:
    """Return a URL pattern of Django in readable form: `<str:cell>/` and `^(?P<cell>[^/]+)/?$` become `{cell}/`."""
    pattern = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", pattern)
    pattern = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", pattern)
    return pattern.replace("/?$", "/").lstrip("^").rstrip("$")
