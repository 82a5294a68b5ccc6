"""Compressed answers: pages and JSON, but nothing that is streamed or compressed already."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware

_COMPRESSIBLE = ("text/", "application/json", "application/problem+json", "application/vnd.oai.openapi")


class CompressionMiddleware(GZipMiddleware):
    """Django's, which hides lengths by random bytes (BREACH); CSRF tokens in pages are masked in each answer.

    Downloads stream, and files of packages, PDFs and static files are compressed already.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming or not response.get("Content-Type", "").startswith(_COMPRESSIBLE):
            return response
        return super().process_response(request, response)
