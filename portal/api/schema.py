"""How the OpenAPI document is drawn from the views."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema

from quota.rehearsal import DRY_RUN, RehearsedView


class Schema(AutoSchema):
    """Every write that can be rehearsed says so."""

    def get_override_parameters(self) -> list[Any]:
        found = list(super().get_override_parameters())
        if self.method not in ("GET", "HEAD", "OPTIONS") and isinstance(self.view, RehearsedView):
            found.append(DRY_RUN)
        return found
