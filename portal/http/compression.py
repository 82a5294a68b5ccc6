"""Compression of pages and JSON. Answers that Django streams or that are already compressed stay as they are."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware

_COMPRESSIBLE = ("text/", "application/json", "application/problem+json", "application/vnd.oai.openapi")


class CompressionMiddleware(GZipMiddleware):
    """Django's middleware, limited to some content types.

    Against the attack BREACH, Django hides the length of an answer with random bytes, and masks the CSRF token in each
    page. Packages, PDFs and static files are already compressed.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or not response.get("Content-Type", "").startswith(_COMPRESSIBLE):
            return response
        return super().process_response(request, response)
