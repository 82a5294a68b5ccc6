"""REST API for the config files of tenants."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiParameter,
    extend_schema,
    extend_schema_field,
    extend_schema_view,
    inline_serializer,
)
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import ListView, QuotaView
from quota.api.problems import ProblemSerializer
from quota.dry_run import DRY_RUN, rehearsal
from quota.models import Tenant
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action
from scheduling.access.tenant_permission import require_tenant
from scheduling.api.change_serializers import OUTCOMES, problem_document
from scheduling.config_files import files, selectors
from scheduling.config_files.file_rules import MAX_BYTES, MAX_COMMENT
from scheduling.jobs.actions import config_changes
from scheduling.models import ConfigFile, ConfigVersion

_VERSION = OpenApiParameter("version", OpenApiTypes.INT, description="Number of the version. Default: the newest.")
_AGAINST = OpenApiParameter(
    "against", OpenApiTypes.INT, description="Version to compare with. Default: the one before `version`."
)
_SELECTOR = OpenApiParameter("selector", OpenApiTypes.STR, description="Return only config files whose labels match.")
# Base64 is a third longer than the content.
_MAX_BASE64 = MAX_BYTES * 4 // 3 + 8


class ConfigVersionSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = ConfigVersion
        fields = ["version", "size_bytes", "comment", "restored_from", "created_by", "created_at"]


class ConfigFileSerializer(ConfigVersionSerializer):
    """A config file with its newest version, without the content."""

    name = serializers.CharField(source="file.name")
    tenant = serializers.CharField(source="file.tenant.name")
    labels = serializers.DictField(source="file.labels", child=serializers.CharField())

    class Meta(ConfigVersionSerializer.Meta):
        fields = ["name", "tenant", "labels", *ConfigVersionSerializer.Meta.fields]


class ConfigContentSerializer(ConfigFileSerializer):
    """A version of a config file with its content."""

    class Meta(ConfigFileSerializer.Meta):
        fields = [*ConfigFileSerializer.Meta.fields, "content"]


class ConfigUseSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="Job, CronJob, Workflow or StoppedJob (of a stopped service).")
    cell = serializers.CharField()
    job = serializers.CharField(source="name")
    versions = serializers.ListField(child=serializers.CharField(), help_text="Numbers, or `latest`.")


class ConfigTaskSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    job = serializers.CharField()
    index = serializers.IntegerField(source="task_index")
    file = serializers.CharField(source="path", help_text="Name of the file for the task.")
    version = serializers.IntegerField(help_text="The newest version that the machine of the task has received.")
    sent_at = serializers.DateTimeField()


class ConfigDetailSerializer(serializers.ModelSerializer[Any]):
    """A config file with its versions, what uses it, and which version each running task has."""

    tenant = serializers.CharField(source="tenant.name")
    labels = serializers.DictField(child=serializers.CharField())
    versions = serializers.SerializerMethodField(help_text="Newest first.")
    used_by = serializers.SerializerMethodField(help_text="Live jobs, cron jobs and workflows that use the file.")
    tasks = serializers.SerializerMethodField(help_text="Running tasks, those with the oldest version first.")
    restarted = serializers.SerializerMethodField(
        help_text="The jobs that this change restarts, as CELL/JOB. Empty when the file is only read."
    )

    class Meta:
        model = ConfigFile
        fields = [
            *("name", "tenant", "labels", "newest_version", "versions", "used_by", "tasks", "restarted"),
            *("created_by", "created_at"),
        ]

    @extend_schema_field(ConfigVersionSerializer(many=True))
    def get_versions(self, row: ConfigFile) -> Any:
        return ConfigVersionSerializer(selectors.versions_shown(self.context["principal"], row), many=True).data

    @extend_schema_field(ConfigUseSerializer(many=True))
    def get_used_by(self, row: ConfigFile) -> Any:
        jobs = selectors.using_jobs(self.context["principal"], row, self.context["users"])
        return ConfigUseSerializer(jobs, many=True).data

    @extend_schema_field(ConfigTaskSerializer(many=True))
    def get_tasks(self, row: ConfigFile) -> Any:
        return ConfigTaskSerializer(selectors.task_versions(self.context["principal"], row), many=True).data

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_restarted(self, row: ConfigFile) -> list[str]:
        restarted: list[str] = self.context["restarted"]
        return restarted


class ConfigDiffSerializer(serializers.Serializer[Any]):
    before = serializers.IntegerField(help_text="The older version.")
    after = serializers.IntegerField(help_text="The newer version.")
    lines = serializers.ListField(child=serializers.CharField(), help_text="Lines as `diff -u` prints them.")


class _ChangeSerializer(serializers.Serializer[Any]):
    comment = serializers.CharField(
        required=False, allow_blank=True, max_length=MAX_COMMENT, help_text="Why the version was written."
    )
    if_version = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        help_text="Write only if the newest version has this number; 0 if the file must not exist.",
    )
    restart = serializers.BooleanField(
        default=True, help_text="False: do not restart the jobs whose file says `on_change: restart`."
    )


class ConfigContentGivenSerializer(_ChangeSerializer):
    content = serializers.CharField(
        required=False, allow_blank=True, trim_whitespace=False, help_text="The content as text."
    )
    content_base64 = serializers.CharField(
        required=False, max_length=_MAX_BASE64, help_text="The content in base64, instead of `content`."
    )
    plain = serializers.BooleanField(
        default=False, help_text="True confirms that lines which look like secrets are not secret."
    )
    labels = serializers.DictField(
        child=serializers.CharField(allow_blank=True),
        required=False,
        help_text="Labels of the file. Without this field, the labels stay as they are.",
    )


class ConfigRollbackSerializer(_ChangeSerializer):
    version = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=2**31 - 1,
        help_text="The version to write again. Default: the one before the newest.",
    )


ConfigPlanSerializer = inline_serializer(
    "ConfigPlan",
    {
        "outcome": serializers.ChoiceField(OUTCOMES),
        "newest_version": serializers.IntegerField(
            help_text="Version before the change, for `if_version`; 0 for a new file."
        ),
        "sentence": serializers.CharField(),
        "changes": serializers.ListField(
            child=serializers.CharField(), help_text="Changed lines as `diff -u` prints them, and changed labels."
        ),
        "restarted": serializers.ListField(
            child=serializers.CharField(), help_text="The jobs that the change would restart, as CELL/JOB."
        ),
        "problem": ProblemSerializer(allow_null=True),
    },
)


class _ConfigView(QuotaView):
    def written(self, tenant: Tenant, name: str) -> files.FileChange:
        """Write the content in the request."""
        given = self.body(ConfigContentGivenSerializer)
        content = _content(given.pop("content", None), given.pop("content_base64", None))
        return config_changes.config_put(principal=self.principal, tenant=tenant, name=name, content=content, **given)

    def shown(
        self, tenant: Tenant, name: str, changed: files.FileChange | None = None, *, status: int = 200
    ) -> Response:
        """Return the answer with a config file. `changed`: the change that has just been made."""
        row = selectors.file_shown(self.principal, tenant, name)
        context = {
            "principal": self.principal,
            "users": changed.users if changed is not None else None,
            "restarted": changed.restarted if changed is not None else [],
        }
        return Response(ConfigDetailSerializer(row, context=context).data, status=status)

    def number(self, name: str) -> int | None:
        """Return the version in the query. Raises `Rejected` if it is not a number."""
        text = self.request.query_params.get(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and 0 < int(text[:11]) < 2**31):
            raise invalid(name, f"{text[:20]!r} is not the number of a version; give a number such as 3")
        return int(text)


@extend_schema_view(get=extend_schema(parameters=[_SELECTOR]))
class ConfigFilesView(ListView):
    """List the config files of a tenant with their newest versions, without contents."""

    serializer_class = ConfigFileSerializer

    def get_queryset(self) -> QuerySet[ConfigVersion]:
        selector = self.request.query_params.get("selector", "")
        return selectors.files_of(self.principal, self.tenant(), selector=selector)


class ConfigFileView(_ConfigView):
    @extend_schema(operation_id="config_files_get", responses=ConfigDetailSerializer)
    def get(self, request: Request, tenant: str, config: str) -> Response:
        """Return a config file with its versions, the jobs that use it, and which version each running task has."""
        return self.shown(self.tenant(), config)

    @extend_schema(
        operation_id="config_files_put",
        parameters=[DRY_RUN],
        request=ConfigContentGivenSerializer,
        responses={201: ConfigDetailSerializer},
    )
    def put(self, request: Request, tenant: str, config: str) -> Response:
        """Write a content, which becomes the newest version. Create the file if it does not exist. Status 200: the
        file has this content and these labels already.

        Running tasks that use the newest version get it within seconds. Jobs whose file says `on_change: restart` are
        restarted step by step; if one of them cannot be restarted now, nothing changes.
        """
        row = self.tenant()
        changed = self.written(row, config)
        return self.shown(row, config, changed, status=201 if changed.changed else 200)

    @extend_schema(operation_id="config_files_delete", parameters=[DRY_RUN], responses={204: None})
    def delete(self, request: Request, tenant: str, config: str) -> Response:
        """Delete a config file with all versions. It must not be in use."""
        files.config_delete(principal=self.principal, tenant=self.tenant(), name=config)
        return Response(status=204)


class ConfigPlanView(_ConfigView):
    rehearses_itself = True

    @extend_schema(
        operation_id="config_files_plan", request=ConfigContentGivenSerializer, responses=ConfigPlanSerializer
    )
    def post(self, request: Request, tenant: str, config: str) -> Response:
        """Return what writing the content would change, or why it would be rejected. Changes nothing."""
        row = self.tenant()
        require_tenant(self.principal, Action.CONFIG_WRITE, row.name, "")
        before = selectors.newest_with_content(self.principal, row, config)
        number = 0 if before is None else before.version
        answer: dict[str, Any] = {"newest_version": number, "changes": [], "restarted": [], "problem": None}
        try:
            with rehearsal():
                done = self.written(row, config)
                changes = [] if before is None else selectors.changes_since(self.principal, before, done.file)
        except Rejected as problem:
            answer |= {"outcome": "refused", "sentence": problem.detail, "problem": problem_document(problem)}
            return Response(answer)
        outcome = "submitted" if before is None else "updated" if done.changed else "unchanged"
        words = {"submitted": "is new", "updated": "changes", "unchanged": "already has this content"}
        sentence = f"Config file {config} {words[outcome]}."
        answer |= {"outcome": outcome, "sentence": sentence, "changes": changes, "restarted": done.restarted}
        return Response(answer)


class ConfigContentView(_ConfigView):
    @extend_schema(operation_id="config_files_content", parameters=[_VERSION], responses=ConfigContentSerializer)
    def get(self, request: Request, tenant: str, config: str) -> Response:
        """Return a version of a config file with its content."""
        row = selectors.file_shown(self.principal, self.tenant(), config)
        found = selectors.version_shown(self.principal, row, self.number("version"))
        found.file = row
        return Response(ConfigContentSerializer(found).data)


class ConfigDiffView(_ConfigView):
    @extend_schema(operation_id="config_files_diff", parameters=[_VERSION, _AGAINST], responses=ConfigDiffSerializer)
    def get(self, request: Request, tenant: str, config: str) -> Response:
        """Return the difference of two versions of a config file."""
        row = selectors.file_shown(self.principal, self.tenant(), config)
        before, after, lines = selectors.difference(self.principal, row, self.number("against"), self.number("version"))
        answer = {"before": before.version, "after": after.version, "lines": lines}
        return Response(ConfigDiffSerializer(answer).data)


class ConfigRollbackView(_ConfigView):
    @extend_schema(
        operation_id="config_files_rollback",
        parameters=[DRY_RUN],
        request=ConfigRollbackSerializer,
        responses=ConfigDetailSerializer,
    )
    def post(self, request: Request, tenant: str, config: str) -> Response:
        """Write an old version again, as the newest one. It reaches tasks as a new content does."""
        row, given = self.tenant(), self.body(ConfigRollbackSerializer)
        changed = config_changes.config_rollback(principal=self.principal, tenant=row, name=config, **given)
        return self.shown(row, config, changed)


def _content(text: str | None, encoded: str | None) -> bytes:
    """Return the content in a request. Raises `Rejected` if there is none or more than one."""
    if (text is None) == (encoded is None):
        raise invalid("content", "the request needs one content; give either content or content_base64")
    if text is not None:
        return text.encode(errors="surrogatepass")
    try:
        return base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError):
        raise invalid("content_base64", "the content is not base64; encode it, or give it as text in content") from None
