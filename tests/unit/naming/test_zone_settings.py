"""Tests of settings of zones: valid values, and the errors for invalid ones with name and cure."""

from __future__ import annotations

import pytest

from naming.dns.zones.zone_settings import InvalidZones, read_caa, read_reverse
from naming.table.reverse import apexes
from portal.settings.environment import SETTINGS, complaints

DEFAULT = SETTINGS["BORG_DNS_REVERSE"].default.split(",")


def zones_of(*texts: str) -> set[str]:
    return {b".".join(labels).decode() for labels in apexes(read_reverse(texts))}


@pytest.mark.parametrize(
    "networks, zones",
    [
        (["10.0.0.0/8"], {"10.in-addr.arpa"}),
        (["192.168.7.0/24"], {"7.168.192.in-addr.arpa"}),
        (["172.16.0.0/12"], {f"{n}.172.in-addr.arpa" for n in range(16, 32)}),
        (["10.0.0.0/9", "10.128.0.0/9", "10.3.0.0/16"], {"10.in-addr.arpa"}),
        (["192.0.2.6/31"], {"6.2.0.192.in-addr.arpa", "7.2.0.192.in-addr.arpa"}),
        (["fc00::/7"], {"c.f.ip6.arpa", "d.f.ip6.arpa"}),
        (["2001:db8::/32"], {"8.b.d.0.1.0.0.2.ip6.arpa"}),
        (["::1/128"], {"1" + ".0" * 31 + ".ip6.arpa"}),
        (["none"], set()),
        ([], set()),
    ],
)
def test_networks_become_zones_at_label_boundaries(networks: list[str], zones: set[str]) -> None:
    assert zones_of(*networks) == zones


def test_the_default_is_private_networks_and_loopback() -> None:
    found = zones_of(*DEFAULT)
    assert {"10.in-addr.arpa", "127.in-addr.arpa", "168.192.in-addr.arpa", "c.f.ip6.arpa"} < found
    assert len(found) == 1 + 16 + 1 + 2 + 1 + 2 + 1


@pytest.mark.parametrize(
    "network, told",
    [
        ("10.0.0.1/8", "has host bits set"),
        ("here", "give networks"),
        ("0.0.0.0/0", "all addresses"),
        ("::/0", "all addresses"),
    ],
)
def test_invalid_networks_are_rejected(network: str, told: str) -> None:
    with pytest.raises(InvalidZones, match=f"BORG_DNS_REVERSE: '{network}'.*{told}"):
        read_reverse(["10.0.0.0/8", network])


@pytest.mark.parametrize(
    "text, records",
    [
        ("", []),
        ('0 issue "ca.example"', ['0 issue "ca.example"']),
        ("0 issue ca.example", ['0 issue "ca.example"']),
        ('0 issue "ca.example"; 128 issuewild ";"', ['0 issue "ca.example"', '128 issuewild ";"']),
        (
            '0 ISSUE "ca.example; account=7"\n 0 iodef "mailto:sre@example.org" ;\n',
            ['0 issue "ca.example; account=7"', '0 iodef "mailto:sre@example.org"'],
        ),
        ("0 issue a.example; 0 issue a.example", ['0 issue "a.example"']),
    ],
)
def test_caa_records_as_they_are_written(text: str, records: list[str]) -> None:
    assert [record.to_text() for record in read_caa(text)] == records


@pytest.mark.parametrize(
    "text, told",
    [
        ("ca.example", "is not a CAA record"),
        ('0 issue "ca.example', "is not a CAA record"),
        ('0 issue "a" "b"', "is not a CAA record"),
        ("1 issue ca.example", "give 0, or 128"),
        ("0 isue ca.example", "'isue' is not a tag of CAA records; give one of issue"),
        ("0 issue a.example; nonsense", "'nonsense' is not a CAA record"),
    ],
)
def test_invalid_caa_records_are_rejected(text: str, told: str) -> None:
    with pytest.raises(InvalidZones, match=f"BORG_DNS_CAA: .*{told}"):
        read_caa(text)


@pytest.mark.parametrize("setting", ["BORG_DNS_TTL", "BORG_DNS_NEGATIVE_TTL"])
@pytest.mark.parametrize("seconds", [-1, 86_401])
def test_times_that_no_record_can_hold_are_rejected(setting: str, seconds: int) -> None:
    (line,) = complaints({setting: str(seconds)})
    assert line.startswith(f"{setting}='{seconds}': the number is out of range; give a number from 0 to 86400")
