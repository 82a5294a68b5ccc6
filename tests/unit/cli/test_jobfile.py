"""Tests of job files in JSON, YAML and Jsonnet, and of errors, which name the file and the line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import FrameType

import pytest

from portal.cli import jobfile, jsonnet, plainyaml
from portal.cli.failure import CommandFailed
from scheduling.core.vocabulary.published import Published
from scheduling.cron import cron_spec
from scheduling.job_templates import template_spec
from scheduling.spec.parser import CellLimits, parse
from scheduling.workflows import workflow_parser, workflow_spec

EXAMPLES = Path(__file__).parents[3] / "examples"
WEB = {"name": "web", "tasks": 2, "task": {"command": ["serve"], "restart": {"on": "failure"}}}


def written(folder: Path, name: str, text: str | bytes) -> str:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(file)


@pytest.mark.parametrize(
    "name, text",
    [
        ("j.json", '{"name": "web", "tasks": 2, "task": {"command": ["serve"], "restart": {"on": "failure"}}}'),
        ("j.yaml", "name: web\ntasks: 2\ntask:\n  command: [serve]\n  restart: {on: failure}\n"),
        ("j.yml", '\ufeffname: "web"\ntasks: 2\ntask: {command: [serve], restart: {on: failure}}'),
        ("j.jsonnet", "{name: 'web', tasks: 1 + 1, task: {command: ['serve'], restart: {on: 'failure'}}}"),
        ("j.borg", "local n = 2; {name: 'web', tasks: n, task: {command: ['serve'], restart: {on: 'failure'}}}"),
    ],
)
def test_all_three_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    assert jobfile.read(written(tmp_path, name, text)) == WEB


@pytest.mark.parametrize(
    "text, value",
    [
        ("on", "on"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("010", "010"),
        ("0x1f", "0x1f"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("2e3", 2000.0),
        ("'12'", "12"),
        ("64Mi", "64Mi"),
        (".inf", ".inf"),
        ("1_000", "1_000"),
        ("!!str 5", "5"),
    ],
)
def test_yaml_knows_no_more_types_than_json(tmp_path: Path, text: str, value: object) -> None:
    read = jobfile.read(written(tmp_path, "j.yaml", f"name: {text}"))
    assert read == {"name": value}
    assert type(read["name"]) is type(value)


def test_keys_of_yaml_are_texts_as_they_are_written(tmp_path: Path) -> None:
    assert jobfile.read(written(tmp_path, "j.yaml", "{0: {on: x}, 1-3: y, true: z}")) == {
        "0": {"on": "x"},
        "1-3": "y",
        "true": "z",
    }


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("j.json", '{"name": "web",\n "tasks" 2}', "j.json:2:10: not valid JSON: Expecting ':'"),
        ("j.json", "", "j.json:1:1: not valid JSON"),
        ("j.json", '{"a": 1, "a": 2}', "'a' appears twice"),
        ("j.json", '{"a": NaN}', "cannot contain the number NaN"),
        ("j.json", '{"a": 1e999}', "cannot contain the number 1e999"),
        ("j.json", '{"a": ' + "9" * 5000 + "}", "not a JSON job file: Exceeds the limit"),
        ("j.json", "[" * 100_000, "nested too deeply|maximum recursion"),
        ("j.json", '{"a":' * 100 + "1" + "}" * 100, "nested too deeply"),
        ("j.json", "[1]", "does not contain a job: write an object"),
        ("j.json", b'{"name":\n "\xff"}', "j.json:2: .*is not UTF-8"),
        ("j.yaml", "name: web\ntask: [a", "j.yaml:2:9: not a YAML job file"),
        ("j.yaml", "name: web\n\ttasks: 2", "j.yaml:2:1: not a YAML job file: found character"),
        ("j.yaml", "name: a\nname: b", "j.yaml:2:1: .*'name' appears twice"),
        ("j.yaml", "a: &x [1]\nb: *x", "j.yaml:2:4: .*aliases are not supported"),
        ("j.yaml", "a: !!python/object:os.system 1", "j.yaml:1:4: .*a job cannot contain the type tag"),
        ("j.yaml", "a: !!timestamp 2024-01-01", "j.yaml:1:4: .*a job cannot contain the type tag"),
        ("j.yaml", "[a, b]: c", "j.yaml:1:1: .*a key is not a string"),
        ("j.yaml", "a: 1.0e999", "j.yaml:1:4: .*is too large"),
        ("j.yaml", "a: " + "9" * 5000, "not a YAML job file: Exceeds the limit"),
        ("j.yaml", "a: \x01", "not a YAML job file"),
        ("j.yaml", "a: " + "[" * 20_000, "nested too deeply"),
        ("j.yaml", "[\n" * 20_000, "nested too deeply: more than 64 levels"),
        ("j.yaml", "- " * 20_000, "nested too deeply: more than 64 levels"),
        ("j.yaml", "? " * 20_000, "nested too deeply: more than 64 levels"),
        ("j.yaml", "\n".join(f"{'   ' * n}a:\n{'   ' * n}- b:" for n in range(30)), "nested too deeply: more"),
        ("j.yaml", "#" * (4 * 2**20 + 1), "has more than 4194304 bytes"),
        ("j.yaml", "", "does not contain a job"),
        ("j.jsonnet", "[" * 20_000, "cannot evaluate the job file as Jsonnet"),
        ("j.jsonnet", "local d(s, n) = if n == 0 then s else d(s + s, n - 1); {a: d('xxxxx', 20)}", "at most 4194304"),
        ("j.jsonnet", "{a: std.repeat('x', 2000000000)}", "used more than 1024 MiB of memory"),
        ("j.jsonnet", "{\n name: 'web',\n tasks 2\n}", r"j.jsonnet:3:8"),
        ("j.jsonnet", "{\n name: error 'no name'\n}", r"j.jsonnet:2:.*no name"),
        ("j.jsonnet", "import 'nope.libsonnet'", r"j.jsonnet:1:1.*nope.libsonnet.*beside the job file"),
        ("j.jsonnet", "local f(x) = f(x) + 1; f(1)", r"j.jsonnet:1:.*max stack frames"),
        ("j.jsonnet", "function(x) x", "j.jsonnet: .*function parameter x"),
        ("j.jsonnet", "[]", "does not contain a job"),
    ],
)
def test_what_can_not_be_read_names_the_file_and_the_line(
    tmp_path: Path, name: str, text: str | bytes, told: str
) -> None:
    with pytest.raises(CommandFailed, match=f"(?s){told}") as caught:
        jobfile.read(written(tmp_path, name, text))
    assert (caught.value.code, caught.value.status, list(caught.value.fields)) == ("bad-file", 1, ["FILE"])
    assert str(tmp_path / name) in caught.value.detail
    assert len(caught.value.detail) < len(str(tmp_path)) + 300


def test_a_file_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    for name in (str(tmp_path / "none.yaml"), str(tmp_path)):
        with pytest.raises(CommandFailed, match=name) as caught:
            jobfile.read(name)
        assert (caught.value.code, caught.value.status) == ("no-file", 2)


@pytest.mark.parametrize(
    "text",
    ['{"name": "web"}', "name: web", "# a comment\nname: web", "local n = 'web'; {name: n}", "// c\n{name: 'web'}"],
)
def test_standard_input_may_hold_any_of_the_three(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert jobfile.read("-") == {"name": "web"}


@pytest.mark.parametrize("data, told", [(b"{", "<stdin>"), (b"a: [", "<stdin>:1"), (b"\xff", "<stdin>:1: .*is not")])
def test_standard_input_that_can_not_be_read_is_reported(
    data: bytes, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(CommandFailed, match=told):
        jobfile.read("-")


def test_the_library_is_found_from_anywhere_and_neighbours_first(tmp_path: Path) -> None:
    written(tmp_path, "ours.libsonnet", "{tasks: 7}")
    file = written(tmp_path, "j.jsonnet", "(import 'borg.libsonnet').service('web') + import 'ours.libsonnet'")
    assert jobfile.read(file) == {
        "apiVersion": "borg/v1",
        "kind": "Job",
        "name": "web",
        "tasks": 7,
        "priority": "production",
        "appclass": "latency-sensitive",
        "task": {"limit": {}, "restart": {"on": "always"}},
    }


def test_the_library_says_how_names_are_published(tmp_path: Path) -> None:
    text = (
        "local b = import 'borg.libsonnet'; b.service('web') + b.partOf('shop') + b.remembered(30) + b.weighted(0, 5)"
        " + b.weighted('2-3', 0) { tasks: 9, task+: { command: ['serve'], ports: ['http'] } }"
    )
    job = parse(jobfile.read(written(tmp_path, "j.jsonnet", text)))
    assert (job.labels, job.names.ttl_s) == ({"service": "shop"}, 30)
    assert job.published() == Published(30, ((0, 0, 5), (2, 3, 0)))


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.[jy]*")), ids=lambda file: file.name)
def test_the_examples_are_job_files(file: Path) -> None:
    read = jobfile.read(str(file))
    if template_spec.is_template_file(read):
        template = template_spec.parse(read, limits=CellLimits())
        job = parse(template_spec.dispatched(template.name, template.stored, {"first": 3}, "1"))
    elif read.get("kind") == workflow_spec.KIND:
        job = workflow_parser.parse(read, limits=CellLimits()).jobs[0]
    else:
        job = cron_spec.parse(read, limits=CellLimits()).job if cron_spec.is_cron_file(read) else parse(read)
    assert file.name in (EXAMPLES / "README.md").read_text()
    if file.name == "canary.jsonnet":
        assert job.published() == Published(0, ((1, 2, 10),))
        assert job.task(0).env == {"VERSION": "new"}


@pytest.mark.parametrize("wanted", ["../secret", "{outside}", "link"])
def test_a_jsonnet_program_reads_no_files_outside_of_its_folder(tmp_path: Path, wanted: str) -> None:
    outside, folder = written(tmp_path, "secret", "hunter2"), tmp_path / "jobs"
    (folder / "lib").mkdir(parents=True)
    written(folder / "lib", "ours.libsonnet", "importstr '../text'")
    written(folder, "text", "ours")
    (folder / "link").symlink_to(outside)
    assert jsonnet.evaluate("j", "import 'lib/ours.libsonnet'", folder=folder) == '"ours"\n'
    with pytest.raises(jsonnet.JsonnetError, match="outside of the folder"):
        jsonnet.evaluate("j", f"importstr '{wanted.format(outside=outside)}'", folder=folder)


def test_a_jsonnet_program_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(jsonnet.JsonnetError, match="used more than 1 s of CPU"):
        jsonnet.evaluate("j", "local f(x) = f(x + 1) tailstrict; f(0)", folder=tmp_path)


@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 20_000, "a: " + "[" * 20_000 + "]" * 20_000])
def test_brackets_are_not_scanned_beyond_the_limit(text: str) -> None:
    """Read deeply nested YAML. The scanner must stop soon, because it examines all open brackets at each token."""
    looked = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal looked
        looked += frame.f_code.co_name == "fetch_more_tokens"

    sys.setprofile(count)
    try:
        with pytest.raises(plainyaml.NotPlain, match="nested too deeply"):
            plainyaml.load(text)
    finally:
        sys.setprofile(None)
    assert looked < 1_000
