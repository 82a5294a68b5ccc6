"""The parser of the search box for names. It accepts all ways to write a name, and also parts of a name. Pure.

Examples of accepted names:

/bns/cc/ubar/web/7   7.web.ubar.cc.borg.internal   7.web.ubar.cc   http://web.ubar.cc.borg.internal:8080/
_http._tcp.web.ubar.cc.borg.internal   cc/ubar/web   ubar/web/7   web/7   web   ubar/service/shop
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from naming.table.names import PREFIX, SERVICE, Name, check_label, parse_dns, parse_index, parse_path

# The characters that end the host in a URL.
_END = re.compile(r"[/?#]")


@dataclass(frozen=True, slots=True)
class PartialName:
    """A name of a job, without the cell. `index`: the index of one task of the job, or None. `tenant`: empty if the
    name does not contain the tenant either.
    """

    tenant: str
    job: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class ServicePart:
    """A name of a service, without the cell."""

    tenant: str
    service: str


def read(text: str, zone: str, *, cells: Collection[str] = ()) -> Name | PartialName | ServicePart:
    """Parse a name. `zone`: the DNS zone. A DNS name that ends with one of `cells` may omit the zone. Raises
    `InvalidName` if the text is not a name.
    """
    name = _host(text.strip()).removesuffix(".")
    if name.startswith((PREFIX, PREFIX.removeprefix("/"))):
        return parse_path(name if name.startswith("/") else f"/{name}")
    if "/" in name:
        return _by_slashes(name.strip("/").split("/"))
    if "." not in name:
        return PartialName("", check_label(name.lower(), "name"))
    labels = name.lower().split(".")
    while labels and labels[0].startswith("_"):
        del labels[0]
    if labels and labels[-1] in cells:
        labels.append(zone)
    return parse_dns(".".join(labels), zone)


def _host(text: str) -> str:
    """Return the host of a URL without its port. Return any other text unchanged."""
    if "://" in text:
        text = _END.split(text.partition("://")[2])[0].rpartition("@")[2]
    host, colon, port = text.rpartition(":")
    return host if colon and port.isdecimal() else text


def _by_slashes(parts: list[str]) -> Name | PartialName | ServicePart:
    """Parse `[[cell/]tenant/]job[/index]`. Job names begin with a letter, so a number is always an index."""
    index = parse_index(parts.pop()) if len(parts) > 1 and parts[-1].isdecimal() else None
    if len(parts) == 1:
        return PartialName("", check_label(parts[0], "name"), index)
    if len(parts) == 2:
        return PartialName(check_label(parts[0], "tenant"), check_label(parts[1], "job"), index)
    if len(parts) == 3 and index is None and parts[1] == SERVICE:
        return ServicePart(check_label(parts[0], "tenant"), check_label(parts[2], "service"))
    return parse_path("/".join([PREFIX.rstrip("/"), *parts, *([] if index is None else [str(index)])]))
