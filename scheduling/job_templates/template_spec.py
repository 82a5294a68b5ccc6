"""Templates in job files: `kind: Template`, with parameters and the job that a dispatch submits. Pure.

bytes or dict ── parse ──► TemplateSpecification, or Rejected with fields: {"parameters.properties.x": what is wrong}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.job_templates.parameters import ParametersSchema, arguments, check_schema, check_size, filled, uses
from scheduling.spec import parser
from scheduling.spec.field_errors import DNS_LABEL, Problems, convert, rejection
from scheduling.spec.schema import API_VERSION

KIND = "Template"
# The label of each job, with the name of its template.
LABEL = "template"
# The label of each job that a token with the scope `dispatch` has dispatched, with the key of the token.
DISPATCHED_BY = "dispatched-by"
# A job is named NAME-SUFFIX. Names of jobs have at most 63 characters.
MAX_NAME, MAX_SUFFIX = 42, 20
MAX_BYTES = 256 * 2**10


class TemplateFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job file of kind `Template`. `job`: a job file without name, tenant and cell, in which
    `$(param.NAME)` stands for the value of a parameter. `labels`: of the template itself, not of its jobs.
    """

    name: str
    job: dict[str, Any]
    parameters: ParametersSchema = ParametersSchema()
    kind: str = KIND
    apiVersion: str = API_VERSION  # noqa: N815 - the file's own spelling
    tenant: str = ""
    cell: str = ""
    labels: dict[str, Any] = {}
    description: str = ""


class TemplateSpecification(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A checked template."""

    name: str
    tenant: str
    cell: str
    labels: dict[str, str]
    description: str
    parameters: ParametersSchema
    job: dict[str, Any]

    def at(self, *, cell: str, tenant: str) -> TemplateSpecification:
        return msgspec.structs.replace(self, cell=cell, tenant=tenant)

    @cached_property
    def stored(self) -> dict[str, Any]:
        """Return what a version stores: the description, the parameters, the job, and labels if there are any."""
        stored = {"description": self.description, "parameters": self.parameters.document(), "job": self.job}
        return stored | ({"labels": self.labels} if self.labels else {})

    def digest(self) -> str:
        """Return the SHA-256 of the stored content in hexadecimal."""
        return hashlib.sha256(msgspec.json.encode(self.stored, order="deterministic")).hexdigest()


def is_template_file(data: Any) -> bool:
    return isinstance(data, Mapping) and data.get("kind") == KIND


def parse(data: bytes | Mapping[str, Any], *, limits: parser.CellLimits) -> TemplateSpecification:
    """Return the checked template of a job file. Raises `Rejected` with the code `invalid-spec`, whose `fields` contain
    all problems. The job is checked with the default of each parameter, or a value that the parameter accepts. Problems
    of fields that use a parameter without a default are left out, because another value may be right.
    """
    problems = Problems()
    file = convert(parser.decode(data), TemplateFile, problems, "")
    if file is None:
        raise rejection(problems.found)
    _check_header(file, problems)
    check_schema(file.parameters, file.job, problems)
    if not problems.found:
        _check_job(file, limits, problems)
    if problems.found:
        raise rejection(problems.found)
    names = ("name", "tenant", "cell", "labels", "description", "parameters", "job")
    equal = {name: getattr(file, name) for name in names}
    return TemplateSpecification(**equal)


def _check_job(file: TemplateFile, limits: parser.CellLimits, problems: Problems) -> None:
    values = {name: one.sample for name, one in file.parameters.properties.items()}
    check_size(file.job, values, problems)
    if problems.found:
        return
    free = {name for name in values if file.parameters.is_required(name)}
    try:
        parser.parse(job_file(file.name, "1" * MAX_SUFFIX, file.job, values, token="0" * 12), limits=limits)
    except Rejected as problem:
        for path, message in problem.fields.items():
            if not free & uses(_part_at(file.job, path)):
                problems.add(f"job.{path}", message)


def _part_at(job: Any, path: str) -> Any:
    """Return the part of a job file at a path, or the smallest part around it that exists."""
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            job = job[int(step)] if isinstance(job, list) else job[step]
        except (LookupError, TypeError, ValueError):
            break
    return job


def dispatched(
    name: str, stored: Mapping[str, Any], given: Mapping[str, Any], suffix: str, *, token: str = ""
) -> dict[str, Any]:
    """Return the job file of a dispatch. `stored`: as in `TemplateSpecification.stored`. `given`: the arguments.
    `suffix`: the end of the job's name. `token`: the key of the token for `DISPATCHED_BY`, or "". Raises `Rejected`,
    which names each wrong argument.
    """
    problems = Problems()
    if suffix and (len(suffix) > MAX_SUFFIX or not DNS_LABEL.fullmatch(f"x{suffix}")):
        cure = f"use at most {MAX_SUFFIX} lower-case letters, digits and hyphens, a letter or digit last"
        problems.add("suffix", f"{suffix[:64]!r} cannot be the end of the name of a job; {cure}")
    values = arguments(msgspec.convert(stored["parameters"], ParametersSchema), given, problems)
    if not problems.found:
        check_size(stored["job"], values, problems)
    if problems.found:
        raise rejection(problems.found)
    return job_file(name, suffix, stored["job"], values, token=token)


def job_file(
    name: str, suffix: str, job: Mapping[str, Any], values: Mapping[str, Any], *, token: str = ""
) -> dict[str, Any]:
    """Return the job file with the values of the parameters, its name, and the label of the template. `token`: as in
    `dispatched`.
    """
    file = filled(job, values)
    labels = file.get("labels") or {}
    if isinstance(labels, dict):
        labels = {**labels, LABEL: name, **({DISPATCHED_BY: token} if token else {})}
    return file | {"name": f"{name}-{suffix}", "labels": labels}


def _check_header(file: TemplateFile, problems: Problems) -> None:
    parser.check_header(file, (KIND,), problems)
    if len(file.name) > MAX_NAME:
        problems.add(
            "name", f"the name has {len(file.name)} characters; give at most {MAX_NAME}, because jobs add a suffix"
        )
    problems.text("description", file.description, 1_000)
    parser.check_labels(file.labels, problems)
    for name in ("name", "tenant", "cell"):
        if name in file.job:
            problems.add(f"job.{name}", f"a job gets its {name} from the template; remove this field")
    if file.job.get("kind", "Job") != "Job":
        problems.add("job.kind", "a template submits jobs only; write Job, or remove this field")
    if _has_nul(file.job):
        problems.add("job", "contains a NUL character; remove it")
    if uses(list(_keys(file.job))):
        problems.add("job", "the name of a field contains $(param.…); only values can have parameters")
    labels = file.job.get("labels")
    if isinstance(labels, dict) and LABEL in labels:
        problems.add(f"job.labels.{LABEL}", "each job gets this label with the name of the template; remove it")
    if isinstance(labels, dict) and DISPATCHED_BY in labels:
        problems.add(
            f"job.labels.{DISPATCHED_BY}",
            "the portal sets this label on jobs that a token dispatches; remove it from the template",
        )
    if (size := len(msgspec.json.encode((file.job, file.parameters)))) > MAX_BYTES:
        cure = f"give at most {MAX_BYTES:,}; move data into a package"
        problems.add("job", f"has {size:,} bytes in JSON with its parameters; {cure}")


def _has_nul(job: Mapping[str, Any]) -> bool:
    return b"\\u0000" in msgspec.json.encode(job)


def _keys(part: Any) -> Iterator[str]:
    """Yield the names of all fields of a job file."""
    if isinstance(part, Mapping):
        yield from part
    for one in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        yield from _keys(one)
