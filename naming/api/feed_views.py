"""Feeds for load balancers and monitoring: the formats of `naming.api.feeds` over HTTP. Callers need a token.

Each answer has an ETag. A client that sends the ETag (`If-None-Match`) gets 304 if the answer has not changed. If no
name has changed, such a request needs one query. A change of load alone does not change the ETag.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from naming.api import feeds, prometheus_targets, selectors
from naming.api.selectors import VisibleJobs
from naming.table.names import InvalidName, JobName, ServiceName, check_label, check_service, parse_dns
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Principal

F = TypeVar("F", bound=Callable[..., Any])
MOST_CLUSTERS = 1_000  # in one discovery request
_FILTERS = {
    "cell": "Only tasks in this cell.",
    "tenant": "Only tasks of this tenant.",
    "job": "Only tasks of jobs with this name.",
    "service": "Only this service and its jobs.",
    "label": "Only tasks of jobs with this label, as name:value. It may be given several times.",
    "port": "Only the port with this name.",
}
_ETAG = "The ETag of the last answer. If the answer is the same, the server returns 304."
_PARAMETERS = [
    *(OpenApiParameter(name, str, description=text) for name, text in _FILTERS.items()),
    OpenApiParameter("If-None-Match", str, "header", description=_ETAG),
]
_SAME = OpenApiResponse(description="The answer has not changed since the ETag.")


def _feed(
    operation_id: str, answer: str, fields: dict[str, Any], *, many: bool = False, **more: Any
) -> Callable[[F], F]:
    """Return a decorator that adds the OpenAPI description of a feed to a view.

    `fields`: the fields of the response. `answer`: the name of their schema.
    """
    responses = {200: inline_serializer(answer, fields, many=many), 304: _SAME}
    return extend_schema(operation_id=operation_id, tags=["names"], responses=responses, **more)


@lru_cache(maxsize=1_000)
def _known_tag(asked: Hashable) -> dict[str, str]:
    """Return the cache entry of a feed request: a dict with at most one item. Its key is the text that `names_stamp`
    returned when the last answer was built. Its value is the ETag of that answer.

    `asked`: the request and the rights of its caller. The process stores one entry per recent request. The caller of
    this function writes the new ETag into the entry.
    """
    return {}


def _fed(
    request: Request, read: Callable[[], VisibleJobs], form: Callable[[VisibleJobs], tuple[bytes, bytes]]
) -> Response:
    """Return the answer of a feed, or status 304 if the caller sent the ETag of this answer.

    `read` returns the requested jobs. `form` converts them to the answer as JSON, and to the bytes from which the ETag
    is computed.
    """
    shown = {part.strip() for part in request.headers.get("If-None-Match", "").split(",")} - {""}
    stamp = selectors.names_stamp()  # before the rows are read, so that they are never older than the stamp
    known = _known_tag((request.get_full_path(), _rights(request.auth)))  # type: ignore[arg-type]
    tag, body = known.get(stamp, ""), b""
    if tag not in shown:
        body, compared = form(read())
        tag = f'W/"{_digest(compared)}"'
        known.clear()
        known[stamp] = tag
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    return Response(status=304, headers=headers) if tag in shown else Response(body, headers=headers)


def _encoded(answer: Any) -> bytes:
    return msgspec.json.encode(answer, order="deterministic")


def _digest(answer: bytes) -> str:
    return hashlib.sha256(answer).hexdigest()[:16]


def _rights(principal: Principal) -> Hashable:
    """Return the rights that decide which jobs the caller may see. Callers with the same rights share ETags."""
    return (
        principal.sre,
        principal.tenant,
        principal.cell,
        tuple(sorted(principal.scopes)),
        tuple(sorted(principal.roles.items())),
        tuple(sorted(principal.inherited.items())),
        tuple(sorted(principal.capabilities)),
    )


def _reader(request: Request, *also: str, most: int = selectors.MOST_ENDPOINTS) -> Callable[[], VisibleJobs]:
    """Return a function that reads the requested jobs. `also`: further parameters that the request may have. `most`:
    the largest number of tasks in the answer.

    Raises `Rejected` for an unknown parameter, or for a value that is not valid.
    """
    known = (*_FILTERS, *also)
    for name, values in request.query_params.lists():
        if name not in known:
            detail = f"{name}: this filter does not exist; use one of {', '.join(known)}"
            raise Rejected("invalid", detail, fields={name: "unknown"})
        if wrong := _wrong(name, values):
            raise invalid(name, wrong)
    filters: dict[str, Any] = {
        name: request.query_params.get(name, "") for name in ("cell", "tenant", "job", "service")
    }
    filters["labels"] = dict(text.split(":", 1) for text in request.query_params.getlist("label"))
    return partial(selectors.visible_jobs, request.auth, **filters, most=most)  # type: ignore[arg-type]


def _wrong(name: str, values: Sequence[str]) -> str:
    """Return an error text about the values of the filter `name`, or an empty text if all values are valid."""
    if len(values) > 1 and name != "label":
        return f"is given {len(values)} times; give one value per request"
    if not all(values):
        return "is empty; omit it, or give a value"
    if any("\x00" in value for value in values):
        return "contains a NUL character; remove the character"
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
            return f"{key[:64]!r} is given {keys.count(key)} times; give it once, because a job has one value per label"
    return ""


class PrometheusView(APIView):
    """The feed for `http_sd_configs` of Prometheus."""

    @_feed(
        "feed_prometheus",
        "PrometheusTargets",
        {
            "targets": serializers.ListField(child=serializers.CharField()),
            "labels": serializers.DictField(child=serializers.CharField()),
        },
        many=True,
        parameters=_PARAMETERS,
    )
    def get(self, request: Request) -> Response:
        """List every port of every placed task, with facts about the task as `__meta_borg_…` labels."""
        read = _reader(request, most=selectors.MOST_TARGETS)
        return _fed(request, read, partial(prometheus_targets.cache.answer, port=request.query_params.get("port", "")))


class TraefikView(APIView):
    """The feed for the HTTP provider of Traefik."""

    @_feed(
        "feed_traefik",
        "TraefikConfiguration",
        {"http": serializers.DictField(required=False)},
        parameters=[*_PARAMETERS, OpenApiParameter("scheme", str, enum=["http", "https", "h2c"])],
    )
    def get(self, request: Request) -> Response:
        """List one Traefik service for each job, and one for each Borg service. Each has one server per serving task.

        The names of the Traefik services are `<job>-<tenant>-<cell>` and `<service>.service.<tenant>.<cell>`.
        """
        read, port = _reader(request, "scheme"), request.query_params.get("port", "")
        scheme = request.query_params.get("scheme", "http")
        if scheme not in ("http", "https", "h2c"):
            detail = f"scheme: {scheme!r} is unknown; use http, https or h2c"
            raise Rejected("invalid", detail, fields={"scheme": "unknown"})

        def form(jobs: VisibleJobs) -> tuple[bytes, bytes]:
            answer = _encoded(feeds.traefik(selectors.services(jobs), port=port, scheme=scheme))
            return answer, answer

        return _fed(request, read, form)


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

    @_feed(
        "feed_envoy",
        "EnvoyDiscovery",
        {
            "version_info": serializers.CharField(),
            "type_url": serializers.CharField(),
            "resources": serializers.ListField(child=serializers.DictField()),
        },
        request=EnvoyRequestSerializer,
    )
    def post(self, request: Request) -> Response:
        """Return addresses and health of the clusters' tasks, or 304 if nothing has changed since `version_info`."""
        given = EnvoyRequestSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        wanted = {cluster: _cluster(cluster) for cluster in given.validated_data["resource_names"]}
        names = {name for name, _ in wanted.values()}
        jobs = selectors.visible_jobs(request.auth, names=names) if names else None  # type: ignore[arg-type]
        found = {one.name: one for one in selectors.services(jobs)} if jobs is not None else {}
        clusters = {cluster: (found.get(name), port) for cluster, (name, port) in wanted.items()}
        answer = feeds.envoy(clusters, version="")
        version = _digest(_encoded(answer))
        if given.validated_data.get("version_info") == version:
            return Response(status=304)
        return Response({**answer, "version_info": version})


def _cluster(cluster: str) -> tuple[JobName | ServiceName, str]:
    """Parse the name of an Envoy cluster. Return its job or service, and the name of the port, or "" without a port.

    Raises `Rejected` if the name is not valid.
    """
    port, rest = "", cluster
    if cluster.startswith("_"):
        port, _, rest = cluster[1:].partition("._tcp.")
    try:
        name = parse_dns(rest, settings.BORG_ZONE)
    except InvalidName as error:
        raise Rejected(
            "invalid-name",
            f"resource_names contains a wrong DNS name: {error}",
            fields={"resource_names": error.detail},
        ) from error
    if not isinstance(name, JobName | ServiceName):
        wrong = f"{cluster[:64]!r} is the name of a task or machine; give the name of a job or service"
        raise invalid("resource_names", wrong, "invalid-name")
    return name, port
