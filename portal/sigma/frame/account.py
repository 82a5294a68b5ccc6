"""What accounts can't do by themselves here: no mail leaves this portal, and SREs make the accounts."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from portal.sigma.frame.page import refused
from quota.vocabulary.errors import Rejected


def by_an_sre(request: HttpRequest) -> HttpResponse:
    """In the place of allauth's pages that send mail: forgotten passwords, changed addresses, sign-up."""
    return refused(
        request,
        Rejected(
            "by-an-sre",
            _("Accounts, addresses and forgotten passwords are looked after by an SRE: ask one."),
            status=403,
        ),
    )
