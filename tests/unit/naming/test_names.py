from __future__ import annotations

import pytest

from naming.table.names import (
    InvalidName,
    JobName,
    MachineName,
    ServiceName,
    TaskName,
    check_label,
    check_zone,
    parse_dns,
    parse_index,
    parse_path,
)

WEB = JobName("cc", "ubar", "jfoo")


def test_the_name_of_the_papers_fiftieth_task() -> None:
    task = WEB.task(50)
    assert task.dns("borg.google.com") == "50.jfoo.ubar.cc.borg.google.com"
    assert task.path == "/bns/cc/ubar/jfoo/50"


@pytest.mark.parametrize("name", [WEB, WEB.task(0), TaskName("c-1", "t2", "j", 1_048_575)])
def test_both_spellings_parse_back(name: JobName | TaskName) -> None:
    assert parse_path(name.path) == name
    assert parse_path(name.path + "/") == name
    assert parse_dns(name.dns("borg.internal"), "borg.internal") == name
    assert parse_dns(name.dns("borg.internal").upper() + ".", "borg.internal") == name


@pytest.mark.parametrize(
    "label, cure",
    [
        ("", "is empty"),
        ("a" * 64, "at most 63"),
        ("Web", "write 'web'"),
        ("my_job", "'my-job'"),
        ("-a", "begins or ends with a hyphen"),
        ("a-", "begins or ends with a hyphen"),
        ("a.b", "is not a DNS label"),
        ("a\n", "is not a DNS label"),
        ("jöb", "is not a DNS label"),
    ],
)
def test_an_invalid_label_is_rejected_with_its_field_and_the_cure(label: str, cure: str) -> None:
    with pytest.raises(InvalidName, match=cure) as caught:
        check_label(label, "tenant")
    assert caught.value.field == "tenant"


def test_labels_of_1_and_63_characters_pass() -> None:
    assert check_label("a", "job") == "a"
    assert check_label("a" * 63, "job") == "a" * 63


@pytest.mark.parametrize("text", ["", "-1", "01", "1.0", "1048576", "99999999", "x", "１"])
def test_an_index_is_a_plain_number(text: str) -> None:
    with pytest.raises(InvalidName, match="index"):
        parse_index(text)


def test_services_and_machines_have_names_of_both_spellings() -> None:
    for name in (ServiceName("cc", "ubar", "front"), MachineName("cc", "m1")):
        assert parse_path(name.path) == parse_path(name.path + "/") == name
        assert parse_dns(name.dns("borg.internal").upper(), "borg.internal") == name
    assert ServiceName("cc", "ubar", "front").path == "/bns/cc/ubar/service/front"
    assert MachineName("cc", "m1").dns("borg.internal") == "m1.machine.cc.borg.internal"
    with pytest.raises(InvalidName, match="service"):
        parse_path("/bns/cc/ubar/service/-x")


@pytest.mark.parametrize(
    "path", ["/bns/cc/ubar", "/bns/cc/ubar/j/1/2", "bns/cc/ubar/j", "/bns/cc//j", "/bns/cc/ubar/j/x"]
)
def test_paths_of_another_shape_are_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        parse_path(path)


@pytest.mark.parametrize(
    "name", ["jfoo.ubar.cc.example.org", "ubar.cc.borg.internal", "borg.internal", "a.b.c.d.e.borg.internal"]
)
def test_dns_names_of_another_shape_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_dns(name, "borg.internal")


def test_no_service_begins_with_a_digit() -> None:
    with pytest.raises(InvalidName, match="begin the name with a letter") as caught:
        parse_path("/bns/cc/ubar/service/9lives")
    assert caught.value.field == "service"


def test_zones_are_kept_lower_case_and_without_the_final_dot() -> None:
    assert check_zone("Borg.Internal.") == "borg.internal"
    with pytest.raises(InvalidName, match="zone"):
        check_zone("borg..internal")
