"""Pages of a tenant's config files: versions, their differences, and which version each task has."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.sigma.frame.page import given_in, page, page_of, problem_kept, rendered, whole_number
from portal.sigma.team.tenants import PAGE_SIZE, frame, unknown_action
from quota.models import Tenant
from quota.selectors import tenant_named
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.config_files import files, selectors
from scheduling.config_files.file_rules import MAX_BYTES, MAX_COMMENT
from scheduling.jobs.actions import config_changes

_KINDS = {"+": "added", "-": "removed", "@": "place"}


@page
def config_list(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    """List the config files of a tenant (GET), or write a new one (POST)."""
    row = tenant_named(principal, tenant)
    context = _frame(principal, row)
    if request.method == "POST":
        context["given"] = given_in(request.POST, "name", "content", "comment")
        name = context["given"]["name"]
        with problem_kept(context):
            config_changes.config_put(
                principal=principal,
                tenant=row,
                name=name,
                content=_content(request),
                comment=context["given"]["comment"],
                if_version=0,
                plain=request.POST.get("plain") == "1",
            )
            messages.success(request, _("The config file %s was written.") % name)
            return redirect("sigma:config-file", row.name, name)
    context["page_obj"] = page_of(request, selectors.files_of(principal, row), PAGE_SIZE)
    return rendered(request, "sigma/team/config_files.html", context)


@page
def config_file(request: HttpRequest, principal: Principal, tenant: str, config: str) -> HttpResponse:
    """Show a config file with its versions (GET), or change it (POST)."""
    row = tenant_named(principal, tenant)
    context = _frame(principal, row)
    if request.method == "POST":
        if request.POST.get("do") == "write":
            context["given"] = given_in(request.POST, "content", "comment")
        with problem_kept(context):
            return _change(request, principal, row, config)
    file = context["config"] = selectors.file_shown(principal, row, config)
    version, against = (_number(request, name) for name in ("version", "against"))
    shown = context["shown"] = selectors.version_shown(principal, file, version)
    newest = shown if shown.version == file.newest_version else selectors.version_shown(principal, file)
    context["newest"] = newest.content
    versions = context["versions"] = list(selectors.versions_shown(principal, file))
    if against is None and any(one.version < shown.version for one in versions):
        against = max(one.version for one in versions if one.version < shown.version)
    context["against"] = against
    if against:
        _old, _new, lines = selectors.difference(principal, file, against, shown.version)
        context["diff"] = [(_KINDS.get(line[:1], "same"), line) for line in lines[2:]]
    context["jobs"] = selectors.using_jobs(principal, file)
    context["tasks"] = selectors.task_versions(principal, file)
    return rendered(request, "sigma/team/config_file.html", context)


def _frame(principal: Principal, row: Tenant) -> dict[str, Any]:
    return {
        **frame(principal, row),
        "writes": may(principal, Action.CONFIG_WRITE, tenant=row.name),
        "most_bytes": MAX_BYTES,
        "most_comment": MAX_COMMENT,
    }


def _change(request: HttpRequest, principal: Principal, row: Tenant, name: str) -> HttpResponse:
    """Make the change that the form field `do` names. Raises `Rejected` if the change is unknown, not valid or not
    allowed.
    """
    post = request.POST
    given: dict[str, Any] = {
        "principal": principal,
        "tenant": row,
        "name": name,
        "comment": post.get("comment", ""),
        "if_version": whole_number(post.get("seen", "")),
        "restart": post.get("keep") != "1",
    }
    match post.get("do"):
        case "write":
            plain = post.get("plain") == "1"
            done = config_changes.config_put(content=_content(request), plain=plain, **given)
        case "rollback":
            version = whole_number(post.get("version", ""))
            if version is None:
                raise invalid("version", "the version is not a number; choose one of the list")
            done = config_changes.config_rollback(version=version, **given)
        case "delete":
            files.config_delete(principal=principal, tenant=row, name=name)
            messages.success(request, _("The config file %s was deleted.") % name)
            return redirect("sigma:config-files", row.name)
        case _:
            raise unknown_action()
    if not done.changed:
        messages.info(request, _("The newest version has this content already."))
    elif done.restarted:
        text = _("The file has version %(version)d now. These jobs restart: %(jobs)s.")
        messages.success(request, text % {"version": done.file.newest_version, "jobs": ", ".join(done.restarted)})
    else:
        messages.success(request, _("The file has version %d now.") % done.file.newest_version)
    return redirect("sigma:config-file", row.name, name)


def _content(request: HttpRequest) -> bytes:
    """Return the content in the form: the file if there is one, or else the text. Browsers send other line breaks."""
    file = request.FILES.get("file")
    if file is not None:
        return bytes(file.read(MAX_BYTES + 1))
    return request.POST.get("content", "").replace("\r\n", "\n").encode(errors="surrogatepass")


def _number(request: HttpRequest, name: str) -> int | None:
    number = whole_number(request.GET.get(name, ""))
    return number if number is not None and number < 2**31 else None
