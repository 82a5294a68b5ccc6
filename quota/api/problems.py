"""The problem document (RFC 9457), which is the answer to a rejected request."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class ProblemSerializer(serializers.Serializer[Any]):
    """The reason why a request was rejected. Programs read `code`; the wording of `detail` may change."""

    type = serializers.CharField(help_text="`urn:borg:` and the code.")
    status = serializers.IntegerField(help_text="The HTTP status.")
    code = serializers.CharField()
    detail = serializers.CharField(help_text="What was asked for, what was found, and what to do.")
    fields_ = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="The errors by field of the request."
    )
    figures = serializers.DictField(
        required=False, help_text="The figures that explain the error, such as limits and amounts."
    )
    request_id = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any]]:  # type: ignore[type-arg]
        """Return the fields by name. The field `fields_` is renamed to `fields`, a name that the framework reserves."""
        return {name.rstrip("_"): field for name, field in super().get_fields().items()}
