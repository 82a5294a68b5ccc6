"""Routes below /bns/, with or without a final slash."""

from __future__ import annotations

from django.urls import re_path

from naming.api import CellNamesView, JobEndpointsView, TaskEndpointView

_JOB = r"^(?P<cell>[^/]+)/(?P<tenant>[^/]+)/(?P<job>[^/]+)"

urlpatterns = [
    re_path(r"^(?P<cell>[^/]+)/?$", CellNamesView.as_view(), name="bns-cell"),
    re_path(_JOB + r"/?$", JobEndpointsView.as_view(), name="bns-job"),
    re_path(_JOB + r"/(?P<index>[^/]+)/?$", TaskEndpointView.as_view(), name="bns-task"),
]
