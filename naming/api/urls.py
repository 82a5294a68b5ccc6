"""The URL routes below /bns/, with or without a slash at the end, and the URL routes of the feeds."""

from __future__ import annotations

from django.urls import path, re_path

from naming.api.bns import CellNamesView, JobEndpointsView, MachineEndpointView, ServiceEndpointsView, TaskEndpointView
from naming.api.feed_views import EnvoyView, PrometheusView, TraefikView

_TENANT = r"^(?P<cell>[^/]+)/(?P<tenant>[^/]+)/"
_JOB = _TENANT + r"(?P<job>[^/]+)"

urlpatterns = [
    re_path(r"^(?P<cell>[^/]+)/?$", CellNamesView.as_view(), name="bns-cell"),
    re_path(r"^(?P<cell>[^/]+)/machine/(?P<host>[^/]+)/?$", MachineEndpointView.as_view(), name="bns-machine"),
    re_path(_TENANT + r"service/(?P<service>[^/]+)/?$", ServiceEndpointsView.as_view(), name="bns-service"),
    re_path(_JOB + r"/?$", JobEndpointsView.as_view(), name="bns-job"),
    re_path(_JOB + r"/(?P<index>[^/]+)/?$", TaskEndpointView.as_view(), name="bns-task"),
]

feeds = [
    path("api/v1/feeds/prometheus/", PrometheusView.as_view(), name="feed-prometheus"),
    path("api/v1/feeds/traefik/", TraefikView.as_view(), name="feed-traefik"),
    path("v3/discovery:endpoints", EnvoyView.as_view(), name="feed-envoy"),
]
