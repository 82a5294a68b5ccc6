"""Commands for sites and clusters: where cells are, and the machines, tasks and resources of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Column, Commands, Context, DryRun
from portal.cli.failure import bad_usage
from portal.cli.output import quantity, would_be
from portal.cli.paths import part

site = Commands(help="Sites, which are collections of datacenter buildings: list, show, create, set, delete.")
cluster = Commands(help="Clusters, which are the machines of one network fabric: list, create, set, delete.")

Site = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="Name of the cluster.")]
Description = Annotated[str, typer.Option(help="Description for people.")]
NewDescription = Annotated[str | None, typer.Option(help="New description for people.")]

_ALL, _UNKNOWN = "all", "-"


@site.command("list")
def site_list(session: Context) -> None:
    """List all sites with their machines, tasks and resources. The site - has all that belongs to no site."""
    rows = session.client.get("/api/v1/sites/")
    columns: dict[str, Column] = {
        "SITE": lambda row: row["name"] or _UNKNOWN,
        "CLUSTERS": lambda row: sum(1 for one in row["clusters"] if one["name"]),
        "CELLS": lambda row: row["figures"]["cells"],
        **_FIGURES,
        "LOCATION": "location",
    }
    return session.table(rows, columns, empty="No sites and no cells.")


@site.command("show")
def site_show(session: Context, name: Site) -> None:
    """Show a site, and the machines, tasks and resources of each of its cells and clusters."""
    answer = session.client.get(_site_path(name))
    if session.json:
        return output.as_json(answer)
    output.details(((field, answer[field]) for field in ("name", "description", "location")), width=14, indent="")
    columns = {"CLUSTER": "cluster", "CELL": "cell", **_FIGURES}
    return session.table(list(_lines(answer)), columns, empty="The site has no clusters.")


@site.command("create")
def site_create(
    session: Context,
    name: Annotated[str, typer.Argument(help="Name of the site: lower-case letters, digits and hyphens.")],
    description: Description = "",
    location: Annotated[str, typer.Option(help="Where the buildings are, such as an address.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Create a site. For SREs.

    Example: borgctl site create zurich --location "Hardturmstrasse 1, Zürich"
    """
    body = {"name": name, "description": description, "location": location}
    answer = session.client.post("/api/v1/sites/", body, dry_run=dry_run)
    return session.say(answer, f"Site {name} {would_be(dry_run)} created.")


@site.command("set")
def site_set(
    session: Context,
    name: Site,
    description: NewDescription = None,
    location: Annotated[str | None, typer.Option(help="New location.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Change the description or the location of a site. For SREs."""
    changes = _given(description=description, location=location)
    answer = session.client.patch(_site_path(name), changes, dry_run=dry_run)
    return session.say(answer, f"Site {name} {would_be(dry_run)} changed.")


@site.command("delete")
def site_delete(session: Context, name: Site, dry_run: DryRun = False) -> None:
    """Delete a site that has no clusters. For SREs."""
    return session.delete(_site_path(name), f"Site {name}", "deleted", dry_run=dry_run)


@cluster.command("list")
def cluster_list(session: Context) -> None:
    """List all clusters with their sites. `borgctl cells` lists the cells of each."""
    return session.table(
        session.client.pages("/api/v1/clusters/"),
        {"CLUSTER": "name", "SITE": lambda row: row["site"] or _UNKNOWN, "DESCRIPTION": "description"},
        empty="No clusters.",
    )


@cluster.command("create")
def cluster_create(
    session: Context,
    name: Annotated[str, typer.Argument(help="Name of the cluster: lower-case letters, digits and hyphens.")],
    site: Annotated[str, typer.Option(help="Name of the site where the cluster is.")] = "",
    description: Description = "",
    dry_run: DryRun = False,
) -> None:
    """Create a cluster. For SREs.

    Example: borgctl cluster create zrh-1 --site zurich
    """
    body = {"name": name, "site": site, "description": description}
    answer = session.client.post("/api/v1/clusters/", body, dry_run=dry_run)
    return session.say(answer, f"Cluster {name} {would_be(dry_run)} created.")


@cluster.command("set")
def cluster_set(
    session: Context,
    name: Cluster,
    site: Annotated[
        str | None, typer.Option(help='Name of the site to which the cluster moves, or "" for none.')
    ] = None,
    description: NewDescription = None,
    dry_run: DryRun = False,
) -> None:
    """Move a cluster with its cells to another site, or change its description. For SREs.

    Example: borgctl cluster set zrh-1 --site dublin
    """
    changes = _given(site=site, description=description)
    answer = session.client.patch(_cluster_path(name), changes, dry_run=dry_run)
    return session.say(answer, f"Cluster {name} {would_be(dry_run)} changed.")


@cluster.command("delete")
def cluster_delete(session: Context, name: Cluster, dry_run: DryRun = False) -> None:
    """Delete a cluster that has no cells. For SREs."""
    return session.delete(_cluster_path(name), f"Cluster {name}", "deleted", dry_run=dry_run)


def _amounts(resource: str) -> Column:
    """Return a function that shows how much of a resource is used, allocated and there, in a row of the API."""

    def shown(row: Mapping[str, Any]) -> str:
        figures = row["figures"]
        if not figures["cells_measured"]:
            return "not measured" if figures["cells"] else _UNKNOWN
        amounts = (figures[what].get(resource, 0) for what in ("usage", "allocated", "capacity"))
        text = " / ".join(quantity(resource, amount) for amount in amounts)
        missing = figures["cells"] - figures["cells_measured"]
        return f"{text} (without {output.number(missing, 'cell')})" if missing else text

    return shown


_FIGURES: dict[str, Column] = {
    "UP": lambda row: row["figures"]["machines"]["up"],
    "DRAINING": lambda row: row["figures"]["machines"]["draining"],
    "DOWN": lambda row: row["figures"]["machines"]["down"],
    "RUNNING": lambda row: row["figures"]["tasks"]["up"],
    "PENDING": lambda row: row["figures"]["tasks"]["pending"],
    "CPU USED / ALLOCATED / CAPACITY": _amounts("cpu"),
    "RAM USED / ALLOCATED / CAPACITY": _amounts("ram"),
}


def _lines(site: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line per cell of the site, and after the cells of each cluster a line with their sums."""
    for one in site["clusters"]:
        for cell in one["cells"]:
            yield {"cluster": one["name"], "cell": cell["name"], "figures": cell["figures"]}
        yield {"cluster": one["name"], "cell": _ALL, "figures": one["figures"]}


def _given(**changes: str | None) -> dict[str, str]:
    """Return the options that were given. Raises `CommandFailed` if none was."""
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        options = " or ".join(f"--{name}" for name in changes)
        raise bad_usage(f"nothing to change is given: use {options}", **dict.fromkeys(changes, "not given"))
    return given


def _site_path(name: str) -> str:
    return f"/api/v1/sites/{part(name)}/"


def _cluster_path(name: str) -> str:
    return f"/api/v1/clusters/{part(name)}/"
