"""REST view of one event with its causes and effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.vocabulary.errors import NotFound
from scheduling.api.base import CellView
from scheduling.api.cells import event_names
from scheduling.api.task_serializers import EventSerializer
from scheduling.history.causes.chains import LinkedEvent, chain_of
from scheduling.history.causes.rules import Link


class LinkedEventSerializer(serializers.Serializer[Any]):
    """An event in a chain. `link`: how it is linked to the event before it. `event`: null if you may not see its job;
    then only `kind`, `time`, and the `priority` and `band` of the job are known.
    """

    link = serializers.ChoiceField([link.value for link in Link])
    kind = serializers.CharField()
    time = serializers.DateTimeField()
    priority = serializers.IntegerField(allow_null=True)
    band = serializers.CharField(allow_blank=True)
    event = EventSerializer(allow_null=True)


class EventChainSerializer(serializers.Serializer[Any]):
    """An event with its `causes`, the nearest first, and its `effects`."""

    event = EventSerializer()
    causes = LinkedEventSerializer(many=True)
    effects = LinkedEventSerializer(many=True)


class EventView(CellView):
    @extend_schema(operation_id="cells_event", responses=EventChainSerializer)
    def get(self, request: Request, cell: str, place: str) -> Response:
        """Return the event at the place `REVISION.SEQ` of the journal, with its causes and effects."""
        revision, dot, seq = place.partition(".")
        whole = revision.isascii() and revision.isdecimal() and seq.isascii() and seq.isdecimal()
        if not dot or not whole or len(revision) > 18 or len(seq) > 9:
            raise NotFound("event", place[:40])
        chain = chain_of(self.principal, self.cell(cell), (int(revision), int(seq)))
        linked = (chain.event, *chain.causes, *chain.effects)
        names = event_names([one.event for one in linked if not one.hidden])
        document = {
            "event": chain.event.event,
            "causes": _documents(chain.causes),
            "effects": _documents(chain.effects),
        }
        return Response(EventChainSerializer(document, context=names).data)


def _documents(events: Sequence[LinkedEvent]) -> list[dict[str, object]]:
    return [
        {
            "link": one.link,
            "kind": one.event.kind,
            "time": one.event.time,
            "priority": one.priority,
            "band": one.band,
            "event": None if one.hidden else one.event,
        }
        for one in events
    ]
