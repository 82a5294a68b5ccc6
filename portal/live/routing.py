"""Where live pages are, below /live/."""

from __future__ import annotations

from django.urls import path, re_path

from portal.live.consumers import MachinesPage, Nowhere, TasksPage

urlpatterns = [
    path("live/cells/<str:cell>/machines/", MachinesPage.as_asgi()),
    path("live/jobs/<str:cell>/<str:tenant>/<str:job>/", TasksPage.as_asgi()),
    re_path(r"", Nowhere.as_asgi()),
]
