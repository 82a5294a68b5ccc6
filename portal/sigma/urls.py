"""The URLs of Sigma, the part of the portal for tenants. Each page has one module."""

from __future__ import annotations

from django.urls import path

from portal.sigma import cell_map, cells, machines, names, notices, services, settings, sign_in, tokens
from portal.sigma.history import event, past_cell
from portal.sigma.home import page as home
from portal.sigma.jobs import actions, cron, events, job, lists, task, templates, update, why, workflows
from portal.sigma.jobs.specs import versions
from portal.sigma.money import approvals, billing, costs, order_change, orders, planning, promise_credits, quota
from portal.sigma.shop import pages as shop
from portal.sigma.shop import quote
from portal.sigma.sql import pages as sql
from portal.sigma.submit import page as submit
from portal.sigma.team import capabilities, config_files, invitations, records, secrets, service_accounts, tenants

app_name = "sigma"
_TENANT = "tenants/<str:tenant>/"
_JOB = "jobs/<str:cell>/<str:tenant>/<str:name>/"
_CRON = "cron/<str:cell>/<str:tenant>/<str:name>/"
_TEMPLATE = "templates/<str:cell>/<str:tenant>/<str:name>/"
_SERVICE = "services/<str:cell>/<str:tenant>/<str:service>/"
_WORKFLOW = "workflows/<str:cell>/<str:tenant>/<str:name>/"

