"""REST API for locks: small texts that one holder at a time owns, with fencing tokens and sequence numbers."""

from __future__ import annotations

import re
import uuid
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from quota import selectors as tenants
from quota.dry_run import DRY_RUN
from quota.models import Tenant
from quota.paging import MAX_PAGE, PAGE
from quota.vocabulary.errors import invalid
from scheduling.api.base import CellView, whole
from scheduling.api.preconditions import IDEMPOTENCY_KEY, idempotency_key
from scheduling.locks import user_locks
from scheduling.locks.lock_rules import LEAST_LEASE_S, LONGEST_LEASE_S, MAX_CONTENT_BYTES, MOST_WAIT_S, TASK_LEASE_S
from scheduling.locks.locks import Lock

_SECONDS = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?", re.ASCII)
_BIGGEST = 2**63 - 1
_WAIT_S = OpenApiParameter(
    "wait_s",
    OpenApiTypes.FLOAT,
    description=f"Seconds to wait, 0 to {MOST_WAIT_S:g}. A `GET` waits for a change after the number `after`, and"
    " `acquire` waits until the lock is free.",
)
_KEY = OpenApiParameter(
    IDEMPOTENCY_KEY,
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="A key that you choose, at most 64 characters, if `session` is null. A repeated request with the same"
    " key acquires the lock for the session that the first request began. Use a new key for each acquisition: programs"
    " that use the same key share the session.",
)
_IF_SEQUENCE = OpenApiParameter(
    "if_sequence", OpenApiTypes.INT, description="Only if this is the sequence number of the lock."
)


class LockSummarySerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    sequence = serializers.IntegerField(help_text="The number of changes of the content.")
    token = serializers.IntegerField(help_text="The fencing token of the last acquisition. It only grows.")
    held = serializers.SerializerMethodField(help_text="Whether a session holds the lock now.")
    holder = serializers.CharField(allow_null=True, help_text="A user, or job/index of a task.")
    left_s = serializers.FloatField(help_text="How long the lease of the holder lasts without a renewal, in seconds.")
    acquired_at = serializers.DateTimeField(allow_null=True)
    changed_at = serializers.DateTimeField()
    changed_by = serializers.CharField()

    def get_held(self, row: Lock) -> bool:
        return row.holder is not None


class LockSerializer(LockSummarySerializer):
    content = serializers.CharField()


class AcquiredLockSerializer(LockSerializer):
    session = serializers.UUIDField(
        help_text="The session that holds the lock. Renew the session before its lease ends."
    )
    again = serializers.SerializerMethodField(help_text="Whether the session held the lock before.")

    def get_again(self, row: Lock) -> bool:
        return bool(self.context["again"])


class LockPageSerializer(serializers.Serializer[Any]):
    next = serializers.URLField(allow_null=True)
    results = LockSummarySerializer(many=True)


class LockAcquisitionSerializer(serializers.Serializer[Any]):
    session = serializers.UUIDField(required=False, allow_null=True, default=None, help_text="Empty for a new one.")
    lease_s = serializers.FloatField(
        default=TASK_LEASE_S, help_text=f"Lease of a new session in seconds, {LEAST_LEASE_S:g} to {LONGEST_LEASE_S:g}."
    )
    content = serializers.CharField(
        required=False, allow_null=True, allow_blank=True, default=None, trim_whitespace=False
    )


class LockReleaseSerializer(serializers.Serializer[Any]):
    session = serializers.UUIDField()


class LockContentSerializer(serializers.Serializer[Any]):
    content = serializers.CharField(
        allow_blank=True, trim_whitespace=False, help_text=f"Text of at most {MAX_CONTENT_BYTES} bytes in UTF-8."
    )
    if_sequence = serializers.IntegerField(
        required=False, allow_null=True, default=None, min_value=0, max_value=_BIGGEST, help_text="0: only a new lock."
    )
    token = serializers.IntegerField(required=False, allow_null=True, default=None, min_value=0, max_value=_BIGGEST)


class LockSessionSerializer(serializers.Serializer[Any]):
    session = serializers.UUIDField()
    lease_s = serializers.FloatField(help_text="The lease, which begins now.")


class LockReleasedSerializer(serializers.Serializer[Any]):
    session_continues = serializers.BooleanField(
        help_text="Whether the session still exists. It ends if it held no other lock."
    )


class _LocksView(CellView):
    def tenant_named(self, name: str) -> Tenant:
        return tenants.tenant_named(self.principal, name)

    def number(self, name: str) -> int | None:
        """Return a query parameter as a number, or None if it is not given."""
        if name not in self.request.query_params:
            return None
        return whole(self.request, name, 0, low=0, high=_BIGGEST)

    def check_wait(self) -> None:
        """Raise `Rejected` if `wait_s` is not valid. `portal.live.lock_polls` has already waited."""
        given = self.request.query_params.get("wait_s", "0")
        if not _SECONDS.fullmatch(given) or float(given) > MOST_WAIT_S:
            raise invalid("wait_s", f"{given[:20]!r} is not a time in seconds; give 0 to {MOST_WAIT_S:g}")


