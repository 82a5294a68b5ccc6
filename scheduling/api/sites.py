"""REST views of sites and clusters (§2.2): sums of their machines, tasks and resources, and changes by SREs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging
from quota.serializers import ReadSerializer
from quota.vocabulary.errors import NotFound
from scheduling.access.sites import cluster_named, clusters_visible, site_named
from scheduling.api.base import CellView, valid
from scheduling.cells import sites
from scheduling.cells.rollups import Figures, site_rollups
from scheduling.models import Cluster, Site

_LENGTH = 200
_NAME = "A DNS label, such as `{}`."


class SiteSerializer(ReadSerializer):
    class Meta:
        model = Site
        fields = ["name", "description", "location", "created_at"]
        read_only_fields = fields


class NewSiteSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63, help_text=_NAME.format("zurich"))
    description = serializers.CharField(max_length=_LENGTH, allow_blank=True, default="")
    location = serializers.CharField(
        max_length=_LENGTH, allow_blank=True, default="", help_text="Where the buildings are, such as an address."
    )


class SiteChangesSerializer(serializers.Serializer[Any]):
    """The texts of a site that change. Texts that are not given stay as they are."""

    description = serializers.CharField(max_length=_LENGTH, allow_blank=True, required=False)
    location = serializers.CharField(max_length=_LENGTH, allow_blank=True, required=False)


class ClusterSerializer(ReadSerializer):
    """A cluster. `site`: the name of its site; empty if it is not recorded."""

    site = serializers.CharField(source="site_name")

    class Meta:
        model = Cluster
        fields = ["name", "description", "site", "created_at"]
        read_only_fields = fields


class NewClusterSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63, help_text=_NAME.format("zurich-1"))
    site = serializers.CharField(max_length=63, allow_blank=True, default="", help_text="Name of the cluster's site.")
    description = serializers.CharField(max_length=_LENGTH, allow_blank=True, default="")


class ClusterChangesSerializer(serializers.Serializer[Any]):
    """What changes. Fields that are not given stay as they are. The cells of the cluster move with it."""

    site = serializers.CharField(max_length=63, allow_blank=True, required=False, help_text="Name of the new site.")
    description = serializers.CharField(max_length=_LENGTH, allow_blank=True, required=False)


class FiguresSerializer(serializers.Serializer[Any]):
    """The figures of some cells together. `capacity`, `allocated` and `usage` count only the cells of `cells_measured`:
    those whose masters published their amounts within the last minute. CPU is in millicores, RAM and disk in bytes.
    """

    cells = serializers.IntegerField()
    cells_measured = serializers.IntegerField(source="measured")
    machines = serializers.SerializerMethodField(help_text="How many are in each state.")
    tasks = serializers.SerializerMethodField(help_text="How many are pending, running (on machines), and up.")
    capacity = serializers.DictField(child=serializers.IntegerField(), help_text="Of the machines that are up.")
    allocated = serializers.DictField(child=serializers.IntegerField(), help_text="The limits of running tasks.")
    usage = serializers.DictField(child=serializers.IntegerField())

    def get_machines(self, figures: Figures) -> dict[str, int]:
        return {state: figures.counts[f"machines_{state}"] for state in ("up", "draining", "down")}

    def get_tasks(self, figures: Figures) -> dict[str, int]:
        pending, placed, up = (figures.counts[f"tasks_{state}"] for state in ("pending", "placed", "up"))
        return {"pending": pending, "running": placed, "up": up}


class CellRollupSerializer(serializers.Serializer[Any]):
    """A cell with its figures. `measured_at`: null if the cell has no measured amounts."""

    name = serializers.CharField(source="cell.name")
    measured_at = serializers.DateTimeField(allow_null=True)
    figures = FiguresSerializer()


class ClusterRollupSerializer(serializers.Serializer[Any]):
    """A cluster with its cells. `name`: empty for the cells whose cluster is not recorded."""

    name = serializers.CharField(source="cluster.name", default="")
    description = serializers.CharField(source="cluster.description", default="")
    figures = FiguresSerializer()
    cells = CellRollupSerializer(many=True)


class SiteRollupSerializer(serializers.Serializer[Any]):
    """A site with its clusters. `name`: empty for the clusters and cells whose site is not recorded."""

    name = serializers.CharField(source="site.name", default="")
    description = serializers.CharField(source="site.description", default="")
    location = serializers.CharField(source="site.location", default="")
    figures = FiguresSerializer()
    clusters = ClusterRollupSerializer(many=True)


class SitesView(CellView):
    @extend_schema(operation_id="sites_list", responses=SiteRollupSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List all sites with their clusters and cells, and the machines, tasks and resources of each. What belongs to
        no site comes last, with an empty name.
        """
        return Response(SiteRollupSerializer(site_rollups(self.principal), many=True).data)

    @extend_schema(operation_id="sites_create", request=NewSiteSerializer, responses={201: SiteSerializer})
    def post(self, request: Request) -> Response:
        """Create a site. Only for SREs."""
        made = sites.site_create(principal=self.principal, **valid(NewSiteSerializer, request.data))
        return Response(SiteSerializer(made).data, status=201)


