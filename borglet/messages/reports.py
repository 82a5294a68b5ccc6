"""Reports, which contain the full state of a machine, and their encoding for the network."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from borglet.messages.logs import LogChunk
from borglet.messages.refusals import MalformedMessage, Refusal
from borglet.messages.tasks import NO_USAGE, AllocReport, EndCause, Removal, TaskReport, Usage, UsageWindow

MAX_REPORTED_PACKAGES = 64  # a digest takes 74 bytes of each report


class Report(msgspec.Struct, frozen=True, tag="report", tag_field="type", omit_defaults=True):
    """The full state of a machine. An older report, which has a lower pair (`session`, `sequence`), never replaces a
    newer one.
    """

    session: int
    sequence: int  # sequence of the answered `Poll`
    history_id: str
    generation: str  # of the desired state in force; empty before the first
    revision: int
    tasks: list[TaskReport]
    usage: Usage = NO_USAGE
    logs: list[LogChunk] = []
    attributes: dict[str, str] = {}
    refused: Refusal | None = None  # the reason why the last desired state was rejected
    removals: list[Removal] = []
    packages: list[str] = []  # digests of installed packages, the last used first, at most MAX_REPORTED_PACKAGES
    allocs: list[AllocReport] = []
    windows: list[UsageWindow] = []  # repeated until `Poll.windows_until` acknowledges them
    offer: str = ""  # SHA-256 of the secret that this machine will use next, 64 hex digits


class WireReport(Report, frozen=True, kw_only=True, tag="report", tag_field="type", omit_defaults=True):
    """A report in the form in which it is sent. Since protocol 2, `usages` contains the usage of the machine and its
    tasks; in protocol 1, `usages` is empty. `tasks` and `allocs` rarely change, so their encoded bytes are stored.
    """

    tasks: msgspec.Raw  # type: ignore[assignment]  # list[TaskReport], without usage
    allocs: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]  # list[AllocReport]
    usage_columns: int = 0  # number of fields of `Usage` in `usages`, from the first one; the other fields are 0
    # The figures of the whole machine, then those of each task in the order of `tasks`.
    usages: list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]] = []


_encoder = msgspec.json.Encoder()
_tasks = msgspec.json.Decoder(list[TaskReport])
_allocs = msgspec.json.Decoder(list[AllocReport])


def sealed(content: list[TaskReport] | list[AllocReport]) -> msgspec.Raw:
    """Encode reports of tasks or allocs for `WireReport.tasks` or `WireReport.allocs`."""
    return msgspec.Raw(_encoder.encode(content))


def opened(report: WireReport) -> Report:
    """Decode the tasks, the allocs and their usage in a report, and return the decoded report. Raises
    `MalformedMessage` if a part is not valid. The error names the wrong field.
    """
    tasks: list[TaskReport] = _opened(_tasks, report.tasks, "tasks")
    columns, figures, usage = report.usage_columns, report.usages, report.usage
    if columns:
        known = len(Usage.__struct_fields__)
        if columns > known:  # a newer Borglet
            figures, columns = [figure for n, figure in enumerate(figures) if n % columns < known], known
        wanted = columns * (1 + len(tasks))
        if len(figures) != wanted:
            raise MalformedMessage(
                f"Expected {wanted} numbers, which are {columns} for the machine and {columns} for each of {len(tasks)}"
                f" tasks, but got {len(figures)}; use the same release of Borglet and cell - at `$.usages`"
            )
        usage, *each = (Usage(*figures[n : n + columns]) for n in range(0, len(figures), columns))
        tasks = [msgspec.structs.replace(task, usage=used) for task, used in zip(tasks, each, strict=True)]
    allocs: list[AllocReport] = _opened(_allocs, report.allocs, "allocs")
    shared = {name: getattr(report, name) for name in Report.__struct_fields__}
    return Report(**{**shared, "tasks": tasks, "usage": usage, "allocs": allocs})


def without_time_limits(report: WireReport) -> WireReport:
    """Return the report for a shard of protocol 1 or 2, which rejects `EndCause.TIME_LIMIT`. A task that has reached
    its time limit is reported as unhealthy there. Only newer shards set time limits, so this concerns only tasks of a
    machine that has changed to an older shard.
    """
    if EndCause.TIME_LIMIT.encode() not in bytes(report.tasks):
        return report
    tasks: list[TaskReport] = _opened(_tasks, report.tasks, "tasks")
    return msgspec.structs.replace(report, tasks=sealed([_without_time_limit(task) for task in tasks]))


def _without_time_limit(task: TaskReport) -> TaskReport:
    if task.exit is None or task.exit.cause is not EndCause.TIME_LIMIT:
        return task
    exit_ = msgspec.structs.replace(task.exit, cause=EndCause.UNHEALTHY)
    return msgspec.structs.replace(task, exit=exit_)


def _opened(decoder: msgspec.json.Decoder[Any], content: msgspec.Raw, field: str) -> Any:
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text, where = str(error), f"`$.{field}"
        named = text.replace("`$", where, 1) if "`$" in text else f"{text} - at {where}`"
        raise MalformedMessage(named) from error
