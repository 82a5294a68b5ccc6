"""Create the cells, the first tenant and the users of a new installation, if they are missing. Print names, new
passwords and new tokens as JSON.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from portal.management.first_users import first_users_create
from quota.admission.band_changes import bands_ensure
from quota.billing.ledger import budget_grant
from quota.market.grants import quota_grant
from quota.models import Quota, Tenant
from quota.tenancy.tenants import tenant_create
from quota.vocabulary.money import CREDIT
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import Vector
from scheduling.cells.cells import cell_create
from scheduling.identity.authority import ensure_authority
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from scheduling.models import Cell

ME = system("bootstrap")
# The quota of the demonstration tenant in each band that needs quota.
DEMO_QUOTA: Vector = (1_000_000, 2**42, 2**46, 2**40, 100_000, 100_000)
# The credits of the demonstration tenant. At the initial prices, a core costs about 15 credits per month.
DEMO_CREDITS = 10_000

# The number of simulated machines that may join with one token.
FLEET_USES = 100_000


class Command(BaseCommand):
    help = "Create the bands, cells, a demonstration tenant, an SRE and a tenant user, if they are missing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--cell", dest="cells", action="append", help="a cell; may be given several times")
        parser.add_argument("--tenant", default="demo")

    def handle(self, *args: Any, cells: list[str] | None, tenant: str, **options: Any) -> None:
        names = cells or ["dev"]
        made: dict[str, Any] = {"cell": names[0], "tenant": tenant}
        ensure_authority()
        bands_ensure(principal=ME)
        made_cells = [Cell.objects.filter(name=name).first() or cell_create(principal=ME, name=name) for name in names]
        owner = Tenant.objects.filter(name=tenant).first() or tenant_create(
            principal=ME, name=tenant, title="Demonstration"
        )
        if not Quota.objects.filter(tenant=owner).exists():
            budget_grant(principal=ME, tenant=owner, amount=DEMO_CREDITS * CREDIT, text="demonstration")
        for name in names:
            self._grant_quota(owner, name)
        made |= first_users_create(principal=ME, tenant=owner)
        journal.ensure_partitions()
        # Join tokens for machines of this host that have not joined yet. Unused tokens expire.
        made["join_tokens"] = {"borglet": join_token_issue(principal=ME, cell=made_cells[0], uses=1)} | {
            "fleet" if cell is made_cells[0] else f"fleet-{cell.name}": join_token_issue(
                principal=ME, cell=cell, uses=FLEET_USES
            )
            for cell in made_cells
        }
        self.stdout.write(json.dumps(made))

    def _grant_quota(self, owner: Tenant, cell: str) -> None:
        if Quota.objects.filter(tenant=owner, cell=cell).exists():
            return
        for band in ("monitoring", "production", "batch", "best-effort"):
            quota_grant(
                principal=ME,
                tenant=owner,
                cell=cell,
                band=band,
                amounts=DEMO_QUOTA,
                reason="demonstration",
                beyond_capacity=True,
            )
