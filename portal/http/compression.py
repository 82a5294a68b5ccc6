"""Compression of pages and JSON, but not of answers that are streamed or already compressed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware

_COMPRESSIBLE = ("text/", "application/json", "application/problem+json", "application/vnd.oai.openapi")


class CompressionMiddleware(GZipMiddleware):
    """Django's middleware, which hides lengths with random bytes (BREACH). Pages mask CSRF tokens in each answer.

    Downloads are streamed. Packages, PDFs and static files are already compressed.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or not response.get("Content-Type", "").startswith(_COMPRESSIBLE):
            return response
        return super().process_response(request, response)
