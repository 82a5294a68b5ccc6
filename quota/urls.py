"""Routes of this app below /api/v1/."""

from __future__ import annotations

urlpatterns: list = []
