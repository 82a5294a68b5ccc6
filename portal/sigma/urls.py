"""The tenants' portal, Sigma: one module a page."""

from __future__ import annotations

from django.urls import path

from portal.sigma import cells, home, job, jobs, packages, quota, shell, submit, task, tokens

app_name = "sigma"
_JOB = "jobs/<str:cell>/<str:tenant>/<str:name>/"

urlpatterns = [
    path("", home.home, name="home"),
    path("cells/", cells.cell_list, name="cells"),
    path("cells/<str:cell>/", cells.cell, name="cell"),
    path("jobs/", jobs.job_list, name="jobs"),
    path(_JOB, job.job, name="job"),
    path(_JOB + "kill/", job.kill, name="kill"),
    path(_JOB + "undo/", job.undo, name="undo"),
    path(_JOB + "specs/", job.specs, name="specs"),
    path(_JOB + "<int:index>/", task.task, name="task"),
    path(_JOB + "<int:index>/shell/", shell.shell, name="shell"),
    path("submit/", submit.submit, name="submit"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<str:key>/revoke/", tokens.revoke, name="revoke"),
    path("packages/", packages.package_list, name="packages"),
    path("quota/", quota.quota, name="quota"),
]
