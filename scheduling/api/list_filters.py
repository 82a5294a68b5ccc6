"""Query parameters by which lists are filtered, as the OpenAPI document describes them."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

_FORMS = (
    "match all conditions, separated by commas: `key=value`, `key!=value`, `key in (a,b)`, `key notin (a,b)`, `key`"
    " (has the label) and `!key` (does not have it)."
)
TENANT = OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only jobs of this tenant.")
PREFIX = OpenApiParameter(
    "prefix", OpenApiTypes.STR, description="Return only objects whose names begin with this text."
)
LABEL = OpenApiParameter(
    "label", OpenApiTypes.STR, many=True, description="Return only jobs with the label key=value. You can repeat it."
)
OF_JOBS = OpenApiParameter("selector", OpenApiTypes.STR, description=f"Return only jobs whose labels {_FORMS}")
OF_MACHINES = OpenApiParameter(
    "selector",
    OpenApiTypes.STR,
    description=f"Return only machines whose attributes {_FORMS} The attributes `hostname`, `platform`, `rack` and"
    " `power_domain` always exist.",
)
