"""Common parts of quota's REST views: the caller, the tenant of the path, checked input, and lists."""

from __future__ import annotations

from typing import Any, cast

from rest_framework import exceptions, serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request

from quota import selectors
from quota.dry_run import RehearsedView
from quota.models import Tenant
from quota.paging import IdPaging
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import as_mapping


class QuotaView(RehearsedView):
    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Reject the request if its path or query contains a NUL character, because PostgreSQL cannot store it."""
        super().initial(request, *args, **kwargs)
        for name, value in (*kwargs.items(), *request.query_params.items()):
            if "\x00" in str(value):
                raise invalid(name, f"{name} contains a NUL character; remove the character")

    @property
    def principal(self) -> Principal:
        """Return the caller. The default permission rejects anonymous requests."""
        return cast("Principal", self.request.auth)

    def tenant(self, action: Action | None = None) -> Tenant:
        """Return the tenant that the path names.

        Raises `NotFound`, or `Forbidden` if the caller may not do `action` in this tenant.
        """
        row = selectors.tenant_named(self.principal, self.kwargs["tenant"])
        if action is not None:
            require(self.principal, action, tenant=row.name)
        return row

    def body(self, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """Return the validated body of the request. Raises `ValidationError` if the body is not valid."""
        return valid(serializer, self.request.data)

    def query(self, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """Return the validated parameters of the query.

        Empty and unknown parameters are ignored. Raises `ValidationError` if a parameter is not valid.
        """
        known = serializer().fields
        given = self.request.query_params.items()
        return valid(serializer, {name: value for name, value in given if value and name in known})


class ListView(QuotaView, ListAPIView[Any]):
    pagination_class = IdPaging


class AmountsField(serializers.DictField):
    """A field that shows a vector of amounts as `{resource name: quantity}`."""

    child = serializers.IntegerField()

    def to_representation(self, value: Any) -> dict[str, int]:
        return as_mapping(value)


def valid(serializer: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:
    """Return the validated data. Raises `ValidationError` for invalid values and for unknown fields."""
    given = serializer(data=data)
    given.is_valid(raise_exception=True)
    unknown = sorted(set(data) - set(given.fields)) if isinstance(data, dict) else []
    if unknown:
        known = ", ".join(given.fields)
        raise exceptions.ValidationError(dict.fromkeys(unknown, f"this field is unknown; give only the fields {known}"))
    return dict(given.validated_data)
