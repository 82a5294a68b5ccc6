"""Feeds for load balancers and monitoring: the formats of `naming.api.feeds` over HTTP. Callers need a token.

Each answer has an ETag. A client that sends it back (`If-None-Match`) gets 304 while the answer would be the same. If
no name has changed, that costs one query at the end of the journals. A change of load alone does not change the ETag.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import msgspec
from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from naming.api import feeds, selectors
from naming.api.feeds import FeedService
from naming.table.names import InvalidName, JobName, ServiceName, check_label, check_service, parse_dns
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal

MOST_CLUSTERS = 1_000  # in one discovery request
_MOST_TAGS = 1_000  # kept by this process
_FILTERS = {
    "cell": "Only tasks in this cell.",
    "tenant": "Only tasks of this tenant.",
    "job": "Only tasks of jobs with this name.",
    "service": "Only this service and its jobs.",
    "label": "Only tasks of jobs with this label, as name:value. It may be given several times.",
    "port": "Only the port with this name.",
}
_PARAMETERS = [OpenApiParameter(name, str, description=text) for name, text in _FILTERS.items()]
_PARAMETERS.append(
    OpenApiParameter(
        "If-None-Match",
        str,
        "header",
        description="The ETag of the last answer; if the answer is still the same, the server returns 304.",
    )
)
_SAME = OpenApiResponse(description="The answer is the same as the one with the ETag given.")


class _Tags:
    """ETags of this process's answers: (request, caller's rights) -> (stamp of the names, ETag)."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, asked: Hashable, stamp: str) -> str:
        with self._lock:
            known = self._known.get(asked)
            return known[1] if known is not None and known[0] == stamp else ""

    def put(self, asked: Hashable, stamp: str, tag: str) -> None:
        with self._lock:
            self._known[asked] = (stamp, tag)
            self._known.move_to_end(asked)
            while len(self._known) > _MOST_TAGS:
                self._known.popitem(last=False)


_tags = _Tags()


def _fed(
    request: Request,
    read: Callable[[], list[FeedService]],
    form: Callable[[list[FeedService]], Any],
    compared: Callable[[Any], Any] = lambda form: form,
) -> Response:
    """Return the answer, or 304 if the caller sent its ETag. `compared` returns the part of it that the ETag covers."""
    shown = {part.strip() for part in request.headers.get("If-None-Match", "").split(",")}
    stamp = selectors.names_stamp()  # first, so that the rows read are never older than it
    asked = (request.get_full_path(), _rights(request.auth))  # type: ignore[arg-type]
    if (tag := _tags.get(asked, stamp)) and tag in shown:
        return _unchanged(tag)
    answer = form(read())
    tag = f'W/"{_digest(compared(answer))}"'
    _tags.put(asked, stamp, tag)
    return _unchanged(tag) if tag in shown else Response(answer, headers=_headers(tag))


def _unchanged(tag: str) -> Response:
    return Response(status=304, headers=_headers(tag))


