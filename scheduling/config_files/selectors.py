"""Reads of config files for people: versions, contents, differences, and which version each task has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import F, QuerySet

from quota.models import Tenant
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.label_filters import selected
from scheduling.access.tenant_permission import require_tenant
from scheduling.config_files import file_rules
from scheduling.config_files.files import file_named, version_of
from scheduling.core.vocabulary.states import TaskState
from scheduling.journal.sql import query
from scheduling.models import ConfigFile, ConfigVersion
from scheduling.secrets.job_uses import CONFIGS, UsingJob, jobs_using
from scheduling.spec.merge_patch import format_changes

MOST_TASKS = 1_000


class TaskVersion(NamedTuple):
    """The version of a config file that a running task has got. `path`: the name of the file for the task."""

    cell: str
    job: str
    task_index: int
    path: str
    version: int
    sent_at: dt.datetime


def files_of(principal: Principal, tenant: Tenant, *, selector: str = "") -> QuerySet[ConfigVersion]:
    """Return the newest version of each config file of a tenant, in the order of their names, without contents.
    `selector`: a label selector. Makes one query when it is read.
    """
    require_tenant(principal, Action.CONFIG_VIEW, tenant.name, "")
    rows = ConfigVersion.objects.filter(file__tenant=tenant, file__deleted_at=None, version=F("file__newest_version"))
    rows = selected(rows, selector, "file__labels")
    return rows.select_related("file__tenant").defer("content").order_by("file__name")


def file_shown(principal: Principal, tenant: Tenant, name: str) -> ConfigFile:
    """Return a config file. Raises `NotFound` if there is none."""
    require_tenant(principal, Action.CONFIG_VIEW, tenant.name, "")
    return file_named(tenant, name)


def versions_shown(principal: Principal, file: ConfigFile) -> QuerySet[ConfigVersion]:
    """Return the stored versions of a config file, newest first, without contents."""
    require_tenant(principal, Action.CONFIG_VIEW, file.tenant.name, "")
    return file.versions.defer("content").select_related("file__tenant").order_by("-version")


def version_shown(principal: Principal, file: ConfigFile, number: int | None = None) -> ConfigVersion:
    """Return a version of a config file with its content. `number`: None for the newest. Raises `NotFound` if there is
    none.
    """
    require_tenant(principal, Action.CONFIG_VIEW, file.tenant.name, "")
    return version_of(file, file.newest_version if number is None else number)


def difference(
    principal: Principal, file: ConfigFile, before: int | None = None, after: int | None = None
) -> tuple[ConfigVersion, ConfigVersion, list[str]]:
    """Return two versions of a config file and their difference in the format of `diff -u`. `after`: None for the
    newest. `before`: None for the version before `after`. Raises `NotFound` if there is none.
    """
    new = version_shown(principal, file, after)
    if before is None:
        earlier = file.versions.filter(version__lt=new.version).order_by("-version").first()
        if earlier is None:
            raise NotFound("version", f"{file.name} before {new.version}")
        old = earlier
    else:
        old = version_of(file, before)
    lines = file_rules.diff(old.content, new.content, name=file.name, before=old.version, after=new.version)
    return old, new, lines


def newest_with_content(principal: Principal, tenant: Tenant, name: str) -> ConfigVersion | None:
    """Return the newest version of a config file with its content and its file, or None if there is no such file."""
    require_tenant(principal, Action.CONFIG_VIEW, tenant.name, "")
    rows = ConfigVersion.objects.select_related("file__tenant")
    return rows.filter(
        file__tenant=tenant, file__name=name, file__deleted_at=None, version=F("file__newest_version")
    ).first()


def changes_since(principal: Principal, before: ConfigVersion, file: ConfigFile) -> list[str]:
    """Return the lines that differ from an earlier version, as `diff -u` prints them, and the labels that differ.
    `before`: the version, with the labels of that time.
    """
    after = version_shown(principal, file)
    lines = file_rules.diff(before.content, after.content, name=file.name, before=before.version, after=after.version)
    return [*format_changes({"labels": before.file.labels}, {"labels": file.labels}), *lines]


def using_jobs(principal: Principal, file: ConfigFile, users: Sequence[UsingJob] | None = None) -> list[UsingJob]:
    """Return the live jobs, cron jobs and live workflows that use a config file and that the caller may see. `users`:
    all of them, if the caller has read them.
    """
    tenant = file.tenant.name
    require_tenant(principal, Action.CONFIG_VIEW, tenant, "")
    found = jobs_using(file.tenant_id, file.name, CONFIGS) if users is None else users
    return [job for job in found if may(principal, Action.JOB_VIEW, tenant=tenant, cell=job.cell)]


def task_versions(principal: Principal, file: ConfigFile) -> list[TaskVersion]:
    """Return which version of a config file running tasks have got, oldest version first, at most `MOST_TASKS`. Makes
    one query.
    """
    tenant = file.tenant.name
    require_tenant(principal, Action.CONFIG_VIEW, tenant, "")
    rows = query(
        "SELECT c.name, j.name, d.index, d.path, d.version, d.sent_at FROM scheduling_configdelivery AS d"
        " JOIN scheduling_task AS t ON t.job_id = d.job_id AND t.index = d.index AND t.incarnation = d.incarnation"
        " JOIN scheduling_job AS j ON j.id = d.job_id JOIN scheduling_cell AS c ON c.id = j.cell_id"
        " WHERE d.file_id = %s AND t.state = %s ORDER BY d.version, c.name, j.name, d.index, d.path LIMIT %s",
        [file.pk, TaskState.RUNNING.value, MOST_TASKS],
    )
    found = [TaskVersion(*row) for row in rows]
    return [row for row in found if may(principal, Action.JOB_VIEW, tenant=tenant, cell=row.cell)]
