"""The parser of request bodies in JSON."""

from __future__ import annotations

import io
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

from scheduling.spec.nesting import TOO_DEEP, too_deep


class LimitedJSONParser(JSONParser):
    """A JSON parser that limits the size and the nesting depth of a body, even if the request has no Content-Length
    header.
    """

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        body = parser_context["request"]._request.body
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise RequestDataTooBig
        try:
            given = super().parse(io.BytesIO(body), media_type, parser_context)
        except RecursionError as error:
            raise ParseError(f"the JSON of the request {TOO_DEEP}") from error
        if too_deep(given):
            raise ParseError(f"the JSON of the request {TOO_DEEP}")
        return given