def _headers(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": "private, no-cache"}


def _digest(answer: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(answer, order="deterministic")).hexdigest()[:16]


def _rights(principal: Principal) -> Hashable:
    """Return what decides which jobs the caller may see. Callers with the same rights share ETags."""
    return (
        principal.sre,
        principal.tenant,
        principal.cell,
        tuple(sorted(principal.scopes)),
        tuple(sorted(principal.roles.items())),
        tuple(sorted(principal.inherited.items())),
        tuple(sorted(principal.capabilities)),
    )


def _asked(request: Request, *also: str) -> dict[str, Any]:
    """Return the filters of a request. Raises `Rejected`: a misspelt one would silently widen or empty the answer."""
    known = (*_FILTERS, *also)
    for name, values in request.query_params.lists():
        if name not in known:
            raise Rejected(
                "invalid",
                f"{name}: this filter does not exist; use one of {', '.join(known)}",
                fields={name: "unknown"},
            )
        if wrong := _wrong(name, values):
            raise Rejected("invalid", f"{name}: {wrong}", fields={name: wrong})
    return {
        "labels": dict(text.split(":", 1) for text in request.query_params.getlist("label")),
        **{name: request.query_params.get(name, "") for name in ("cell", "tenant", "job", "service")},
    }


def _wrong(name: str, values: Sequence[str]) -> str:
    """Return what is wrong with the values of a filter and what to give, or "" if they are valid."""
    if len(values) > 1 and name != "label":
        return f"is given {len(values)} times; give it once, and send one request per value"
    if not all(values):
        return "is empty; leave it out, or give a value"
    if any("\x00" in value for value in values):
        return "contains a NUL character; leave it out"
    if name == "label":
        return _wrong_labels(values)
    try:
        if name in ("cell", "tenant", "job", "port"):
            check_label(values[0], name)
        elif name == "service":
            check_service(values[0])
    except InvalidName as error:
        return error.detail
    return ""


def _wrong_labels(values: Sequence[str]) -> str:
    keys = [text.partition(":")[0] for text in values]
    for text, key in zip(values, keys, strict=True):
        if not key or ":" not in text:
            return f"{text[:64]!r} is not a label; give name:value"
        if keys.count(key) > 1:
            return f"{key[:64]!r} is given {keys.count(key)} times; a job has one value per label, so give it once"
    return ""


class PrometheusView(APIView):
    """The feed for `http_sd_configs` of Prometheus."""

    @extend_schema(
        operation_id="feed_prometheus",
        parameters=_PARAMETERS,
        tags=["names"],
        responses={
            200: inline_serializer(
                "PrometheusTargets",
                {
                    "targets": serializers.ListField(child=serializers.CharField()),
                    "labels": serializers.DictField(child=serializers.CharField()),
                },
                many=True,
            ),
            304: _SAME,
        },
    )
    def get(self, request: Request) -> Response:
        """List every port of every placed task, with facts about the task as `__meta_borg_…` labels."""
        asked, port = _asked(request), request.query_params.get("port", "")

        def targets(found: Iterable[FeedService]) -> list[dict[str, Any]]:
            return feeds.prometheus(found, port=port)

        return _fed(request, lambda: selectors.services(request.auth, **asked), targets, feeds.without_loads)  # type: ignore[arg-type]


class TraefikView(APIView):
    """The feed for the HTTP provider of Traefik."""

    @extend_schema(
        operation_id="feed_traefik",
        tags=["names"],
        parameters=[*_PARAMETERS, OpenApiParameter("scheme", str, enum=["http", "https", "h2c"])],
        responses={
            200: inline_serializer("TraefikConfiguration", {"http": serializers.DictField(required=False)}),
            304: _SAME,
        },
    )
    def get(self, request: Request) -> Response:
        """List one Traefik service per job (`<job>-<tenant>-<cell>`) and per service of jobs
        (`<service>.service.<tenant>.<cell>`), each with one server per serving task."""
        asked, port = _asked(request, "scheme"), request.query_params.get("port", "")
        scheme = request.query_params.get("scheme", "http")
        if scheme not in ("http", "https", "h2c"):
            raise Rejected(
                "invalid", f"scheme: {scheme!r} is unknown; use http, https or h2c", fields={"scheme": "unknown"}
            )

        def configuration(found: Iterable[FeedService]) -> dict[str, Any]:
            return feeds.traefik(found, port=port, scheme=scheme)

        return _fed(request, lambda: selectors.services(request.auth, **asked), configuration)  # type: ignore[arg-type]


class EnvoyRequestSerializer(serializers.Serializer[Any]):
    resource_names = serializers.ListField(
        child=serializers.CharField(max_length=300),
        max_length=MOST_CLUSTERS,
        help_text="Names of the clusters to return: `<job>.<tenant>.<cell>.<zone>` or"
        " `<service>.service.<tenant>.<cell>.<zone>`. A port's name may come first: `_http._tcp.<job>…`.",
    )
    version_info = serializers.CharField(required=False, allow_blank=True)
    type_url = serializers.CharField(required=False, allow_blank=True)
    response_nonce = serializers.CharField(required=False, allow_blank=True)
    node = serializers.JSONField(required=False)
    error_detail = serializers.JSONField(required=False)


class EnvoyView(APIView):
    """The feed for Envoy's endpoint discovery over REST (`EDS` with `api_type: REST`)."""

    @extend_schema(
        operation_id="feed_envoy",
        request=EnvoyRequestSerializer,
        tags=["names"],
        responses={
            200: inline_serializer(
                "EnvoyDiscovery",
                {
                    "version_info": serializers.CharField(),
                    "type_url": serializers.CharField(),
                    "resources": serializers.ListField(child=serializers.DictField()),
                },
            ),
            304: _SAME,
        },
    )
    def post(self, request: Request) -> Response:
        """Return addresses and health of the clusters' tasks. 304 if nothing has changed since `version_info`."""
        given = EnvoyRequestSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        wanted = {cluster: _cluster(cluster) for cluster in given.validated_data["resource_names"]}
        names = {name for name, _ in wanted.values()}
        found = {one.name: one for one in selectors.services(request.auth, names=names)} if names else {}  # type: ignore[arg-type]
        clusters = {cluster: (found.get(name), port) for cluster, (name, port) in wanted.items()}
        answer = feeds.envoy(clusters, version="")
        version = _digest(answer)
        if given.validated_data.get("version_info") == version:
            return Response(status=304)
        return Response({**answer, "version_info": version})


def _cluster(cluster: str) -> tuple[JobName | ServiceName, str]:
    """Return the job or service that a cluster is named after, and its port. Raises `Rejected`."""
    port, rest = "", cluster
    if cluster.startswith("_"):
        port, _, rest = cluster[1:].partition("._tcp.")
    try:
        name = parse_dns(rest, settings.BORG_ZONE)
    except InvalidName as error:
        raise Rejected("invalid-name", f"resource_names: {error}", fields={"resource_names": error.detail}) from error
    if not isinstance(name, JobName | ServiceName):
        wrong = f"{cluster[:64]!r} is the name of a task or machine; give the name of a job or service"
        raise Rejected("invalid-name", f"resource_names: {wrong}", fields={"resource_names": wrong})
    return name, port
