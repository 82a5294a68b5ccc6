"""Base classes of the console's pages: most data is read-only, and services make all changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django import forms
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin

from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, describe


def principal_of(request: HttpRequest) -> Principal:
    """Return the principal of the SRE who sent the request."""
    return principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))


def vector_text(vector: Sequence[int], *, extra: Sequence[str] = ()) -> SafeString:
    """Return the quantities of a vector that are not zero as one line of HTML, such as `500 cores, 2 TiB ram`. `extra`:
    the names of the resources that the cell has in addition to the built-in resources.
    """
    parts = []
    for index, (name, value) in enumerate(zip((*NAMES, *extra), vector, strict=False)):
        if value:
            text = describe(index, value, extra=extra)
            named = name == "cpu" or name.rstrip("s") in text
            parts.append(text if named else f"{text} {name}")
    return format_html('<span class="whitespace-nowrap">{}</span>', ", ".join(parts) or "0")


class LeanMedia:
    """A page of the console without Django's scripts for prepopulated fields. The console has no such fields."""

    @property
    def media(self) -> forms.Media:
        unused = ("urlify.js", "prepopulate.js", "xregexp.min.js", "xregexp.js")
        given = super().media  # type: ignore[misc]
        return forms.Media(css=given._css, js=[path for path in given._js if not str(path).endswith(unused)])


class FactsAdmin(LeanMedia, ModelAdmin):
    """An admin page that only shows rows. Users cannot add, change or delete rows there."""

    show_full_result_count = False
    list_per_page = 50
    list_filter_submit = False
    list_fullwidth = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may see the page: whether the user is an active SRE. All members of the staff are
        SREs.
        """
        return bool(request.user.is_active and request.user.is_staff)


class ServiceForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form that calls a service as the last step of its validation. The admin page of the form chooses the service.

    If the service raises `Rejected`, the form shows the error at the field to which the error belongs.
    """

    perform: ClassVar[Callable[[forms.ModelForm], Model] | None] = None  # type: ignore[type-arg]

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        if self.errors or self.perform is None:
            return
        try:
            self.instance = self.perform()
        except Rejected as problem:
            self.show_rejection(problem)

    def show_rejection(self, problem: Rejected) -> None:
        named = {name: what for name, what in problem.fields.items() if name in self.fields}
        for name, what in named.items():
            self.add_error(name, what)
        if len(named) != len(problem.fields) or not named:
            self.add_error(None, problem.detail)


class ServiceAdmin(FactsAdmin):
    """An admin page that changes rows only through services. The method `perform` calls the service."""

    form = ServiceForm
    fields_fixed: tuple[str, ...] = ()  # fields that cannot change once the row exists

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        """Call the service and return the saved row.

        `given`: the values from the form, and the present values of fields that cannot change. `row`: the row to
        change, or None to create one. Raises `Rejected` if the service rejects the data.
        """
        raise NotImplementedError

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(self.fields_fixed if obj is not None else ()))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)

        def perform(bound: forms.ModelForm) -> Model:  # type: ignore[type-arg]
            fixed = {name: getattr(obj, name) for name in self.fields_fixed} if obj is not None else {}
            return self.perform(request, {**bound.cleaned_data, **fixed}, obj)

        return type("Performing" + form.__name__, (form,), {"perform": perform})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Do nothing, because the service has already saved the row."""


class CreateOnlyAdmin(ServiceAdmin):
    """An admin page that creates rows through a service. The page of an existing row is read-only."""

    fields_shown: Sequence[str] = ()  # fields on the page of an existing row

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_fieldsets(request, obj) if obj is None else [(None, {"fields": self.fields_shown})]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is None:
            return super().get_form(request, obj, change=change, **kwargs)
        return FactsAdmin.get_form(self, request, obj, change=change, **{**kwargs, "form": forms.ModelForm})