class LocksView(_LocksView):
    @extend_schema(
        operation_id="locks_list",
        parameters=[
            OpenApiParameter("prefix", OpenApiTypes.STR, description="The beginning of the names."),
            OpenApiParameter("after", OpenApiTypes.STR, description="The last name of the page before."),
            OpenApiParameter("limit", OpenApiTypes.INT, description=f"Locks per page, at most {MAX_PAGE}."),
        ],
        responses=LockPageSerializer,
    )
    def get(self, request: Request, cell: str, tenant: str) -> Response:
        """List the locks of a tenant in a cell, in the order of their names, without their contents."""
        given = request.query_params
        found, more = user_locks.lock_page(
            self.principal,
            self.cell(cell),
            self.tenant_named(tenant),
            prefix=given.get("prefix", "")[:250],
            after=given.get("after", "")[:250],
            limit=whole(request, "limit", PAGE, low=1, high=MAX_PAGE),
        )
        following = replace_query_param(request.build_absolute_uri(), "after", found[-1].name) if more else None
        return Response({"next": following, "results": LockSummarySerializer(found, many=True).data})


class LockView(_LocksView):
    @extend_schema(
        operation_id="locks_get",
        parameters=[
            OpenApiParameter("after", OpenApiTypes.INT, description="A sequence number, for a watch with `wait_s`."),
            _WAIT_S,
        ],
        responses=LockSerializer,
    )
    def get(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Return a lock with its content."""
        self.check_wait()
        self.number("after")
        row = user_locks.lock_shown(self.principal, self.cell(cell), self.tenant_named(tenant), name)
        return Response(LockSerializer(row).data)

    @extend_schema(
        operation_id="locks_set", parameters=[DRY_RUN], request=LockContentSerializer, responses=LockSerializer
    )
    def put(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Write the content of a lock, and create it if it does not exist. A write needs no acquisition."""
        row = user_locks.lock_write(
            principal=self.principal,
            cell=self.cell(cell),
            tenant=self.tenant_named(tenant),
            name=name,
            **self.body(LockContentSerializer),
        )
        return Response(LockSerializer(row).data)

    @extend_schema(operation_id="locks_delete", parameters=[DRY_RUN, _IF_SEQUENCE], responses={204: None})
    def delete(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Delete a lock that is free."""
        user_locks.lock_delete(
            principal=self.principal,
            cell=self.cell(cell),
            tenant=self.tenant_named(tenant),
            name=name,
            if_sequence=self.number("if_sequence"),
        )
        return Response(status=204)


class LockAcquireView(_LocksView):
    @extend_schema(
        operation_id="locks_acquire",
        parameters=[DRY_RUN, _WAIT_S, _KEY],
        request=LockAcquisitionSerializer,
        responses=AcquiredLockSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Acquire a lock. Its new fencing token is higher than all earlier ones."""
        self.check_wait()
        row, again = user_locks.lock_acquire(
            principal=self.principal,
            cell=self.cell(cell),
            tenant=self.tenant_named(tenant),
            name=name,
            key=idempotency_key(request),
            **self.body(LockAcquisitionSerializer),
        )
        return Response(AcquiredLockSerializer(row, context={"again": again}).data)


class LockReleaseView(_LocksView):
    @extend_schema(
        operation_id="locks_release",
        parameters=[DRY_RUN],
        request=LockReleaseSerializer,
        responses=LockReleasedSerializer,
    )
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """Release a lock that a session of the caller holds."""
        continues = user_locks.lock_release(
            principal=self.principal,
            cell=self.cell(cell),
            tenant=self.tenant_named(tenant),
            name=name,
            **self.body(LockReleaseSerializer),
        )
        return Response({"session_continues": continues})


class LockEvictView(_LocksView):
    @extend_schema(operation_id="locks_evict", parameters=[DRY_RUN], request=None, responses=LockSerializer)
    def post(self, request: Request, cell: str, tenant: str, name: str) -> Response:
        """End the session that holds a lock, which frees all its locks. Only for owners."""
        row = user_locks.lock_evict(
            principal=self.principal, cell=self.cell(cell), tenant=self.tenant_named(tenant), name=name
        )
        return Response(LockSerializer(row).data)


class LockSessionView(_LocksView):
    @extend_schema(
        operation_id="lock_sessions_renew", parameters=[DRY_RUN], request=None, responses=LockSessionSerializer
    )
    def post(self, request: Request, cell: str, tenant: str, lock_session: uuid.UUID) -> Response:
        """Renew the lease of a session of the caller."""
        lease_s = user_locks.session_renew(
            principal=self.principal, cell=self.cell(cell), tenant=self.tenant_named(tenant), session=lock_session
        )
        return Response({"session": lock_session, "lease_s": lease_s})

    @extend_schema(operation_id="lock_sessions_end", parameters=[DRY_RUN], responses={204: None})
    def delete(self, request: Request, cell: str, tenant: str, lock_session: uuid.UUID) -> Response:
        """End a session of the caller, which releases all its locks. Idempotent."""
        user_locks.session_end(
            principal=self.principal, cell=self.cell(cell), tenant=self.tenant_named(tenant), session=lock_session
        )
        return Response(status=204)
