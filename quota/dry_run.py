"""Dry runs of all writes with `?dry_run=1`: the request runs in full and is then rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.views import APIView

from quota.vocabulary.errors import invalid

DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="True checks the request and changes nothing.")
_NO = ("0", "false", "")


def dry_run(request: Request | HttpRequest) -> bool:
    """Return whether the request has `?dry_run=1`. Raises `Rejected` if the value of `dry_run` is neither true nor
    false.
    """
    given = request.GET.get("dry_run", "0").lower()
    if given not in (*_NO, "1", "true"):
        raise invalid("dry_run", f"the value {given[:20]!r} does not switch dry runs on or off; give 1 or 0")
    return given not in _NO


@contextmanager
def rehearsal() -> Iterator[None]:
    """Run the `with` block, and roll back what it has changed."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


class RehearsedView(APIView):
    """A view whose writes support dry runs. A dry run returns the same answer as a real write, but without secrets.

    `rehearses_itself`: true if the view implements dry runs itself, so that this class does not roll them back.
    """

    rehearses_itself: ClassVar[bool] = False

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method not in SAFE_METHODS:
            dry_run(request)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        # A dry run is assumed for unclear values, which `initial` rejects.
        asked = request.GET.get("dry_run", "0").lower() not in _NO
        if self.rehearses_itself or request.method in SAFE_METHODS or not asked:
            answer: HttpResponse = super().dispatch(request, *args, **kwargs)  # type: ignore[assignment]
            return answer
        with transaction.atomic():
            answer = super().dispatch(request, *args, **kwargs)  # type: ignore[assignment]
            transaction.set_rollback(True)
        return answer
