"""The addresses of WebSockets: live pages (/live/), shells in tasks (/ws/shell/) and watched names (/ws/bns/)."""

from __future__ import annotations

from django.urls import path, re_path

from portal.live.consumers import MachinesPage, MapPage, Nowhere, ServicePage, TasksPage
from portal.live.name_watch import NamesWatch
from portal.live.shell import Shell

urlpatterns = [
    path("live/cells/<str:cell>/machines/", MachinesPage.as_asgi()),
    path("live/cells/<str:cell>/map/", MapPage.as_asgi()),
    path("live/jobs/<str:cell>/<str:tenant>/<str:job>/", TasksPage.as_asgi()),
    path("live/services/<str:cell>/<str:tenant>/<str:service>/", ServicePage.as_asgi()),
    path("ws/shell/<str:cell>/<str:tenant>/<str:job>/<int:index>/", Shell.as_asgi()),
    re_path(r"^ws/bns/(?P<name>.+)$", NamesWatch.as_asgi()),
    re_path(r"", Nowhere.as_asgi()),
]
