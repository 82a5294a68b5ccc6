"""The table of what each person prefers on pages."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class Preferences(models.Model):
    """What a person prefers on pages. A person without a row has the defaults.

    `time_zone`: the time zone of times on pages; empty for the time zone of the browser. `first_steps`: whether the
    home page shows the first steps; empty: until all are done. `log_opened_at`: when the person first opened the log of
    a task, which is one of the first steps. `steps_done_at`: when all first steps were done.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, primary_key=True, related_name="+")
    time_zone = models.CharField(_("time zone"), max_length=64, blank=True, default="", db_default="")
    first_steps = models.CharField(
        _("first steps"),
        max_length=8,
        blank=True,
        default="",
        db_default="",
        choices=[("shown", _("shown")), ("hidden", _("hidden"))],
    )
    log_opened_at = models.DateTimeField(_("first log opened at"), null=True, blank=True)
    steps_done_at = models.DateTimeField(_("first steps done at"), null=True, blank=True)

    class Meta:
        verbose_name = _("preferences")
        verbose_name_plural = _("preferences")

    def __str__(self) -> str:
        return f"preferences of {self.user}"
