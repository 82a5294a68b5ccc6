"""Sites and clusters become rows. A cell refers to its cluster, and a cluster to its site.

The columns `cluster` and `site` of cells, which hold text, stay in the database with the texts that people wrote, so
that processes of the release before still run, and so that no text is lost. A later release removes these columns.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import django.db.models.deletion
from django.db import connection, migrations, models

import quota.models.fields

_LABEL = re.compile(quota.models.fields.DNS_LABEL)
_LENGTH, _TEXT = 63, 200
_UNKNOWN = "For cells of site %s whose cluster is not recorded."


@dataclass
class Mapped:
    """The rows for the texts of cells. `sites`: description by name. `clusters`: description, and the name of the site
    or "", by name. `cells`: the name of the cluster by cell id.
    """

    sites: dict[str, str] = field(default_factory=dict)
    clusters: dict[str, tuple[str, str]] = field(default_factory=dict)
    cells: dict[int, str] = field(default_factory=dict)


def mapped(cells: Iterable[tuple[int, str, str]]) -> Mapped:
    """Return the sites and clusters for cells with the texts (cell id, cluster, site). Each different text becomes one
    row. A text that is not a DNS label gets a similar name, and is the description of its row.

    Cells with the same cluster and different sites are ambiguous, because a cluster is in one site. They get one
    cluster per site. Cells with a site only get a cluster with the name of the site.
    """
    cells = [(cell_id, cluster.strip(), site.strip()) for cell_id, cluster, site in cells]
    found = Mapped()
    site_names = _names({site for _, _, site in cells if site}, "site")
    found.sites = {name: "" if name == text else text for text, name in site_names.items()}
    sites_of: dict[str, set[str]] = {}
    for _, cluster, site in cells:
        sites_of.setdefault(cluster, set()).update({site} - {""})
    plain = _names(set(sites_of) - {""}, "cluster")
    made: dict[tuple[str, str], str] = {}
    for cell_id, cluster, site in sorted(cells, key=lambda cell: (cell[1] == "", cell[0])):  # named clusters first
        if not cluster and not site:
            continue
        ambiguous = len(sites_of[cluster]) > 1
        if not ambiguous and cluster:
            site = next(iter(sites_of[cluster]), "")
        if (cluster, site) not in made:
            site_name = site_names.get(site, "")
            if not cluster:
                name, text = _free(site_name, {*found.clusters, *plain.values()}), _UNKNOWN % site
            elif ambiguous and site:
                name = _free(f"{plain[cluster]}-{site_name}", {*found.clusters, *plain.values()})
                text = f"{cluster} ({site})"
            else:
                name = plain[cluster]
                text = "" if name == cluster else cluster
            made[cluster, site] = name
            found.clusters[name] = (text, site_name)
        found.cells[cell_id] = made[cluster, site]
    return found


def _names(texts: set[str], kind: str) -> dict[str, str]:
    """Return a name for each text. Texts that are DNS labels keep their name."""
    names = {text: text for text in sorted(texts) if _LABEL.match(text)}
    for text in sorted(texts - set(names)):
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
        label = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
        if not label[:1].isalpha():
            label = f"{kind}-{label}".strip("-")
        names[text] = _free(label, set(names.values()))
    return names


def _free(label: str, taken: set[str]) -> str:
    """Return the label, or the label with the first number that makes it different from all in `taken`."""
    name, number = label[:_LENGTH].rstrip("-"), 1
    while name in taken:
        number += 1
        suffix = f"-{number}"
        name = label[: _LENGTH - len(suffix)].rstrip("-") + suffix
    return name


def fill(apps: Any, schema_editor: Any) -> None:
    """Create the sites and clusters that the texts of cells name, and refer to them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, cluster, site FROM scheduling_cell WHERE cluster <> '' OR site <> '' ORDER BY id")
        found = mapped(cursor.fetchall())
    site_model, cluster_model, cell_model = (
        apps.get_model("scheduling", name) for name in ("Site", "Cluster", "Cell")
    )
    sites = {
        row.name: row
        for row in site_model.objects.bulk_create(
            site_model(name=name, description=text[:_TEXT]) for name, text in found.sites.items()
        )
    }
    clusters = {
        row.name: row
        for row in cluster_model.objects.bulk_create(
            cluster_model(name=name, description=text[:_TEXT], site=sites.get(site))
            for name, (text, site) in found.clusters.items()
        )
    }
    cells = cell_model.objects.in_bulk(list(found.cells))
    for cell_id, cell in cells.items():
        cell.cluster = clusters[found.cells[cell_id]]
    cell_model.objects.bulk_update(cells.values(), ["cluster"])


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0044_deleted_cells")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveField(model_name="cell", name="cluster"),
                migrations.RemoveField(model_name="cell", name="site"),
            ],
            database_operations=[
                migrations.RunSQL(
                    "ALTER TABLE scheduling_cell ALTER cluster SET DEFAULT '', ALTER site SET DEFAULT ''",
                    "ALTER TABLE scheduling_cell ALTER cluster DROP DEFAULT, ALTER site DROP DEFAULT",
                )
            ],
        ),
        migrations.CreateModel(
            name="Site",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    quota.models.fields.DnsLabelField(
                        max_length=63, unique=True, validators=[quota.models.fields.dns_label], verbose_name="name"
                    ),
                ),
                (
                    "description",
                    models.CharField(blank=True, default="", max_length=200, verbose_name="description"),
                ),
                ("location", models.CharField(blank=True, default="", max_length=200, verbose_name="location")),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
            ],
            options={"verbose_name": "site", "verbose_name_plural": "sites", "ordering": ["name"]},
        ),
        migrations.CreateModel(
            name="Cluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "name",
                    quota.models.fields.DnsLabelField(
                        max_length=63, unique=True, validators=[quota.models.fields.dns_label], verbose_name="name"
                    ),
                ),
                (
                    "description",
                    models.CharField(blank=True, default="", max_length=200, verbose_name="description"),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True, verbose_name="created")),
                (
                    "site",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="clusters",
                        to="scheduling.site",
                        verbose_name="site",
                    ),
                ),
            ],
            options={"verbose_name": "cluster", "verbose_name_plural": "clusters", "ordering": ["name"]},
        ),
        migrations.AddField(
            model_name="cell",
            name="cluster",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="cells",
                to="scheduling.cluster",
                verbose_name="cluster",
            ),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