class SiteView(CellView):
    @extend_schema(operation_id="sites_get", responses=SiteRollupSerializer)
    def get(self, request: Request, site: str) -> Response:
        """Return a site with its clusters and cells, and the machines, tasks and resources of each."""
        found = {one.site.name: one for one in site_rollups(self.principal) if one.site is not None}
        if site not in found:
            raise NotFound("site", site, known=list(found)[:10])
        return Response(SiteRollupSerializer(found[site]).data)

    @extend_schema(operation_id="sites_change", request=SiteChangesSerializer, responses=SiteSerializer)
    def patch(self, request: Request, site: str) -> Response:
        """Change the description or the location of a site. Only for SREs."""
        changes = valid(SiteChangesSerializer, request.data)
        row = sites.site_change(principal=self.principal, site=site_named(self.principal, site), changes=changes)
        return Response(SiteSerializer(row).data)

    @extend_schema(operation_id="sites_delete", responses={204: None})
    def delete(self, request: Request, site: str) -> Response:
        """Delete a site that has no clusters. Only for SREs."""
        sites.site_delete(principal=self.principal, site=site_named(self.principal, site))
        return Response(status=204)


class ClustersView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="clusters_list", responses=ClusterSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the clusters."""
        return self.page(clusters_visible(self.principal), ClusterSerializer)

    @extend_schema(operation_id="clusters_create", request=NewClusterSerializer, responses={201: ClusterSerializer})
    def post(self, request: Request) -> Response:
        """Create a cluster. Only for SREs."""
        made = sites.cluster_create(principal=self.principal, **valid(NewClusterSerializer, request.data))
        return Response(ClusterSerializer(made).data, status=201)


class ClusterView(CellView):
    @extend_schema(operation_id="clusters_get", responses=ClusterSerializer)
    def get(self, request: Request, cluster: str) -> Response:
        """Return a cluster."""
        return Response(ClusterSerializer(cluster_named(self.principal, cluster)).data)

    @extend_schema(operation_id="clusters_change", request=ClusterChangesSerializer, responses=ClusterSerializer)
    def patch(self, request: Request, cluster: str) -> Response:
        """Change the description of a cluster, or move it to another site. Only for SREs."""
        changes = valid(ClusterChangesSerializer, request.data)
        row = cluster_named(self.principal, cluster)
        return Response(
            ClusterSerializer(sites.cluster_change(principal=self.principal, cluster=row, changes=changes)).data
        )

    @extend_schema(operation_id="clusters_delete", responses={204: None})
    def delete(self, request: Request, cluster: str) -> Response:
        """Delete a cluster that has no cells. Only for SREs."""
        sites.cluster_delete(principal=self.principal, cluster=cluster_named(self.principal, cluster))
        return Response(status=204)
