from pathlib import Path

import pytest

from portal.up.options import OptionError, Options


def test_without_settings_the_documented_defaults_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options.read({})
    assert (options.port, options.dns_port, options.link_port) == (8000, 5353, 8443)
    assert options.home == tmp_path / ".borg"
    assert options.fleet is None
    assert options.portal_url == "http://127.0.0.1:8000"


@pytest.mark.parametrize("name", ["PORT", "DNS_PORT", "LINK_PORT"])
@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "8 000", "²"])
def test_a_bad_port_names_the_setting(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"^{name}='"):
        Options.read({name: text})


@pytest.mark.parametrize(
    ("nodename", "label"),
    [("Alice.example.org", "alice"), ("my_host", "my-host"), ("-x-", "x"), ("é", "localhost"), ("a" * 80, "a" * 63)],
)
def test_the_hosts_name_becomes_one_dns_label(nodename: str, label: str) -> None:
    assert Options.read({"BORGLET_HOSTNAME": nodename}).hostname == label


def test_ports_must_differ() -> None:
    with pytest.raises(OptionError, match="PORT=8443, DNS_PORT=5353, LINK_PORT=8443: the three ports must differ"):
        Options.read({"PORT": "8443"})


def test_cells() -> None:
    assert Options.read({}).cells == ("dev",)
    options = Options.read({"CELLS": "prod, dev"})
    assert (options.cells, options.cell) == (("prod", "dev"), "prod")


@pytest.mark.parametrize("text", ["Dev", "dev,", "dev,dev", "a.b", ",".join(f"c{number}" for number in range(11))])
def test_bad_cells_name_the_setting_and_the_cure(text: str) -> None:
    with pytest.raises(OptionError, match=r"^CELLS='.*(for example CELLS=dev,prod|give at most 10)$"):
        Options.read({"CELLS": text})


def test_simulated_machines_by_number_or_by_file(tmp_path: Path) -> None:
    file = tmp_path / "machines.csv"
    file.write_text("hostname\n")
    assert Options.read({"MACHINES": "simulated:12"}).fleet == ("--machines", "12")
    assert Options.read({"MACHINES": f"simulated:{file}"}).fleet == ("--file", str(file))


@pytest.mark.parametrize(
    "text", ["12", "simulated", "simulated:", "real:3", "simulated:0", "simulated:-5", "simulated:no.csv"]
)
def test_a_bad_fleet_names_the_setting_and_the_cure(text: str) -> None:
    with pytest.raises(OptionError, match=r"^MACHINES='"):
        Options.read({"MACHINES": text})
