"""URLs below `/api/v1/`. Each app defines its own URLs."""

from __future__ import annotations

from django.urls import include, path

from portal.api.schema_view import SchemaView

urlpatterns = [
    path("schema/", SchemaView.as_view(), name="schema"),
    path("", include("quota.urls")),
    path("", include("scheduling.urls")),
]
