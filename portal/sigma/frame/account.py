"""The page that replaces self-service for accounts: the portal sends no mail, and SREs create the accounts."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from portal.sigma.frame.page import rejection_page
from quota.vocabulary.errors import Rejected


def by_an_sre(request: HttpRequest) -> HttpResponse:
    """Replace the allauth pages that send mail: forgotten password, changed address and sign-up."""
    return rejection_page(
        request,
        Rejected(
            "by-an-sre",
            _("Only an SRE can create an account, change its address or reset its password. Ask an SRE."),
            status=403,
        ),
    )
