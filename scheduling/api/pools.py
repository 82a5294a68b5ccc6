"""REST views of machine pools, and of attributes that SREs set on machines."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging, paged
from quota.vocabulary.permissions import Action, may, require
from scheduling.api.base import CellView, valid
from scheduling.api.fields import Texts
from scheduling.api.machine_choice import MachineChoiceSerializer, machines_chosen
from scheduling.core.vocabulary.states import PoolUse
from scheduling.models import Cell, Pool
from scheduling.pools import selectors
from scheduling.pools.attributes import attributes_set, machines_assign
from scheduling.pools.pools import MOST_TENANTS, pool_change, pool_delete, pool_write
from scheduling.pools.rules import MOST_SET

_CONFIRM = "Confirms a very large change: the number of tasks that have to leave dedicated pools because of it."


class PoolSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(source="pool.name")
    description = serializers.CharField(source="pool.description")
    selector = serializers.CharField(
        source="pool.selector", help_text="Machines that match belong to the pool, beside those assigned to it."
    )
    tenants = serializers.ListField(
        child=serializers.CharField(), help_text="The tenants of the pool. Tenants see only their own names."
    )
    dedicated = serializers.BooleanField(source="pool.dedicated", help_text="Only tasks of these tenants run there.")
    use = serializers.CharField(
        source="pool.use", help_text="`may`, `prefer` or `must`: whether tasks of these tenants run there."
    )
    others = serializers.CharField(
        source="pool.others",
        help_text="Running tasks of other tenants `stay` until they end, or `leave` within disruption budgets.",
    )
    machines = serializers.IntegerField(help_text="Number of its machines.")
    up = serializers.IntegerField(help_text="Number of its machines that are up.")
    tasks = serializers.IntegerField(
        allow_null=True, help_text="Tasks that run there. Null for callers who do not administer machines."
    )
    foreign = serializers.IntegerField(
        allow_null=True, help_text="How many of `tasks` belong to tenants for which the pool is not dedicated."
    )
    changed_by = serializers.CharField(source="pool.changed_by")
    changed_at = serializers.DateTimeField(source="pool.changed_at")


class ForeignJobSerializer(serializers.Serializer[Any]):
    job = serializers.CharField(help_text="The job, as `tenant/job`.")
    tasks = serializers.IntegerField(help_text="Tasks of the job on machines of the pool.")
    may = serializers.IntegerField(help_text="Number of the job's tasks that may be down at once.")
    down = serializers.IntegerField(help_text="Number of the job's tasks that are down now.")


class PoolPreviewSerializer(serializers.Serializer[Any]):
    foreign = ForeignJobSerializer(many=True, help_text="Jobs of other tenants there, those with most tasks first.")
    foreign_jobs = serializers.IntegerField(help_text="Number of these jobs.")
    outside = serializers.IntegerField(
        help_text="Tasks of tenants that must run in the pool, and that run elsewhere. They stay there until they end."
    )


class PoolDetailSerializer(PoolSerializer):
    preview = PoolPreviewSerializer(
        allow_null=True,
        help_text="Running tasks that this pool affects. Null if the caller does not administer machines.",
    )


class PoolChangeSerializer(serializers.Serializer[Any]):
    description = serializers.CharField(max_length=300, required=False, allow_blank=True)
    selector = serializers.CharField(
        max_length=2000,
        required=False,
        allow_blank=True,
        help_text="Label selector over attributes that SREs have set, and `hostname`, `platform`, `rack` and"
        " `power_domain`. Machines that match belong to the pool.",
    )
    tenants = serializers.ListField(
        child=serializers.CharField(max_length=63), required=False, max_length=MOST_TENANTS, help_text="Tenants' names."
    )
    dedicated = serializers.BooleanField(required=False, help_text="Only tasks of these tenants run there.")
    use = serializers.ChoiceField(
        choices=[use.value for use in PoolUse],
        required=False,
        help_text="Whether tasks of the tenants `may`, `prefer` to, or `must` run there.",
    )
    others = serializers.ChoiceField(
        choices=list(Pool.OTHERS),
        required=False,
        help_text="Running tasks of other tenants `stay` until they end, or `leave` within disruption budgets.",
    )
    confirm = serializers.IntegerField(required=False, allow_null=True, help_text=_CONFIRM)


class PoolWriteSerializer(PoolChangeSerializer):
    name = serializers.CharField(
        max_length=63, help_text="A DNS label. Jobs may ask for it: `pool = NAME`. All users of the cell see it."
    )


class MachinesAttributesSerializer(MachineChoiceSerializer):
    set = Texts(required=False, default=dict, help_text="Values by name, at most 64.")
    unset = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        default=list,
        max_length=MOST_SET,
        help_text="Names of attributes to remove.",
    )
    reason = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    confirm = serializers.IntegerField(required=False, allow_null=True, default=None, help_text=_CONFIRM)


class MachinesPoolSerializer(MachineChoiceSerializer):
    pool = serializers.CharField(
        max_length=63, allow_blank=True, help_text="Name of the pool. Empty: selectors of pools decide again."
    )
    reason = serializers.CharField(max_length=300, required=False, default="", allow_blank=True)
    confirm = serializers.IntegerField(required=False, allow_null=True, default=None, help_text=_CONFIRM)


class ChangedMachinesSerializer(serializers.Serializer[Any]):
    chosen = serializers.IntegerField(help_text="Number of machines that the request chose.")
    changed = serializers.ListField(child=serializers.CharField(), help_text="Names of the machines that changed.")


class PoolsView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="pools_list", responses=PoolSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the machine pools of the cell. Tenants see the pools that name them."""
        found = self.cell(cell)
        rows = selectors.pools_of(self.principal, found)
        return paged(
            self, rows, lambda page: PoolSerializer(selectors.states_of(self.principal, found, page), many=True).data
        )

    @extend_schema(operation_id="pools_create", request=PoolWriteSerializer, responses={201: PoolDetailSerializer})
    def post(self, request: Request, cell: str) -> Response:
        """Write a machine pool. Machines belong to it by its selector, or because they are assigned to it. With
        `dry_run`, the answer shows which running tasks the pool would concern.
        """
        found = self.cell(cell)
        given = valid(PoolWriteSerializer, request.data)
        return Response(_detail(self, found, pool_write(principal=self.principal, cell=found, **given)), 201)


