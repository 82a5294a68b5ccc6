"""Admin pages that show the effect of a change first, and make the change when the user confirms it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from quota.admin.base import ServiceAdmin
from quota.vocabulary.errors import Conflict

_CONFIRMED = "_confirmed"


@dataclass(frozen=True)
class Table:
    title: str
    headers: Sequence[Any]
    rows: Sequence[Sequence[Any]]
    empty: str = ""

    @property
    def table(self) -> dict[str, Any]:
        """Return the headers and rows as the dict that the table component of django-unfold needs."""
        return {"headers": list(self.headers), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True)
class Preview:
    """The content of a preview page, which shows a change before the user confirms it: notes, warnings and tables."""

    title: str
    notes: Sequence[Any] = ()
    warnings: Sequence[Any] = ()
    tables: Sequence[Table] = ()


class PreviewedAdmin(ServiceAdmin):
    """An admin form that shows the effect of a change before it makes the change.

    The first POST request changes nothing and shows the result of `preview`. After the user has confirmed, the second
    POST request calls `make`.
    """

    def make(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        """Create a row or change `row`, and return the saved row. Each subclass calls its own service function.

        `given`: the values from the form. `row`: the row to change, or None to create one. Raises `Rejected` if the
        service rejects the data.
        """
        raise NotImplementedError

    def preview(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Preview:
        raise NotImplementedError

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        if _CONFIRMED in request.POST:
            return self.make(request, given, row)
        again = hasattr(request, "borg_preview")  # the form was rejected once in this request, and is shown again
        cast(Any, request).borg_preview = None
        with transaction.atomic():
            preview = self.preview(request, given, row)
            made = self.make(request, given, row)
            transaction.set_rollback(True)
        if again:
            raise Conflict(
                "changed-meanwhile", _("The data has changed since the preview. Check the new preview and save again.")
            )
        cast(Any, request).borg_preview = preview
        return made

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if request.method == "POST" and _CONFIRMED not in request.POST:
            confirmation = self._confirmation(request, object_id)
            if confirmation is not None:
                return confirmation
        return super().changeform_view(request, object_id, form_url, extra_context)

    def _confirmation(self, request: HttpRequest, object_id: str | None) -> HttpResponse | None:
        """Return the page that shows what the change would do and asks the user to confirm the change. Return None if
        the form has errors or the object does not exist.
        """
        row = self.get_object(request, unquote(object_id)) if object_id else None
        if object_id and row is None:
            return None
        allowed = self.has_change_permission(request, row) if row else self.has_add_permission(request)
        if not allowed:
            raise PermissionDenied
        form = self.get_form(request, row, change=row is not None)(request.POST, request.FILES, instance=row)
        if not form.is_valid():
            return None
        preview = cast(Any, request).borg_preview
        context = {
            **self.admin_site.each_context(request),
            "title": preview.title,
            "opts": self.model._meta,
            "preview": preview,
            "confirmed": _CONFIRMED,
            "given": [
                (name, value)
                for name, values in request.POST.lists()
                if name != "csrfmiddlewaretoken"
                for value in values
            ],
        }
        return TemplateResponse(request, "console/preview.html", context)
