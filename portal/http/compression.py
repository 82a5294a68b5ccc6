"""Compression of pages and JSON. Responses that Django streams, or that are already compressed, stay as they are."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware

_COMPRESSIBLE = ("text/", "application/json", "application/problem+json", "application/vnd.oai.openapi")


class CompressionMiddleware(GZipMiddleware):
    """Django's middleware for compression, limited to some content types. Packages, PDFs and static files are already
    compressed.

    Compression makes the attack BREACH possible. Against it, Django adds random bytes to each response and masks the
    CSRF token in each page.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or not response.get("Content-Type", "").startswith(_COMPRESSIBLE):
            return response
        return super().process_response(request, response)
