"""REST views of packages. Each view checks the request, calls a service and serializes the result."""

from __future__ import annotations

import io
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN, dry_run
from quota.paging import IdPaging, paged
from scheduling.api.base import CellView, valid
from scheduling.packages.listing import package_named, packages_of, shown
from scheduling.packages.packages import package_delete, package_tag, package_upload
from scheduling.spec.package_names import FORMATS

ARCHIVE = "application/octet-stream"
_DIGEST = OpenApiParameter(
    "X-Package-Digest",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Digest of the archive, `sha256:…`. The server rejects an archive with another digest.",
)
_FORMAT = OpenApiParameter("archive_format", OpenApiTypes.STR, enum=list(FORMATS), description="Default: detected.")


class PackageSerializer(serializers.Serializer[Any]):
    """A package: one archive under one name. The archive never changes. A tag can be moved to another archive."""

    cell = serializers.CharField(source="package.cell.name")
    tenant = serializers.CharField(source="package.tenant.name")
    name = serializers.CharField(source="package.name")
    digest = serializers.CharField(source="package.digest")
    size_bytes = serializers.IntegerField(source="package.size_bytes")
    format = serializers.ChoiceField(list(FORMATS), source="package.format")
    tags = serializers.ListField(child=serializers.CharField())
    jobs = serializers.ListField(child=serializers.CharField(), help_text="Live jobs that use this package.")
    uploaded_by = serializers.CharField(source="package.uploaded_by")
    uploaded_at = serializers.DateTimeField(source="package.uploaded_at")


class StoredSerializer(serializers.Serializer[Any]):
    outcome = serializers.ChoiceField(["uploaded", "moved", "unchanged"])
    package = PackageSerializer()


class TagSerializer(serializers.Serializer[Any]):
    """A request to give a tag to an archive that is already in the store."""

    digest = serializers.CharField(max_length=71)


class DeletedSerializer(serializers.Serializer[Any]):
    deleted = serializers.BooleanField(help_text="False if only a tag was removed, because the archive has other tags.")


class ArchiveParser(BaseParser):
    """A parser that returns the body as a stream, because the body may be larger than memory."""

    media_type = ARCHIVE

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


class PackagesView(CellView):
    pagination_class = IdPaging

    @extend_schema(
        operation_id="packages_list",
        parameters=[
            OpenApiParameter("tenant", OpenApiTypes.STR, description="Return only packages of this tenant."),
            OpenApiParameter("name", OpenApiTypes.STR, description="Return only packages of this name."),
        ],
        responses=PackageSerializer(many=True),
    )
    def get(self, request: Request, cell: str) -> Response:
        """List the packages in the cell's store that you may see."""
        query = request.query_params
        rows = packages_of(self.principal, self.cell(cell), tenant=query.get("tenant", ""), name=query.get("name", ""))
        return paged(self, rows, lambda found: PackageSerializer(shown(found), many=True).data)


class PackageView(CellView):
    """A view of one package. `reference`: a tag, or a digest such as `sha256:…`."""

    def get_parsers(self) -> list[Any]:
        return [ArchiveParser(), *super().get_parsers()]

    @extend_schema(operation_id="packages_get", responses=PackageSerializer)
    def get(self, request: Request, cell: str, tenant: str, name: str, reference: str) -> Response:
        """Return one package and the jobs that use it."""
        found = package_named(self.principal, self.cell(cell), tenant, name, reference)
        return Response(PackageSerializer(shown([found])[0]).data)

    @extend_schema(
        operation_id="packages_put",
        parameters=[_DIGEST, _FORMAT, DRY_RUN],
        request={ARCHIVE: OpenApiTypes.BINARY, "application/json": TagSerializer},
        responses={200: StoredSerializer, 201: StoredSerializer},
    )
    def put(self, request: Request, cell: str, tenant: str, name: str, reference: str) -> Response:
        """Upload an archive, and give it the tag `reference`. If the body is JSON, give the tag to an archive that the
        store already has. Idempotent.
        """
        found = self.cell(cell)
        where: dict[str, Any] = {
            "principal": self.principal,
            "cell": found,
            "tenant": tenant,
            "name": name,
            "tag": reference,
        }
        if request.content_type.partition(";")[0].strip() == "application/json":
            done = package_tag(**where, digest=valid(TagSerializer, request.data)["digest"])
        else:
            done = package_upload(
                **where,
                stream=request.data or io.BytesIO(),  # type: ignore[arg-type]  # REST framework calls no parser for an empty body
                digest=request.headers.get("X-Package-Digest", ""),
                dry_run=dry_run(request),
                format=request.query_params.get("archive_format", ""),
            )
        document = {"outcome": done.outcome, "package": PackageSerializer(shown([done.package])[0]).data}
        return Response(document, status=201 if done.outcome == "uploaded" else 200)

    @extend_schema(operation_id="packages_delete", parameters=[DRY_RUN], responses=DeletedSerializer)
    def delete(self, request: Request, cell: str, tenant: str, name: str, reference: str) -> Response:
        """Remove a tag. If the archive has no other tag, remove the archive too. If `reference` is a digest, remove the
        archive and all its tags.
        """
        gone = package_delete(
            principal=self.principal, cell=self.cell(cell), tenant=tenant, name=name, reference=reference
        )
        return Response({"deleted": gone is not None})
