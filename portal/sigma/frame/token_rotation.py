"""The rotation of tokens on the pages of a user and of a service account: the form, and a warning at revocation."""

from __future__ import annotations

import datetime as dt

from django.http import QueryDict
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.sigma.frame.page import number_among
from quota.models import Token
from quota.tenancy.token_rotation import token_rotate
from quota.vocabulary.permissions import Principal

# The offered times in hours for which both tokens are valid.
OVERLAPS = [0, 1, 6, 24, 72, 168]
_USUAL = 24


def overlap_options() -> SafeString:
    """Return the HTML of the choices of `OVERLAPS`. A list shows them once per token, so a page renders them only
    once.
    """
    return format_html_join(
        "",
        '<option value="{}"{}>{}</option>',
        (
            (hours, SafeString(" selected") if hours == _USUAL else "", ngettext("%d hour", "%d hours", hours) % hours)
            for hours in OVERLAPS
        ),
    )


def rotated(principal: Principal, post: QueryDict) -> tuple[Token, str]:
    """Rotate the token that the form names. Return the new token and its secret. Raises `Rejected` like
    `token_rotate`.
    """
    hours = number_among(post, "hours", OVERLAPS)
    return token_rotate(principal=principal, key=post.get("key", "")[:16], overlap=dt.timedelta(hours=hours))


def successor_stays(key: str) -> str:
    """Return the warning after the revocation of a token that the token `key` has replaced."""
    text = _(
        "Token %(key)s, which replaced it, is not revoked by this. If the old secret was stolen, revoke %(key)s too."
    )
    return text % {"key": key}
