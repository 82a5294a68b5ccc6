"""The pages of journal events in the SRE console. Each event is shown as a sentence."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from portal.sigma.reads.event_sentences import of
from scheduling.admin.events import EventAdmin


class JournalAdmin(EventAdmin):
    """The pages of journal events in the SRE console. Each event is shown as a sentence. The tooltip of the sentence is
    the kind of the event.
    """

    list_display = ["place", "when", "sentence", "about", "machine_shown", "actor", "request_id", "cause"]

    @display(description=_("what happened"))
    def sentence(self, event: Any) -> SafeString:
        hostnames = {event.machine_id: event.names[2]} if event.names[2] else {}
        return format_html('<span title="{}">{}</span>', event.kind, of(event, hostnames))
