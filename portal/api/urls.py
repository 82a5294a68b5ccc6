"""URLs below `/api/v1/`. Each app defines its own."""

from __future__ import annotations

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

urlpatterns = [
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    path("", include("quota.urls")),
    path("", include("scheduling.urls")),
]
