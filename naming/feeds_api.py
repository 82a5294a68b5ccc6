"""Feeds for load balancers and monitoring: the forms of `naming.feeds`, over HTTP, with a token that may read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from naming import feeds, selectors
from naming.names import InvalidName, JobName, parse_dns
from quota.errors import Refused

MOST_CLUSTERS = 1_000  # of one discovery request
_FILTERS = {
    "cell": "Of this cell.",
    "tenant": "Of this tenant.",
    "job": "Of jobs of this name.",
    "label": "Of jobs with this label, as name:value; may be given several times.",
    "port": "The port of this name.",
}
_PARAMETERS = [OpenApiParameter(name, str, description=told) for name, told in _FILTERS.items()]


def _asked(request: Request, *also: str) -> dict[str, Any]:
    """The filters of a request. Raises `Refused`: a misspelt one would widen the answer in silence."""
    known = (*_FILTERS, *also)
    for name, value in request.query_params.items():
        if name not in known:
            raise Refused(
                "invalid", f"{name}: no such filter; there is {', '.join(known)}", fields={name: "unknown"}
            )
        if "\x00" in value:
            raise Refused("invalid", f"{name}: holds a NUL character", fields={name: "NUL character"})
    labels = {}
    for text in request.query_params.getlist("label"):
        name, colon, value = text.partition(":")
        if not (name and colon):
            raise Refused("invalid", f"label: {text!r}; give name:value", fields={"label": "name:value"})
        labels[name] = value
    return {
        "labels": labels,
        **{name: request.query_params.get(name, "") for name in ("cell", "tenant", "job")},
    }


class PrometheusView(APIView):
    """For `http_sd_configs` of Prometheus."""

    @extend_schema(
        operation_id="feed_prometheus", parameters=_PARAMETERS, tags=["names"],
        responses=inline_serializer(
            "PrometheusTargets",
            {
                "targets": serializers.ListField(child=serializers.CharField()),
                "labels": serializers.DictField(child=serializers.CharField()),
            },
            many=True,
        ),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """Every port of every placed task, with what is known of it as `__meta_borg_…` labels."""
        found = selectors.services(request.auth, **_asked(request))
        return Response(feeds.prometheus(found, port=request.query_params.get("port", "")))


class TraefikView(APIView):
    """For the HTTP provider of Traefik."""

    @extend_schema(
        operation_id="feed_traefik", tags=["names"],
        parameters=[*_PARAMETERS, OpenApiParameter("scheme", str, enum=["http", "https", "h2c"])],
        responses=inline_serializer("TraefikConfiguration", {"http": serializers.DictField(required=False)}),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """A service `<job>-<tenant>-<cell>` for each job, a server for each task that serves."""
        found = selectors.services(request.auth, **_asked(request, "scheme"))
        scheme = request.query_params.get("scheme", "http")
        if scheme not in ("http", "https", "h2c"):
            raise Refused(
                "invalid", f"scheme: {scheme!r}; one of http, https, h2c", fields={"scheme": "unknown"}
            )
        return Response(feeds.traefik(found, port=request.query_params.get("port", ""), scheme=scheme))


class EnvoyRequestSerializer(serializers.Serializer):
    resource_names = serializers.ListField(
        child=serializers.CharField(max_length=300),
        max_length=MOST_CLUSTERS,
        help_text="Clusters: `<job>.<tenant>.<cell>.<zone>`, or with a port's name before it: `_http._tcp.<job>…`.",
    )
    version_info = serializers.CharField(required=False, allow_blank=True)
    type_url = serializers.CharField(required=False, allow_blank=True)
    response_nonce = serializers.CharField(required=False, allow_blank=True)
    node = serializers.JSONField(required=False)
    error_detail = serializers.JSONField(required=False)


class EnvoyView(APIView):
    """For Envoy's endpoint discovery over REST (`EDS` with `api_type: REST`)."""

    @extend_schema(
        operation_id="feed_envoy", request=EnvoyRequestSerializer, tags=["names"],
        responses=inline_serializer(
            "EnvoyDiscovery",
            {
                "version_info": serializers.CharField(),
                "type_url": serializers.CharField(),
                "resources": serializers.ListField(child=serializers.DictField()),
            },
        ),
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Where the clusters' tasks are, with their health. 304 while nothing has changed since `version_info`."""
        given = EnvoyRequestSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        wanted = {cluster: _cluster(cluster) for cluster in given.validated_data["resource_names"]}
        names = {name for name, _ in wanted.values()}
        found = {one.name: one for one in selectors.services(request.auth, names=names)} if names else {}
        clusters = {cluster: (found.get(name), port) for cluster, (name, port) in wanted.items()}
        said = feeds.envoy(clusters, version="")
        version = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
        if given.validated_data.get("version_info") == version:
            return Response(status=304)
        return Response({**said, "version_info": version})


def _cluster(cluster: str) -> tuple[JobName, str]:
    """The job that a cluster is named for, and the port. Raises `Refused`."""
    port, rest = "", cluster
    if cluster.startswith("_"):
        port, _, rest = cluster[1:].partition("._tcp.")
    try:
        name = parse_dns(rest, settings.BORG_ZONE)
    except InvalidName as error:
        raise Refused(
            "invalid-name", f"resource_names: {error}", fields={"resource_names": error.detail}
        ) from error
    if not isinstance(name, JobName):
        told = f"{cluster[:64]!r} is the name of one task; name its job"
        raise Refused("invalid-name", f"resource_names: {told}", fields={"resource_names": told})
    return name, port