class PoolView(CellView):
    @extend_schema(operation_id="pools_retrieve", responses=PoolDetailSerializer)
    def get(self, request: Request, cell: str, pool: str) -> Response:
        """Show a machine pool: its machines, and the running tasks of other tenants there."""
        found = self.cell(cell)
        return Response(_detail(self, found, selectors.pool_named(self.principal, found, pool)))

    @extend_schema(operation_id="pools_change", request=PoolChangeSerializer, responses=PoolDetailSerializer)
    def patch(self, request: Request, cell: str, pool: str) -> Response:
        """Change a machine pool. With `dry_run`, the answer shows which running tasks the change would concern."""
        found = self.cell(cell)
        given = valid(PoolChangeSerializer, request.data)
        changed = pool_change(principal=self.principal, cell=found, name=pool, **given)
        return Response(_detail(self, found, changed))

    @extend_schema(operation_id="pools_delete", responses={204: None})
    def delete(self, request: Request, cell: str, pool: str) -> Response:
        """Delete a machine pool. Its machines belong to no pool then."""
        pool_delete(principal=self.principal, cell=self.cell(cell), name=pool)
        return Response(status=204)


class MachinesAttributesView(CellView):
    @extend_schema(
        operation_id="machines_attributes", request=MachinesAttributesSerializer, responses=ChangedMachinesSerializer
    )
    def post(self, request: Request, cell: str) -> Response:
        """Set or remove attributes of machines, chosen by name, rack, power domain or a selector. Constraints of jobs
        use them like those that the machines report. Either all of these machines change or none does.
        """
        found = self.cell(cell)
        require(self.principal, Action.MACHINE_ADMIN, cell=found.name)
        given = valid(MachinesAttributesSerializer, request.data)
        rows = machines_chosen(found, given)
        changed = attributes_set(
            principal=self.principal,
            cell=found,
            machines=rows,
            values=given["set"],
            removed=given["unset"],
            reason=given["reason"],
            confirm=given["confirm"],
        )
        return Response({"chosen": len(rows), "changed": [one.hostname for one in changed]})


class MachinesPoolView(CellView):
    @extend_schema(operation_id="machines_pool", request=MachinesPoolSerializer, responses=ChangedMachinesSerializer)
    def post(self, request: Request, cell: str) -> Response:
        """Put machines into a pool, chosen by name, rack, power domain or a selector. The assignment wins over the
        selectors of pools.
        """
        found = self.cell(cell)
        require(self.principal, Action.MACHINE_ADMIN, cell=found.name)
        given = valid(MachinesPoolSerializer, request.data)
        rows = machines_chosen(found, given)
        changed = machines_assign(principal=self.principal, cell=found, machines=rows, **given)
        return Response({"chosen": len(rows), "changed": [one.hostname for one in changed]})


def _detail(view: CellView, cell: Cell, row: Pool) -> Any:
    (state,) = selectors.states_of(view.principal, cell, [row])
    document = dict(PoolSerializer(state).data)
    sre = may(view.principal, Action.MACHINE_ADMIN, cell=cell.name)
    document["preview"] = PoolPreviewSerializer(selectors.preview_of(view.principal, row)).data if sre else None
    return document
