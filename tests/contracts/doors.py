"""The endpoints of the REST API, with the status of the answer for each role (`test_permissions`)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from quota import clock

ROLES = ("anonymous", "viewer", "operator", "buyer", "owner", "sre", "reader", "bound", "stranger")
"""Members of tenant `own`, by role; `reader`: the owner, through a token that may only read; `bound`: the owner of
both tenants, through a token of `own`; `stranger`: signed in, member of nothing."""

MEMBERS = ("viewer", "operator", "buyer", "owner", "reader", "bound")
OWNERS = ("owner", "bound", "sre")
WRITERS = ("operator", "owner", "bound")


@dataclass(frozen=True)
class Door:
    """An endpoint of the REST API (method and path), and the status of the answer for each role.

    At tenant `own`, the `allowed` roles get `status`, `hidden` roles get 404, and other roles get `refused`. `expect`
    lists roles with another status. At tenant `other`, the `foreign` roles get `status` and all others get 404.
    `foreign` is None if the path names no tenant. Callers without credentials (`anonymous`) get 401.
    """

    method: str
    path: str
    allowed: tuple[str, ...]
    status: int = 200
    refused: int = 403
    foreign: tuple[str, ...] | None = None
    body: Any = None
    hidden: tuple[str, ...] = ()  # members that get 404 all the same
    expect: dict[str, int] = field(default_factory=dict)


ALL = (*MEMBERS, "sre", "stranger")
JOB = "api/v1/cells/{cell}/jobs/{tenant}/{job}/"
TEMPLATE = "api/v1/cells/{cell}/templates/{tenant}/{name}/"
CRON = "api/v1/cells/{cell}/cron-jobs/{tenant}/{name}/"
WORKFLOW = "api/v1/cells/{cell}/workflows/{tenant}/{name}/"
SERVICE = "api/v1/cells/{cell}/services/{tenant}/{service}/"
POOL = "api/v1/cells/{cell}/pools/{pool}"
WINDOW = "api/v1/cells/{cell}/maintenance/{window}"
REPACKING = "api/v1/cells/{cell}/repackings/{repacking}"
PACKAGE = "api/v1/cells/{cell}/packages/{tenant}/{name}/{reference}/"
DIGEST = "sha256:" + "0" * 64
ACCOUNTS = "api/v1/tenants/{tenant}/service-accounts/"
SECRETS = "api/v1/tenants/{tenant}/secrets/"
CONFIGS = "api/v1/tenants/{tenant}/configs/"
MEMBER = "api/v1/tenants/{tenant}/members/{username}/"
ORDER = "api/v1/quota/orders/{order}/"
TOMORROW = (clock.now().replace(microsecond=0) + dt.timedelta(days=1)).isoformat()
CHANNEL = "api/v1/notices/channels/{channel}/"
OF_SERVICE = {"priority": 0, "labels": {"service": "front"}}
FILE = {"task": {"command": ["serve"]}, "tasks": 2}
TEMPLATE_FILE = {"kind": "Template", "name": "tool", "job": FILE}
CRON_FILE = {"kind": "CronJob", "name": "tool", "schedule": "@daily", "job": FILE}
WORKFLOW_FILE: dict[str, Any] = {"kind": "Workflow", "name": "tool", "nodes": {"a": {"job": FILE}}}
LOCKS = "api/v1/cells/{cell}/locks/{tenant}/"
NO_SESSION = "00000000-0000-0000-0000-000000000000"
BUDGET = "api/v1/quota/budgets/{tenant}/"
PAYS = ("buyer", "owner", "reader", "bound", "sre")
SEES = {"foreign": ("sre",), "hidden": ("stranger",)}

DOORS = (
    # sign-in and tokens
    Door("post", "api/v1/login/", (), refused=422, body={}, expect={"anonymous": 422}),
    Door("get", "api/v1/schema/", ("anonymous", *ALL)),  # the document contains no data
    Door("get", "api/v1/tokens/", ALL),
    Door(
        "post",
        "api/v1/tokens/",
        tuple(role for role in ALL if role != "reader"),
        201,
        body={"name": "t", "scopes": ["read"], "tenant": "own"},
        expect={"stranger": 404},
    ),
    # own templates are hidden from strangers, and a buyer or a viewer may not dispatch
    Door("get", "api/v1/dispatch-tokens/", ALL),
    Door(
        "post",
        "api/v1/dispatch-tokens/",
        WRITERS,
        201,
        body={"name": "t", "templates": ["cc/own/tool"]},
        expect={"stranger": 404},
    ),
    Door("delete", "api/v1/tokens/{key}/", ("sre",), refused=404),
    Door("post", "api/v1/tokens/{key}/rotate/", (), refused=404, body={}),
    # sessions belong to a person: a token that is bound to a tenant reaches none
    Door("get", "api/v1/sessions/", tuple(role for role in ALL if role != "bound")),
    Door("delete", "api/v1/sessions/", tuple(role for role in ALL if role not in ("bound", "reader"))),
    Door("delete", "api/v1/sessions/{session}/", (), refused=404),
    # tenants and quota
    Door("get", "api/v1/tenants/", ALL),
    Door("post", "api/v1/tenants/", ("sre",), 201, body={"name": "fresh"}),
    Door("get", "api/v1/tenants/{tenant}/", (*MEMBERS, "sre"), **SEES),
    Door("put", "api/v1/tenants/{tenant}/", ("owner", "bound", "sre"), body={"title": "x"}, **SEES),
    Door("get", "api/v1/tenants/{tenant}/members/", (*MEMBERS, "sre"), **SEES),
    Door("put", MEMBER, ("owner", "bound", "sre"), body={"role": "viewer"}, **SEES),
    Door("delete", MEMBER, ("viewer", "owner", "bound", "sre"), 204, **SEES),  # a member may remove itself
    Door("post", "api/v1/tenants/{tenant}/move/", ("sre",), body={"parent": None}, **SEES),
    Door("get", "api/v1/tenants/{tenant}/invitations/", OWNERS, **SEES),
    Door(
        "post",
        "api/v1/tenants/{tenant}/invitations/",
        OWNERS,
        201,
        body={"email": "new@example.org", "role": "viewer"},
        **SEES,
    ),
    Door("delete", "api/v1/tenants/{tenant}/invitations/{invitation}/", OWNERS, **SEES),
    Door("get", ACCOUNTS, (*MEMBERS, "sre"), **SEES),
    Door("post", ACCOUNTS, OWNERS, 201, body={"name": "fresh", "role": "viewer"}, **SEES),
    Door("put", ACCOUNTS + "{account}/", OWNERS, body={"enabled": False}, **SEES),
    Door("delete", ACCOUNTS + "{account}/", OWNERS, 204, **SEES),
    Door("get", ACCOUNTS + "{account}/tokens/", OWNERS, **SEES),
    Door("post", ACCOUNTS + "{account}/tokens/", OWNERS, 201, body={"name": "t"}, **SEES),
    # secrets: operators set values, owners also grant and delete
    Door("get", SECRETS, (*MEMBERS, "sre"), **SEES),
    Door("get", SECRETS + "{secret}/", (*MEMBERS, "sre"), **SEES),
    Door("put", SECRETS + "{secret}/", (*WRITERS, "sre"), 201, body={"value": "x"}, **SEES),
    Door("delete", SECRETS + "{secret}/", OWNERS, 204, **SEES),
    Door("post", SECRETS + "{secret}/grant/", OWNERS, body={"jobs": "web"}, **SEES),
    Door("post", SECRETS + "{secret}/revoke/", OWNERS, body={"jobs": "tool"}, **SEES),
    # config files: operators write and delete them
    Door("get", CONFIGS, (*MEMBERS, "sre"), **SEES),
    Door("get", CONFIGS + "{config}/", (*MEMBERS, "sre"), **SEES),
    Door("get", CONFIGS + "{config}/content/", (*MEMBERS, "sre"), **SEES),
    Door("get", CONFIGS + "{config}/diff/", (*MEMBERS, "sre"), **SEES),
    Door("put", CONFIGS + "{config}/", (*WRITERS, "sre"), 201, body={"content": "x"}, **SEES),
    Door("post", CONFIGS + "{config}/plan/", (*WRITERS, "sre"), body={"content": "x"}, **SEES),
    Door("post", CONFIGS + "{config}/rollback/", (*WRITERS, "sre"), body={"version": 1}, **SEES),
    Door("delete", CONFIGS + "{config}/", (*WRITERS, "sre"), 204, **SEES),
    Door("get", "api/v1/capabilities/", ALL),
    Door("post", "api/v1/capabilities/", ("sre",), 201, body={"user": "viewer", "kind": "shell", "reason": "x"}),
    Door("delete", "api/v1/capabilities/{capability}/", ("sre",), 204),
    Door("get", "api/v1/capabilities/requests/", ALL),
    Door(
        "post",
        "api/v1/capabilities/requests/",
        ("viewer", "operator", "buyer", "owner", "bound"),
        201,
        body={"tenant": "own", "kind": "shell", "reason": "x"},
        expect={"sre": 404, "stranger": 404},
    ),
    Door("put", "api/v1/capabilities/requests/{asked}/", ("sre",), body={"granted": True}),
    Door("get", "api/v1/records/", ALL),
    Door("get", "api/v1/quota/", ALL),
    Door("get", "api/v1/quota/bands/", ALL),
    Door(
        "put",
        "api/v1/quota/bands/{band}/",
        ("sre",),
        body={"low": 100, "high": 119, "prod": False, "preempts_within": True},
    ),
    Door("get", "api/v1/quota/prices/", ALL),
    Door("post", "api/v1/quota/prices/", ("sre",), 201, body={"cell": "cc", "base": {"cpu": 1}}),
    Door("post", "api/v1/quota/prices/what-if/", ("sre",), body={"cell": "cc", "base": {"cpu": 1}}),
    Door("get", "api/v1/quota/quotes/", ALL),
    Door(
        "post",
        "api/v1/quota/quotes/",
        ("buyer", "owner", "bound", "sre"),
        201,
        body={"tenant": "own", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}, "ends_at": "2999-01-01T00:00Z"},
        hidden=("stranger",),
    ),
    Door("get", "api/v1/quota/quotes/{quote}/", (*MEMBERS, "sre"), hidden=("stranger",)),
    Door("get", "api/v1/quota/grants/", ALL),
    Door(
        "post",
        "api/v1/quota/grants/",
        ("sre",),
        201,
        body={"tenant": "own", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}},
    ),
    Door("delete", "api/v1/quota/grants/{grant}/", ("sre",), expect={"stranger": 404}),
    # `{order}` is a pending order of `own` that waits for the decision of an owner
    Door("get", "api/v1/quota/orders/", ALL),
    Door(
        "post",
        "api/v1/quota/orders/",
        ("buyer", "owner", "bound", "sre"),
        201,
        body={"tenant": "own", "cell": "cc", "band": "batch", "amounts": {"cpu": 1}, "ends_at": TOMORROW},
        hidden=("stranger",),
    ),
    Door("get", ORDER, (*MEMBERS, "sre"), hidden=("stranger",)),
    Door("post", ORDER + "approve/", ("owner", "bound", "sre"), body={}, hidden=("stranger",)),
    Door("post", ORDER + "reject/", ("owner", "bound", "sre"), body={"reason": "no"}, hidden=("stranger",)),
    Door("post", ORDER + "cancel/", ("buyer", "owner", "bound", "sre"), body={}, hidden=("stranger",)),
    Door(
        "post",
        ORDER + "change/",
        ("buyer", "owner", "bound", "sre"),
        201,
        body={"amounts": {"cpu": 2}},
        hidden=("stranger",),
    ),
    # A user who may not buy for the other team may not see it. A pending order cannot be transferred.
    Door("post", ORDER + "transfer/", ("sre",), 409, refused=404, body={"tenant": "other"}),
    Door("post", ORDER + "renew/", ("buyer", "owner", "bound", "sre"), body={"renew": True}, hidden=("stranger",)),
    Door("get", "api/v1/quota/calendar/?cell=cc&band=batch", ALL),
    Door("get", "api/v1/quota/markets/{cell}/", ALL),
    Door("put", "api/v1/quota/markets/{cell}/", ("sre",), body={"selling": False}),
    Door("get", "api/v1/quota/rules/", ALL),
    Door("put", "api/v1/quota/rules/{rank}/", ("sre",), body={"approver": "sre"}),
    Door("delete", "api/v1/quota/rules/{rank}/", ("sre",), 204),
    Door("get", "api/v1/quota/shortfalls/", ("sre",)),
    # money: buyers and owners see it
    Door("get", "api/v1/quota/ledger/", ALL),
    Door("get", "api/v1/quota/balances/", ALL),
    Door("get", BUDGET, PAYS, **SEES),
    Door("put", BUDGET, ("owner", "bound", "sre"), body={"monthly": 5}, **SEES),
    Door("post", BUDGET + "grants/", ("sre",), 201, body={"amount": 5}, **SEES),
    Door(
        "post",
        BUDGET + "hand-down/",
        ("owner", "bound", "sre"),
        404,
        body={"to": "nobody", "amount": 5},
        foreign=(),
        hidden=("stranger",),
    ),  # there is no such team
    Door("get", "api/v1/quota/invoices/", ALL),
    Door(
        "post", "api/v1/quota/invoices/", ("sre",), 201, body={"tenant": "own", "month": "2020-01"}, expect={"sre": 409}
    ),  # there is nothing to invoice
    Door("get", "api/v1/quota/invoices/drafts/{tenant}/", PAYS, **SEES),
    Door("get", "api/v1/quota/invoices/{number}/", PAYS, hidden=("stranger",)),
    Door("get", "api/v1/quota/invoices/{number}.pdf", PAYS, hidden=("stranger",)),
    Door("get", "api/v1/quota/invoices/{number}.csv", PAYS, hidden=("stranger",)),
    Door("get", "api/v1/quota/credits/", ALL),
    Door("get", "api/v1/quota/credits.csv", ALL),
    Door("get", "api/v1/quota/credits/totals/", ("sre",)),
    Door("get", "api/v1/quota/credits/expected/{tenant}/", PAYS, **SEES),
    Door("get", "api/v1/quota/credits/{credit}/", PAYS, hidden=("stranger",)),
    Door("post", "api/v1/quota/credits/{credit}/correct/", ("sre",), body={"to": 5, "reason": "x"}),
    Door("get", "api/v1/quota/usage/", (), refused=422),  # the query with tenant and cell is missing
    Door("get", "api/v1/quota/costs/", ALL),
    Door("get", "api/v1/quota/costs.csv", ALL),
    # notices
    Door("get", "api/v1/notices/", ALL),
    Door("post", "api/v1/notices/read/", ALL, body={"up_to": 0}),
    Door("get", "api/v1/notices/kinds/", ALL),
    Door("get", "api/v1/notices/channels/", ALL),
    Door(
        "post",
        "api/v1/notices/channels/",
        ("owner", "bound", "sre"),
        201,
        body={"tenant": "own", "kind": "email", "target": "x@own.example"},
        expect={"stranger": 404},
    ),
    Door("get", CHANNEL, (*MEMBERS, "sre"), hidden=("stranger",)),
    Door("patch", CHANNEL, ("owner", "bound", "sre"), body={"level": "urgent"}, hidden=("stranger",)),
    Door("delete", CHANNEL, ("owner", "bound", "sre"), 204, hidden=("stranger",)),
    Door("post", CHANNEL + "test/", ("owner", "bound", "sre"), 201, body={}, hidden=("stranger",)),
    Door("get", CHANNEL + "secret/", ("owner", "bound", "sre"), hidden=("stranger",)),
    Door("post", CHANNEL + "secret/", ("owner", "bound", "sre"), body={}, hidden=("stranger",)),
    Door("get", CHANNEL + "deliveries/", (*MEMBERS, "sre"), hidden=("stranger",)),
    # cells and machines
    Door("get", "api/v1/sites/", ALL),
    Door("post", "api/v1/sites/", ("sre",), 201, body={"name": "fresh"}),
    Door("get", "api/v1/sites/{site}/", ALL),
    Door("patch", "api/v1/sites/{site}/", ("sre",), body={"location": "Hardturm"}),
    Door("delete", "api/v1/sites/{site}/", ("sre",), 204),
    Door("get", "api/v1/clusters/", ALL),
    Door("post", "api/v1/clusters/", ("sre",), 201, body={"name": "fresh"}),
    Door("get", "api/v1/clusters/{cluster}/", ALL),
    Door("patch", "api/v1/clusters/{cluster}/", ("sre",), body={"description": "Row 3"}),
    Door("delete", "api/v1/clusters/{cluster}/", ("sre",), 204),
    Door("get", "api/v1/cells/", ALL),
    Door("post", "api/v1/cells/", ("sre",), 201, body={"name": "fresh"}),
    Door("get", "api/v1/cells/{cell}/", ALL),
    Door("patch", "api/v1/cells/{cell}/", ("sre",), body={"cluster": ""}),
    Door("get", "api/v1/cells/{cell}/deletion/", ("sre",)),
    Door("delete", "api/v1/cells/{cell}/", ("sre",), 422),  # without the name of the cell in `confirm`
    Door("get", "api/v1/cells/{cell}/settings/", ("sre",)),
    Door("patch", "api/v1/cells/{cell}/settings/", ("sre",), body={"settings": {"scorer": "best-fit"}}),
    Door("get", "api/v1/cells/{cell}/events/", ALL),
    Door("get", "api/v1/cells/{cell}/events/{place}/", ALL),
    Door("get", "api/v1/cells/{cell}/statistics/", ("sre",)),
    Door("post", "api/v1/cells/{cell}/join-tokens/", ("sre",), 201, body={}),
    Door("get", "api/v1/cells/{cell}/machines/", ALL),
    Door("get", "api/v1/cells/{cell}/machines/{hostname}/", ALL),
    Door("post", "api/v1/cells/{cell}/machines/{hostname}:drain", ("sre",), body={"reason": "x"}),
    Door("post", "api/v1/cells/{cell}/machines:drain", ("sre",), body={"rack": "r1", "reason": "x"}),
    Door("get", "api/v1/cells/{cell}/drains/", ALL),
    Door("post", "api/v1/cells/{cell}/machines:attributes", ("sre",), body={"rack": "r1", "set": {"tier": "gold"}}),
    Door("post", "api/v1/cells/{cell}/machines:pool", ("sre",), body={"rack": "r1", "pool": ""}),
    Door("get", "api/v1/cells/{cell}/pools/", ALL),
    Door("post", "api/v1/cells/{cell}/pools/", ("sre",), 201, body={"name": "fresh"}),
    Door("get", POOL + "/", (*MEMBERS, "sre"), refused=404),
    Door("patch", POOL + "/", ("sre",), body={"description": "x"}),
    Door("delete", POOL + "/", ("sre",), 204),
    Door("get", "api/v1/cells/{cell}/maintenance/", ("sre",)),
    Door(
        "post",
        "api/v1/cells/{cell}/maintenance/",
        ("sre",),
        201,
        body={"machines": ["m1"], "ends_at": TOMORROW, "reason": "x"},
    ),
    Door("get", WINDOW + "/", ("sre",)),
    Door("patch", WINDOW + "/", ("sre",), body={"reason": "y"}),
    Door("post", WINDOW + ":cancel", ("sre",), body={}),
    Door("get", "api/v1/cells/{cell}/repackings/", ("sre",)),
    Door("post", "api/v1/cells/{cell}/repackings/", ("sre",), 201, body={"machines": 1, "reason": "x"}),
    Door("get", REPACKING + "/", ("sre",)),
    Door("get", REPACKING + "/steps/", ("sre",)),
    Door("post", REPACKING + ":start", ("sre",), body={}, expect={"sre": 409}),  # the plan is not ready
    Door("post", REPACKING + ":stop", ("sre",), body={}),
    Door("post", REPACKING + ":release", ("sre",), body={}, expect={"sre": 409}),  # it has not ended
    Door("get", "api/v1/cells/{cell}/brakes/", ALL),
    Door(
        "post", "api/v1/cells/{cell}/brakes/{brake}:release", ("sre",), body={"reason": "x"}, expect={"sre": 409}
    ),  # the brake holds nothing back
    Door("post", "api/v1/cells/{cell}/brakes/{brake}:keep", ("sre",), body={"reason": "x"}, expect={"sre": 409}),
    Door("get", "api/v1/cells/{cell}/quarantine/", ("sre",)),
    Door("post", "api/v1/cells/{cell}/machines/{hostname}:quarantine", ("sre",), body={"action": "keep"}),
    Door("post", "api/v1/cells/{cell}/machines/{hostname}:undrain", ("sre",), body={}),
    Door("post", "api/v1/cells/{cell}/machines/{hostname}:grow", ("sre",), body={"capacity": {"cpu": 64}}),
    Door("post", "api/v1/cells/{cell}/machines/{hostname}:rotate", ("sre",), body={}),
    Door("post", "api/v1/cells/{cell}/machines/{hostname}:revoke", ("sre",), body={"reason": "x"}),
    Door("post", "api/v1/cells:fit", ALL, body={"name": "fresh", **FILE}),
    Door("post", "api/v1/cells:record", ("sre",), 202, body={"name": "recorded"}),
    # checkpoints: none is stored
    Door("get", "api/v1/cells/{cell}/checkpoints/", ("sre",)),
    Door("post", "api/v1/cells/{cell}/checkpoints/", ("sre",), 202, body={}),
    Door("get", "api/v1/cells/{cell}/checkpoints:moment", ("sre",), 409),  # another process cannot see this test's cell
    Door("get", "api/v1/cells/{cell}/checkpoints/{revision}/", ("sre",), 404),
    Door("get", "api/v1/cells/{cell}/checkpoints/{revision}/content/", ("sre",), 404),
    Door("get", "api/v1/cells/{cell}/checkpoints/{revision}/redacted/", ("sre",), 404),
    Door("post", "api/v1/cells/{cell}/checkpoints:restore", ("sre",), 422, body={"into": "copy", "revision": 10**9}),
    Door("post", "api/v1/cells/{cell}/checkpoints:restore-in-place", ("sre",), 422, body={"revision": 0}),
    # study cells; none exists
    Door("put", "api/v1/studies/{cell}/", ("sre",), 409, body={}),
    Door("delete", "api/v1/studies/{cell}/", ("sre",), 409),
    # SQL: `test_sql.py` tests which rows each role sees
    Door("post", "api/v1/cells/{cell}/sql/", ALL, 422, body={"query": "SELECT FROM"}),
    Door("get", "api/v1/cells/{cell}/sql/schema/", ALL),
    # packages
    Door("get", "api/v1/cells/{cell}/packages/", ALL),
    Door("get", PACKAGE, (*MEMBERS, "sre"), **SEES),
    Door("put", PACKAGE, (*WRITERS, "sre"), body={"digest": DIGEST}, **SEES),
    Door("delete", PACKAGE, (*WRITERS, "sre"), **SEES),
    # jobs
    Door("get", "api/v1/cells/{cell}/jobs/", ALL),
    Door("get", "api/v1/cells/{cell}/jobs:usage", ALL),
    Door("get", "api/v1/cells/{cell}/map/", ALL),
    Door(
        "post",
        "api/v1/cells/{cell}/jobs/",
        (*WRITERS, "sre"),
        201,
        body={"name": "fresh", "tenant": "own", **FILE},
        expect={"stranger": 404},
    ),
    Door("post", "api/v1/cells/{cell}/jobs:bulk", ALL, body=[]),
    Door("get", JOB, (*MEMBERS, "sre"), **SEES),
    Door("put", JOB, (*WRITERS, "sre"), body=FILE, **SEES),
    Door("delete", JOB, (*WRITERS, "sre"), **SEES),
    Door("post", JOB + "plan/", (*WRITERS, "sre"), body=FILE, **SEES),
    Door("get", JOB + "update/", (*MEMBERS, "sre"), **SEES),
    Door("post", JOB + "update/", (*WRITERS, "sre"), body=FILE, **SEES),
    Door("post", JOB + "undo/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", JOB + "scale/", (*WRITERS, "sre"), body={"tasks": 5}, **SEES),
    Door("get", JOB + "autoscaling/", (*MEMBERS, "sre"), **SEES),
    Door("post", JOB + "autoscaling/accept/", (*WRITERS, "sre"), 409, body={}, **SEES),  # nothing is recommended
    Door("post", JOB + "autoscaling/simulate/", (*MEMBERS, "sre"), 409, body={}, **SEES),  # no usage is recorded
    Door("post", JOB + "restart/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", JOB + "retry/", (*WRITERS, "sre"), 409, body={}, **SEES),  # no task has failed
    Door("post", JOB + "pause/", (*WRITERS, "sre"), 409, body={}, **SEES),  # no update is open
    Door("post", JOB + "resume/", (*WRITERS, "sre"), 409, body={}, **SEES),
    Door("post", JOB + "kill/", (*WRITERS, "sre"), body={}, **SEES),
    Door("get", JOB + "versions/", (*MEMBERS, "sre"), **SEES),
    Door("get", JOB + "events/", (*MEMBERS, "sre"), **SEES),
    Door("get", JOB + "why/", (*MEMBERS, "sre"), **SEES),
    Door("get", JOB + "cures/", (*MEMBERS, "sre"), **SEES),
    Door("get", JOB + "tasks/", (*MEMBERS, "sre"), **SEES),
    Door("get", "api/v1/cells/{cell}/tasks/", ALL),
    Door("get", JOB + "tasks/{index}/", (*MEMBERS, "sre"), **SEES),
    Door("get", JOB + "tasks/{index}/usage/", (*MEMBERS, "sre"), **SEES),
    Door("get", JOB + "tasks/{index}/logs/", (*MEMBERS, "sre"), 503, **SEES),  # no link shard runs here
    # cron jobs
    Door("get", "api/v1/cells/{cell}/cron-jobs/", ALL),
    Door("get", CRON, (*MEMBERS, "sre"), **SEES),
    Door("put", CRON, (*WRITERS, "sre"), body=CRON_FILE, **SEES),
    Door("delete", CRON, (*WRITERS, "sre"), 204, **SEES),
    Door("post", CRON + "plan/", (*WRITERS, "sre"), body=CRON_FILE, **SEES),
    Door("post", CRON + "suspend/", (*WRITERS, "sre"), **SEES),
    Door("post", CRON + "resume/", (*WRITERS, "sre"), **SEES),
    Door("post", CRON + "run/", (*WRITERS, "sre"), body={}, **SEES),
    Door("get", CRON + "runs/", (*MEMBERS, "sre"), **SEES),
    # templates
    Door("get", "api/v1/cells/{cell}/templates/", ALL),
    Door("get", TEMPLATE, (*MEMBERS, "sre"), **SEES),
    Door("put", TEMPLATE, (*WRITERS, "sre"), body=TEMPLATE_FILE, **SEES),
    Door("delete", TEMPLATE, (*WRITERS, "sre"), 204, **SEES),
    Door("post", TEMPLATE + "plan/", (*WRITERS, "sre"), body=TEMPLATE_FILE, **SEES),
    Door("get", TEMPLATE + "dispatched/{job}/", (), refused=404, foreign=()),  # no job of the template
    Door("post", TEMPLATE + "dispatch/", (*WRITERS, "sre"), 201, body={"suffix": "x"}, **SEES),
    # workflows
    Door("get", "api/v1/cells/{cell}/workflows/", ALL),
    Door("get", WORKFLOW, (*MEMBERS, "sre"), **SEES),
    Door("put", WORKFLOW, (*WRITERS, "sre"), body=WORKFLOW_FILE, **SEES),
    Door("post", WORKFLOW + "plan/", (*WRITERS, "sre"), body=WORKFLOW_FILE, **SEES),
    Door("get", WORKFLOW + "nodes/", (*MEMBERS, "sre"), **SEES),
    Door("get", WORKFLOW + "file/", (*MEMBERS, "sre"), **SEES),
    Door("post", WORKFLOW + "pause/", (*WRITERS, "sre"), **SEES),
    Door("post", WORKFLOW + "resume/", (*WRITERS, "sre"), **SEES),
    Door("post", WORKFLOW + "cancel/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", WORKFLOW + "retry/", (*WRITERS, "sre"), 409, **SEES),  # it has not failed
    Door("put", JOB + "result/", ("sre",), 403, body=1, **SEES),  # only a task of the job may set it
    # services: the verbs are idempotent
    Door("get", "api/v1/cells/{cell}/services/", ALL),
    Door("get", SERVICE, (*MEMBERS, "sre"), **SEES),
    Door("post", SERVICE + "plan/", (*WRITERS, "sre"), body={"files": [OF_SERVICE | FILE | {"name": "w"}]}, **SEES),
    Door("post", SERVICE + "stop/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", SERVICE + "start/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", SERVICE + "restart/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", SERVICE + "forget/", (*WRITERS, "sre"), **SEES),
    Door("get", SERVICE + "weights/", (*MEMBERS, "sre"), **SEES),
    Door("put", SERVICE + "weights/", (*WRITERS, "sre"), body={"weights": {}}, **SEES),
    Door("post", SERVICE + "switch/", (*WRITERS, "sre"), 422, body={"to": "none"}, **SEES),
    # locks: operators use them, owners also end the sessions of other holders. The lock of the path is free
    Door("get", LOCKS, (*MEMBERS, "sre"), **SEES),
    Door("get", LOCKS + "files/{name}/", (*MEMBERS, "sre"), **SEES),
    Door("put", LOCKS + "files/{name}/", (*WRITERS, "sre"), body={"content": "x"}, **SEES),
    Door("delete", LOCKS + "files/{name}/", (*WRITERS, "sre"), 204, **SEES),
    Door("post", LOCKS + "acquire/{name}/", (*WRITERS, "sre"), body={}, **SEES),
    Door("post", LOCKS + "release/{name}/", (*WRITERS, "sre"), 409, body={"session": NO_SESSION}, **SEES),
    Door("post", LOCKS + "evict/{name}/", OWNERS, 409, **SEES),
    Door("post", LOCKS + "sessions/{lock_session}/", (*WRITERS, "sre"), 409, **SEES),
    Door("delete", LOCKS + "sessions/{lock_session}/", (*WRITERS, "sre"), 204, **SEES),
    # names
    Door("get", "bns/{cell}/", ALL),
    Door("get", "bns/{cell}/{tenant}/{job}/", (*MEMBERS, "sre"), **SEES),
    Door("get", "bns/{cell}/{tenant}/{job}/{index}/", (*MEMBERS, "sre"), **SEES),
    Door("get", "bns/{cell}/{tenant}/service/{service}/", (*MEMBERS, "sre"), **SEES),
    Door("get", "bns/{cell}/machine/{host}/", ALL),
    Door("get", "api/v1/feeds/prometheus/", ALL),  # with what the caller may see
    Door("get", "api/v1/feeds/traefik/", ALL),
    Door("post", "v3/discovery:endpoints", ALL, body={"resource_names": []}),
)
