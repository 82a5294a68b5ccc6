"""`?dry_run=1` on every write: the request runs in full – permissions, checks, locks – and is taken back."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.views import APIView

from quota.vocabulary.errors import Rejected

DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Check everything, change nothing.")


def dry_run(request: Request | HttpRequest) -> bool:
    """Return whether the request has `?dry_run=1`. Raises `Rejected` for other values, which must not change
    anything.
    """
    given = request.GET.get("dry_run", "0").lower()
    if given not in ("0", "false", "", "1", "true"):
        raise Rejected("invalid", f"dry_run: {given!r}; give 1 or 0", fields={"dry_run": "1 or 0"})
    return given in ("1", "true")


class RehearsedView(APIView):
    """A view whose writes can be rehearsed. What it answers then is what it would answer, secrets left out.

    `rehearses_itself`: its services know of dry runs and do less than everything for one.
    """

    rehearses_itself: ClassVar[bool] = False

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method not in SAFE_METHODS:
            dry_run(request)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if self.rehearses_itself or request.method in SAFE_METHODS or not _asked(request):
            answer: HttpResponse = super().dispatch(request, *args, **kwargs)  # type: ignore[assignment]
            return answer
        with transaction.atomic():
            answer = super().dispatch(request, *args, **kwargs)  # type: ignore[assignment]
            transaction.set_rollback(True)
        return answer


def _asked(request: HttpRequest) -> bool:
    """Return whether to rehearse: always, unless the request says no. `initial` then rejects unclear values."""
    return request.GET.get("dry_run", "0").lower() not in ("0", "false", "")
