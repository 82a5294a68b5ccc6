"""Tests of reading the ways in which people write names of jobs and tasks. `test_names_pages.py` tests the pages."""

from __future__ import annotations

import pytest

from naming.table.names import InvalidName, JobName, MachineName, ServiceName
from portal.sigma.name_parsing import PartialName, ServicePart, read

ZONE = "borg.internal"
WEB = JobName("cc", "ubar", "web")
SHOP = ServiceName("cc", "ubar", "shop")


@pytest.mark.parametrize(
    "text, name",
    [
        ("/bns/cc/ubar/web", WEB),
        ("  bns/cc/ubar/web/ ", WEB),
        ("/bns/cc/ubar/web/7", WEB.task(7)),
        ("/bns/cc/ubar/service/shop", SHOP),
        ("WEB.ubar.cc.Borg.internal.", WEB),
        ("7.web.ubar.cc.borg.internal", WEB.task(7)),
        ("_http._tcp.7.web.ubar.cc.borg.internal", WEB.task(7)),
        ("_http._tcp.shop.service.ubar.cc.borg.internal", SHOP),
        ("host-1.machine.cc.borg.internal", MachineName("cc", "host-1")),
        ("https://web.ubar.cc.borg.internal/a/b?c", WEB),
        ("grpc://me@web.ubar.cc.borg.internal:443", WEB),
        ("web.ubar.cc.borg.internal:443", WEB),
        ("7.web.ubar.cc", WEB.task(7)),
        ("cc/ubar/web", WEB),
        ("cc/ubar/web/7", WEB.task(7)),
        ("cc/ubar/service/shop", SHOP),
        ("ubar/service/shop", ServicePart("ubar", "shop")),
        ("ubar/web", PartialName("ubar", "web")),
        ("ubar/web/7", PartialName("ubar", "web", 7)),
        ("worker/3", PartialName("", "worker", 3)),
        ("Web", PartialName("", "web")),
    ],
)
def test_every_spelling_is_read(text, name) -> None:
    assert read(text, ZONE, cells=["cc"]) == name


@pytest.mark.parametrize(
    "text, field",
    [
        ("web.ubar.cc", "name"),  # without the zone, and no cell of that name is known
        ("example.org", "name"),
        ("_http._tcp", "name"),
        ("/bns/cc", "name"),
        ("a/b/c/d/e", "name"),
        ("//", "name"),
        ("ubar/web/99999999", "index"),
        ("ubar/We_b", "job"),
        ("http://", "name"),
        (".", "name"),
        ("a..b.cc.borg.internal", "job"),
        ("http://[::1", "name"),
        ("[::1]:80", "name"),
        ("\x00", "name"),
        ("x" * 10_000, "name"),
    ],
)
def test_input_that_is_not_a_name_is_refused_with_its_field(text, field) -> None:
    with pytest.raises(InvalidName) as refused:
        read(text, ZONE)
    assert refused.value.field == field