urlpatterns = [
    path("", home.home, name="home"),
    path("first-steps/", home.steps, name="first-steps"),
    path("settings/", settings.settings, name="settings"),
    path("cells/", cells.cell_list, name="cells"),
    path("cells/<str:cell>/", cells.cell, name="cell"),
    path("map/", cell_map.chosen, name="map"),
    path("cells/<str:cell>/map/", cell_map.cell_map, name="cell-map"),
    path("cells/<str:cell>/map/data/", cell_map.data, name="cell-map-data"),
    path("cells/<str:cell>/machines/<str:hostname>/", machines.machine, name="machine"),
    path("cells/<str:cell>/at/", past_cell.moment, name="moment"),
    path("cells/<str:cell>/events/<str:place>/", event.event, name="event"),
    path("jobs/", lists.job_list, name="jobs"),
    path(_JOB, job.job, name="job"),
    path(_JOB + "kill/", job.kill, name="kill"),
    path(_JOB + "events/", events.events, name="job_events"),
    path(_JOB + "update/", update.update, name="update"),
    path(_JOB + "cures/", why.cures, name="cures"),
    path(_JOB + "undo/", job.undo, name="undo"),
    path(_JOB + "scale/", actions.scale, name="scale"),
    path(_JOB + "accept/", actions.accept, name="accept"),
    path(_JOB + "restart/", actions.restart, name="restart"),
    path(_JOB + "retry/", actions.retry, name="retry"),
    path(_JOB + "pause/", actions.pause, name="pause"),
    path(_JOB + "resume/", actions.resume, name="resume"),
    path(_JOB + "specs/", versions.specs, name="specs"),
    path(_JOB + "<int:index>/", task.task, name="task"),
    path(_JOB + "<int:index>/shell/", task.shell, name="shell"),
    path("cron/", cron.cron_list, name="crons"),
    path(_CRON, cron.cron, name="cron"),
    path(_CRON + "run/", cron.run, name="cron-run"),
    path(_CRON + "suspend/", cron.suspend, name="cron-suspend"),
    path(_CRON + "resume/", cron.resume, name="cron-resume"),
    path(_CRON + "delete/", cron.delete, name="cron-delete"),
    path("templates/", templates.template_list, name="templates"),
    path(_TEMPLATE, templates.template, name="template"),
    path(_TEMPLATE + "delete/", templates.delete, name="template-delete"),
    path("workflows/", workflows.workflow_list, name="workflows"),
    path(_WORKFLOW, workflows.workflow, name="workflow"),
    path(_WORKFLOW + "pause/", workflows.pause, name="workflow-pause"),
    path(_WORKFLOW + "resume/", workflows.resume, name="workflow-resume"),
    path(_WORKFLOW + "cancel/", workflows.cancel, name="workflow-cancel"),
    path(_WORKFLOW + "retry/", workflows.retry, name="workflow-retry"),
    path("names/", names.name_list, name="names"),
    path("services/", services.service_list, name="services"),
    path(_SERVICE, services.service, name="service"),
    path(_SERVICE + "stop/", services.stop, name="service-stop"),
    path(_SERVICE + "start/", services.start, name="service-start"),
    path(_SERVICE + "restart/", services.restart, name="service-restart"),
    path(_SERVICE + "forget/", services.forget, name="service-forget"),
    path(_SERVICE + "weights/", services.weigh, name="service-weights"),
    path(_SERVICE + "switch/", services.switch, name="service-switch"),
    path("submit/", submit.submit, name="submit"),
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-in/sessions/end/", sign_in.end, name="session-end"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<str:key>/revoke/", tokens.revoke, name="revoke"),
    path("packages/", lists.package_list, name="packages"),
    path("sql/", sql.sql, name="sql"),
    path("sql/saved/<int:number>/delete/", sql.delete, name="sql-delete"),
    path("quota/", quota.quota, name="quota"),
    path("tenants/", tenants.tenant_list, name="tenants"),
    path(_TENANT, tenants.tenant, name="tenant"),
    path(_TENANT + "leave/", tenants.leave, name="leave"),
    path(_TENANT + "invitations/", invitations.invitation_list, name="invitations"),
    path(_TENANT + "invitations/<str:key>/withdraw/", invitations.withdraw, name="withdraw"),
    path(_TENANT + "service-accounts/", service_accounts.account_list, name="service-accounts"),
    path(_TENANT + "service-accounts/<str:account>/", service_accounts.account, name="service-account"),
    path(_TENANT + "capabilities/", capabilities.capability_list, name="capabilities"),
    path(_TENANT + "configs/", config_files.config_list, name="config-files"),
    path(_TENANT + "configs/<str:config>/", config_files.config_file, name="config-file"),
    path(_TENANT + "secrets/", secrets.secret_list, name="secrets"),
    path(_TENANT + "secrets/<str:secret>/", secrets.secret, name="secret"),
    path(_TENANT + "records/", records.record_list, name="records"),
    path("invitations/<str:secret>/", invitations.join, name="join"),
    path("notices/", notices.notice_list, name="notices"),
    path("notices/read/", notices.read, name="notices-read"),
    path("notices/channels/", notices.channel_list, name="channels"),
    path("notices/channels/<int:number>/", notices.channel, name="channel"),
    path("notices/channels/<int:number>/test/", notices.test, name="channel-test"),
    path("notices/channels/<int:number>/rotate/", notices.rotate, name="channel-rotate"),
    path("notices/channels/<int:number>/remove/", notices.remove, name="channel-remove"),
    path("shop/", shop.shop, name="shop"),
    path("shop/quotes/<int:number>/", quote.quote, name="quote"),
    path("orders/", orders.order_list, name="orders"),
    path("orders/<int:number>/", orders.order, name="order"),
    path("orders/<int:number>/approve/", orders.approve, name="order-approve"),
    path("orders/<int:number>/reject/", orders.reject, name="order-reject"),
    path("orders/<int:number>/cancel/", orders.cancel, name="order-cancel"),
    path("orders/<int:number>/change/", order_change.change, name="order-change"),
    path("orders/<int:number>/renew/", orders.renew, name="order-renew"),
    path("orders/<int:number>/transfer/", orders.transfer, name="order-transfer"),
    path("approvals/", approvals.approvals, name="approvals"),
    path("billing/", billing.billing, name="billing"),
    path("billing/budget/", billing.budget, name="budget"),
    path("billing/hand-down/", billing.hand_down, name="hand-down"),
    path("billing/ledger.csv", billing.ledger_csv, name="ledger-csv"),
    path("billing/credits/", promise_credits.credit_list, name="credits"),
    path("billing/credits.csv", promise_credits.credits_csv, name="credits-csv"),
    path("billing/credits/<int:number>/", promise_credits.credit, name="credit"),
    path("billing/credits/<int:number>/correct/", promise_credits.correct, name="credit-correct"),
    path("billing/draft/", billing.draft, name="draft"),
    path("billing/draft.pdf", billing.draft_file, {"form": "pdf"}, name="draft-pdf"),
    path("billing/draft.csv", billing.draft_file, {"form": "csv"}, name="draft-csv"),
    path("billing/invoices/<str:number>/", billing.invoice, name="invoice"),
    path("billing/invoices/<str:number>.pdf", billing.invoice_file, {"form": "pdf"}, name="invoice-pdf"),
    path("billing/invoices/<str:number>.csv", billing.invoice_file, {"form": "csv"}, name="invoice-csv"),
    path("costs/", costs.cost_list, name="costs"),
    path("costs.csv", costs.costs_csv, name="costs-csv"),
    path("planning/", planning.planning, name="planning"),
    path("planning.csv", planning.planning_csv, name="planning-csv"),
]
