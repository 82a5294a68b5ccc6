"""The view that returns the OpenAPI document."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request


class SchemaView(SpectacularAPIView):
    """The view that returns the OpenAPI document. Each process creates the document once for each format."""

    _rendered: ClassVar[dict[str, HttpResponse]] = {}

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        if renderer.format not in self._rendered:
            made = super().get(request, *args, **kwargs)  # type: ignore[no-untyped-call]
            content = renderer.render(made.data, request.accepted_media_type, self.get_renderer_context())
            self._rendered[renderer.format] = HttpResponse(
                content,
                content_type=f"{renderer.media_type}; charset=utf-8",
                headers={"Content-Disposition": made.headers["Content-Disposition"]},
            )
        return copy(self._rendered[renderer.format])
