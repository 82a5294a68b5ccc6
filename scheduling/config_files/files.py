"""Changes of config files: write, restore and delete.

    write ─► cells of the jobs that use it: lock, events ─► row of the file: lock ─► version, record
                     └─► machines look at their desired state again, and fetch the new version

Members who may change jobs may change config files. All jobs of the tenant may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from django.db.models import Count, Q, Sum

from quota import clock
from quota.models import Tenant
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.config_files import file_rules
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import JobState
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute
from scheduling.models import ConfigFile, ConfigVersion
from scheduling.secrets.job_uses import CONFIGS, UsingJob, jobs_using
from scheduling.secrets.locked_users import write_with_users
from scheduling.spec.schema import LATEST

MAX_FILES, MAX_NAMES = 500, 5_000
MAX_TENANT_BYTES = 64 * 1024 * 1024
# Versions of one file that are kept. Older ones are deleted, unless a live job, a cron job or a live workflow names
# them by their number.
KEPT_VERSIONS = 50
MAX_FILE_BYTES = 1024 * 1024  # of all versions of one file, after which old ones are deleted earlier
_KEPT_ANYWAY = 5
_SWEPT_AT_ONCE = 5_000

Restarts = Callable[[Mapping[int, JournalEntry], list[UsingJob]], list[str]]


@dataclass(frozen=True, slots=True)
class FileChange:
    """The result of a change. `file`: as it is now. `changed`: False if it had this content and these labels already.
    `users`: what uses the file: live jobs, cron jobs, live workflows. `restarted`: the jobs that restart, as CELL/JOB.
    """

    file: ConfigFile
    changed: bool
    users: list[UsingJob]
    restarted: list[str] = field(default_factory=list)


def config_write(
    *,
    principal: Principal,
    tenant: Tenant,
    name: str,
    content: bytes,
    comment: str = "",
    if_version: int | None = None,
    plain: bool = False,
    labels: Mapping[str, str] | None = None,
    restarts: Restarts | None = None,
) -> FileChange:
    """Store a new version of a config file, and create the file if it does not exist. An equal content makes no new
    version. `labels`: the labels of the file; None leaves them as they are.

    `if_version`: the number that the newest version must have; 0 if the file must not exist. `plain`: the caller
    confirms that lines which look like secrets are not secret. `restarts`: opens the restarts of jobs in the same
    transaction, and returns these jobs.

    Raises `Rejected` if the name, the content or the comment is not valid or the version is another one, and `Conflict`
    if the tenant has too many files. Locks: the rows of the cells of jobs that use it, then the rows of the tenant and
    of the file.
    """
    _require(principal, tenant)
    file_rules.check_name(name)
    file_rules.check_comment(comment)
    text = file_rules.text_of(content)
    if not plain:
        file_rules.check_no_secrets(text, name=name)
    if labels is not None:
        file_rules.check_labels(labels)

    def content_of(_: ConfigFile | None) -> _Content:
        return _Content(text, comment, labels=labels)

    return _new_version(principal, tenant, name, content_of, if_version=if_version, restarts=restarts)


def config_restore(
    *,
    principal: Principal,
    tenant: Tenant,
    name: str,
    version: int | None = None,
    comment: str = "",
    if_version: int | None = None,
    restarts: Restarts | None = None,
) -> FileChange:
    """Write an old version of a config file again, as the newest one. `version`: None for the one before the newest.
    Otherwise like `config_write`. Raises `NotFound` if there is no such file or version.
    """
    _require(principal, tenant)
    file_rules.check_comment(comment)

    def content_of(file: ConfigFile | None) -> _Content:
        if file is None or file.deleted_at is not None:
            raise NotFound("config file", name[:63])
        number = file.newest_version - 1 if version is None else version
        old = version_of(file, number)
        return _Content(old.content, comment or f"version {number} again", number)

    return _new_version(principal, tenant, name, content_of, if_version=if_version, restarts=restarts)


def config_delete(*, principal: Principal, tenant: Tenant, name: str) -> FileChange:
    """Delete a config file with all versions. Raises `Conflict` if live jobs, cron jobs or live workflows use it. Locks
    as `config_write`.
    """
    _require(principal, tenant)

    def write(entry: RecordEntry, entries: Mapping[int, JournalEntry], users: list[UsingJob]) -> FileChange:
        file = file_named(tenant, name)
        if users:
            some = ", ".join(f"{job.cell}/{job.name}" for job in users[:5])
            more = f" and {len(users) - 5} more" if len(users) > 5 else ""
            detail = (
                f"config file {name} is used by {some}{more}; change or end these jobs, cron jobs and workflows first"
            )
            raise Conflict("config-in-use", detail, figures={"jobs": len(users)})
        file.versions.all().delete()
        file.deliveries.all().delete()
        file.deleted_at = clock.now()
        file.save(update_fields=["deleted_at"])
        entry.append("config.deleted", tenant=tenant.name, name=name, version=file.newest_version)
        return FileChange(file, changed=True, users=users)

    return _change(principal, tenant, name, write, lambda user: False)


def file_named(tenant: Tenant, name: str) -> ConfigFile:
    """Return a config file of a tenant. Raises `NotFound` if there is none, or if it was deleted."""
    file = ConfigFile.objects.select_related("tenant").filter(tenant=tenant, name=name, deleted_at=None).first()
    if file is None:
        raise NotFound("config file", name[:63])
    return file


def version_of(file: ConfigFile, number: int) -> ConfigVersion:
    """Return a version of a config file. Raises `NotFound`, which names the stored versions, if there is none."""
    row = ConfigVersion.objects.filter(file=file, version=number).first() if 0 < number < 2**31 else None
    if row is None:
        known = file.versions.order_by("-version").values_list("version", flat=True)[:10]
        raise NotFound("version", f"{file.name} {number}", known=[str(one) for one in known])
    return row


def deliveries_sweep() -> int:
    """Delete the rows of `ConfigDelivery` of jobs that have ended or no longer exist, some at a time. Return their
    number.
    """
    gone = 0
    while True:
        some = execute(
            "DELETE FROM scheduling_configdelivery WHERE id IN (SELECT d.id FROM scheduling_configdelivery AS d"
            " WHERE NOT EXISTS (SELECT FROM scheduling_job AS j WHERE j.id = d.job_id AND j.state <> %s) LIMIT %s)",
            [JobState.DEAD.value, _SWEPT_AT_ONCE],
        )
        gone += some
        if some < _SWEPT_AT_ONCE:
            return gone


@dataclass(frozen=True, slots=True)
class _Content:
    text: str
    comment: str
    restored_from: int | None = None
    labels: Mapping[str, str] | None = None


def _new_version(
    principal: Principal,
    tenant: Tenant,
    name: str,
    content_of: Callable[[ConfigFile | None], _Content],
    *,
    if_version: int | None,
    restarts: Restarts | None,
) -> FileChange:
    def write(entry: RecordEntry, entries: Mapping[int, JournalEntry], users: list[UsingJob]) -> FileChange:
        file = ConfigFile.objects.select_related("tenant").filter(tenant=tenant, name=name).first()
        live = file is not None and file.deleted_at is None
        _check_version(file.newest_version if file is not None and live else 0, if_version, name)
        content = content_of(file)
        if file is not None and live and version_of(file, file.newest_version).content == content.text:
            return FileChange(file, changed=_set_labels(entry, file, content.labels), users=users)
        if not live:
            _check_number(tenant)
        size_bytes = len(content.text.encode())
        if file is None:
            file = ConfigFile(tenant=tenant, name=name, created_by=principal.name, created_at=clock.now())
        file.newest_version, file.deleted_at = file.newest_version + 1, None
        if content.labels is not None or not live:
            file.labels = dict(content.labels or {})
        file.save()
        ConfigVersion.objects.create(
            file=file,
            version=file.newest_version,
            content=content.text,
            size_bytes=size_bytes,
            comment=content.comment,
            restored_from=content.restored_from,
            created_by=principal.name,
            created_at=clock.now(),
        )
        _delete_old(file, users)
        if content.restored_from is None:  # a rollback is possible at the limit, too
            _check_bytes(tenant)
        entry.append(
            "config.written", tenant=tenant.name, name=name, version=file.newest_version, size_bytes=size_bytes
        )
        _append_events(entries, users, file)
        restarted = restarts(entries, users) if restarts is not None else []
        return FileChange(file, changed=True, users=users, restarted=restarted)

    return _change(principal, tenant, name, write, _follows)


def _set_labels(entry: RecordEntry, file: ConfigFile, labels: Mapping[str, str] | None) -> bool:
    """Change only the labels of a config file. Return whether they differ from those before."""
    if labels is None or file.labels == labels:
        return False
    file.labels = dict(labels)
    file.save(update_fields=["labels"])
    entry.append("config.labelled", tenant=file.tenant.name, name=file.name, labels=file.labels)
    return True


def _change(
    principal: Principal,
    tenant: Tenant,
    name: str,
    write: Callable[[RecordEntry, Mapping[int, JournalEntry], list[UsingJob]], FileChange],
    concerned: Callable[[UsingJob], bool],
) -> FileChange:
    return write_with_users(
        principal,
        tenant,
        users=lambda: jobs_using(tenant.pk, name, CONFIGS),
        lock=lambda: ConfigFile.objects.select_for_update().filter(tenant=tenant, name=name),
        write=write,
        concerned=concerned,
    )


def _append_events(entries: Mapping[int, JournalEntry], users: Iterable[UsingJob], file: ConfigFile) -> None:
    for job in (job for job in users if job.job_id and _follows(job)):
        entries[job.cell_id].append(
            events.JobConfigChanged(job_id=job.job_id, config=file.name, version=file.newest_version)
        )


def _follows(user: UsingJob) -> bool:
    """Return whether the newest version concerns a job. It does not if the job names all versions by their numbers."""
    return LATEST in user.versions


def _require(principal: Principal, tenant: Tenant) -> None:
    """Check that the caller may change config files of the tenant. A caller that is limited to one cell, such as a
    task, may not, because a config file belongs to all cells.
    """
    require_tenant(principal, Action.CONFIG_WRITE, tenant.name, "")
    if principal.cell is not None:
        detail = f"{principal.name} is limited to cell {principal.cell}, and config files belong to all cells of"
        cure = "use a user or a service account without such a limit"
        raise Forbidden(Action.CONFIG_WRITE, f"{detail} {tenant.name}; {cure}")


def _check_version(newest: int, wanted: int | None, name: str) -> None:
    if wanted is None or wanted == newest:
        return
    found = f"its newest version is {newest}" if newest else "it does not exist"
    raise Rejected(
        "version-changed",
        f"config file {name} should have version {wanted}, but {found}; read it again, and repeat your change",
        fields={"if_version": f"is {newest}"},
        status=412,
    )


def _check_number(tenant: Tenant) -> None:
    """Raise `Conflict` if the tenant has too many config files. Deleted ones count too, up to a higher limit."""
    counts = ConfigFile.objects.filter(tenant=tenant).aggregate(all=Count("pk"), live=Count("pk", Q(deleted_at=None)))
    if counts["live"] >= MAX_FILES:
        detail = f"tenant {tenant.name} has {counts['live']} config files, which is the maximum; delete one"
        raise Conflict("too-many-configs", detail)
    if counts["all"] >= MAX_NAMES:
        detail = f"tenant {tenant.name} has used {counts['all']} names of config files, which is the maximum"
        raise Conflict(
            "too-many-configs", f"{detail}; write a file that exists, or use the name of a deleted one again"
        )


def _check_bytes(tenant: Tenant) -> None:
    """Raise `Conflict` if all versions of the tenant's files are too large together, after old ones were deleted."""
    have = ConfigVersion.objects.filter(file__tenant=tenant).aggregate(sum=Sum("size_bytes"))["sum"] or 0
    if have > MAX_TENANT_BYTES:
        detail = f"all versions of the config files of tenant {tenant.name} would have {have} bytes, and at most"
        cure = "delete a file that no job uses, or put large files into packages"
        raise Conflict("too-many-config-bytes", f"{detail} {MAX_TENANT_BYTES} are possible; {cure}")


def _delete_old(file: ConfigFile, users: Iterable[UsingJob]) -> None:
    """Delete the oldest versions of a file, except those that live jobs, cron jobs and live workflows name, and those
    that tasks have. A file with large versions keeps fewer of them.
    """
    pinned = {int(version) for job in users for version in job.versions if version != LATEST}
    pinned |= set(file.deliveries.values_list("version", flat=True).distinct())
    sizes = file.versions.order_by("-version").values_list("version", "size_bytes")
    total, old = 0, []
    for place, (version, size_bytes) in enumerate(sizes):
        total += size_bytes
        if place >= KEPT_VERSIONS or (place >= _KEPT_ANYWAY and total > MAX_FILE_BYTES):
            old.append(version)
    file.versions.filter(version__in=set(old) - pinned).delete()
