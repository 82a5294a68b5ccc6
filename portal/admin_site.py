"""The SRE console: django-unfold's admin, for staff only. Each app registers its own models in `admin`."""

from __future__ import annotations

from unfold.sites import UnfoldAdminSite


class SreSite(UnfoldAdminSite):
    pass


site = SreSite(name="admin")
