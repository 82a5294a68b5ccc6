"""The shape of a problem document (RFC 9457), which every door answers to a rejected request."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers


class ProblemSerializer(serializers.Serializer[Any]):
    """Why a request was rejected. Programs read `code`; `detail` may be reworded."""

    type = serializers.CharField(help_text="`urn:borg:` and the code.")
    status = serializers.IntegerField(help_text="The HTTP status.")
    code = serializers.CharField()
    detail = serializers.CharField(help_text="What was asked for, what was found, and what to do.")
    fields_ = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="What is wrong, by its place in the request."
    )
    figures = serializers.DictField(
        required=False, help_text="The figures that explain the error, such as limits and amounts."
    )
    request_id = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, serializers.Field[Any]]:  # type: ignore[type-arg]
        """`fields` is a name of Django REST framework's own."""
        return {name.rstrip("_"): field for name, field in super().get_fields().items()}
