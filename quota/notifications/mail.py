"""E-mail of the portal, as plain text and as simple HTML."""

from __future__ import annotations

import smtplib
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from quota.notifications.webhook_client import DeliveryFailed


def absolute(path: str) -> str:
    """Return the absolute URL of a path of the portal, for links in mails."""
    return settings.PORTAL_URL.rstrip("/") + path if path else ""


def letter(
    to: str,
    subject: str,
    text: str,
    *,
    path: str = "",
    link: str = "",
    foot: str = "",
    headers: Mapping[str, str] | None = None,
) -> EmailMultiAlternatives:
    """Return a mail to one address. `path`: the page of the portal to which the mail links. `link`: the text of that
    link. `foot`: the footer.
    """
    context: dict[str, Any] = {
        "subject": subject,
        "text": text,
        "url": absolute(path),
        "link": link or _("Open the portal"),
        "foot": foot,
    }
    plain = "\n\n".join(part for part in (text, context["url"], f"-- \n{foot}" if foot else "") if part)
    mail = EmailMultiAlternatives(
        subject=f"[Borg Portal] {subject}",
        body=plain + "\n",
        from_email=settings.DEFAULT_FROM_EMAIL,
        to=[to],
        headers={"Auto-Submitted": "auto-generated", **(headers or {})},
    )
    mail.attach_alternative(render_to_string("quota/mail.html", context), "text/html")
    return mail


def send(mail: EmailMultiAlternatives) -> None:
    """Send a mail through the mail server. Raises `DeliveryFailed` if the mail server rejects the mail or cannot be
    reached.
    """
    try:
        mail.send()
    except smtplib.SMTPRecipientsRefused as error:
        code, answer = next(iter(error.recipients.values()), (0, b""))
        raise DeliveryFailed(
            f"the mail server rejected the address: {_plain(answer)}; check the address of this channel",
            final=500 <= code < 600,
        ) from error
    except smtplib.SMTPResponseException as error:
        detail = (
            f"the mail server rejected the mail with code {error.smtp_code}: {_plain(error.smtp_error)}; ask an SRE"
        )
        raise DeliveryFailed(
            detail, final=isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500
        ) from error
    except (smtplib.SMTPException, OSError) as error:
        raise DeliveryFailed(
            f"cannot send mail: {error or type(error).__name__}; check that the mail server runs and accepts the mail"
        ) from error


def _plain(answer: bytes | str) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
