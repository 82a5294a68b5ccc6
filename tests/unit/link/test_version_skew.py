"""Tests of peers of different releases: messages of protocol 1 are understood in both directions."""

from __future__ import annotations

import json
from enum import EnumMeta
from pathlib import Path

import msgspec
import pytest

from borglet import messages
from borglet.messages import (
    AllocReport,
    EndCause,
    Exit,
    Health,
    Hello,
    MalformedMessage,
    Phase,
    Poll,
    Refusal,
    Report,
    TaskKey,
    TaskReport,
    Usage,
    Welcome,
    WireReport,
    common_protocol,
    decode_to_borglet,
    decode_to_shard,
    encode,
    opened,
    sealed,
    without_time_limits,
)
from tests.unit.borglet import messages_1

FRAMES = {
    record["name"]: record["frame"]
    for record in map(json.loads, (Path(__file__).parent / "frames/protocol_1.jsonl").read_text().splitlines())
}
_ODD_PHASE = msgspec.Raw(b'[{"key":{"job":"a","index":0,"incarnation":1},"name":"n","phase":"odd"}]')
WEB, COUNT = TaskKey("ab" * 16, 3, 2), TaskKey("cd" * 16, 0, 1)


def test_a_report_of_protocol_1_is_understood_whole() -> None:
    wire = decode_to_shard(FRAMES["report"])
    assert isinstance(wire, WireReport)
    report = opened(wire)
    web, count = report.tasks
    assert (report.session, report.sequence, report.revision) == (7, 12, 41)
    assert (web.key, web.phase, web.health, web.restarts) == (WEB, Phase.UP, Health.HEALTHY, 1)
    assert web.usage == Usage(250, 2**28, 2**20, 3, 10) == report.usage
    assert web.exit == Exit(EndCause.SIGNALED, 1763758700.5, signal=11, detail="core dumped")
    assert (count.key, count.phase, count.exit.status) == (COUNT, Phase.ENDED, 0)
    assert report.refused.code == "older-desired-state"
    assert opened(decode_to_shard(FRAMES["report-empty"])).tasks == []


def test_what_a_shard_of_protocol_1_says_is_understood() -> None:
    welcome, desired, poll, refusal = (
        decode_to_borglet(FRAMES[name]) for name in ("welcome", "poll-desired", "poll", "refusal")
    )
    assert isinstance(welcome, Welcome)
    assert (welcome.protocol, welcome.session, welcome.zone) == (1, 7, "borg.internal")
    assert isinstance(desired, Poll)
    assert desired.desired.run[0].key == WEB
    assert desired.desired.run[0].root == "host"
    assert desired.desired.stop[0].notice_s == 5.0
    assert poll == Poll(2, 5.0)
    assert isinstance(refusal, Refusal)


@pytest.mark.parametrize(
    ("hello", "spoken"),
    [
        (Hello(1, "m1", "b", "s"), 1),
        (Hello(1, "m1", "b", "s", newest=2), 2),
        (Hello(1, "m1", "b", "s", newest=99), messages.PROTOCOL),
        (Hello(messages.PROTOCOL, "m1", "b", "s", newest=99), messages.PROTOCOL),
        (Hello(messages.PROTOCOL + 1, "m1", "b", "s"), None),
        (Hello(0, "m1", "b", "s"), None),
    ],
)
def test_the_newest_that_both_know_is_spoken(hello: Hello, spoken: int | None) -> None:
    assert common_protocol(hello) == spoken


def test_a_shard_of_protocol_1_takes_the_hello_of_a_newer_borglet() -> None:
    hello = messages_1.decode_to_shard(encode(Hello(1, "m1", "b", "s", newest=2, authority="0" * 64)))
    assert isinstance(hello, messages_1.Hello)
    assert messages_1.OLDEST_PROTOCOL <= hello.protocol <= messages_1.PROTOCOL


def test_a_shard_of_protocol_1_understands_a_report_made_for_it() -> None:
    task = TaskReport(WEB, "cc/ubar/web/3", Phase.UP, usage=Usage(1, 2, 3, 4, oom_kills=1), address="10.9.0.2")
    said = Report(7, 1, "h", "g", 3, [task, TaskReport(COUNT, "x", Phase.STARTING)], usage=Usage(1, 2, 3, 4))
    heard = messages_1.decode_to_shard(encode(said))
    assert isinstance(heard, messages_1.Report)
    assert heard.tasks[0] == messages_1.TaskReport(
        messages_1.TaskKey(*msgspec.structs.astuple(WEB)),
        "cc/ubar/web/3",
        messages_1.Phase.UP,
        usage=messages_1.Usage(1, 2, 3, 4),
    )
    assert heard.tasks[1].health is messages_1.Health.UNKNOWN
    assert heard.usage == messages_1.Usage(1, 2, 3, 4)


def test_a_borglet_of_protocol_1_understands_polls_that_leave_out_what_is_usual() -> None:
    poll = messages_1.decode_to_borglet(encode(Poll(3, 5.0, rotate=True)))
    assert poll == messages_1.Poll(3, 5.0)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, one in vars(messages_1).items()
        if isinstance(one, EnumMeta) and one.__module__ == messages_1.__name__
    ],
)
def test_no_enumeration_has_a_new_value_that_protocol_1_could_get(name: str) -> None:
    known = [one.value for one in getattr(messages, name) if one is not EndCause.TIME_LIMIT]
    assert known == [one.value for one in getattr(messages_1, name)]


def test_older_shards_get_no_time_limits() -> None:
    exit_ = Exit(EndCause.TIME_LIMIT, 5.0, signal=15, detail="ran for 60 s", notice="full")
    ended = [TaskReport(WEB, "web", Phase.ENDED, exit=exit_), TaskReport(COUNT, "count", Phase.UP)]
    wire = WireReport(session=1, sequence=2, history_id="h", generation="g", revision=3, tasks=sealed(ended))
    old = without_time_limits(wire)
    assert without_time_limits(old) is old, "protocol 2 gets no time limit"
    heard = messages_1.decode_to_shard(encode(opened(old)))
    assert isinstance(heard, messages_1.Report)
    assert heard.tasks[0].exit == messages_1.Exit(messages_1.EndCause.UNHEALTHY, 5.0, None, 15, "ran for 60 s")
    assert heard.tasks[1].exit is None


def test_a_wire_report_opens_to_what_was_said() -> None:
    used = [Usage(5, 6, 7, 8), Usage(1, 2, 3, 4), Usage(4, 4, 4, 4)]
    bare = [TaskReport(WEB, "web", Phase.UP, restarts=1), TaskReport(COUNT, "count", Phase.STARTING)]
    wire = WireReport(
        session=1,
        sequence=2,
        history_id="h",
        generation="g",
        revision=3,
        tasks=sealed(bare),
        allocs=sealed([AllocReport(WEB, "alloc", 5)]),
        usage_columns=4,
        usages=[figure for usage in used for figure in msgspec.structs.astuple(usage)[:4]],
        offer="0" * 64,
    )
    heard = decode_to_shard(encode(wire))
    assert isinstance(heard, WireReport)
    assert opened(heard) == Report(
        1,
        2,
        "h",
        "g",
        3,
        [msgspec.structs.replace(task, usage=usage) for task, usage in zip(bare, used[1:], strict=True)],
        usage=used[0],
        allocs=[AllocReport(WEB, "alloc", 5)],
        offer="0" * 64,
    )


def test_columns_that_a_newer_borglet_adds_are_left_out() -> None:
    columns = len(Usage.__struct_fields__) + 1
    wire = WireReport(
        session=1,
        sequence=2,
        history_id="h",
        generation="g",
        revision=3,
        usage_columns=columns,
        tasks=sealed([TaskReport(WEB, "web", Phase.UP)]),
        usages=list(range(2 * columns)),
    )
    assert opened(wire).tasks[0].usage == Usage(*range(columns, 2 * columns - 1))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"tasks": _ODD_PHASE}, "tasks[0].phase"),
        ({"tasks": msgspec.Raw(b"{}")}, "tasks"),
        ({"usages": [1, 2, 3]}, "usages"),
        ({"allocs": msgspec.Raw(b'[{"name":"n"}]')}, "allocs[0]"),
    ],
)
def test_what_can_not_be_opened_is_reported_with_its_field(changed: dict[str, object], field: str) -> None:
    said = {
        "session": 1,
        "sequence": 2,
        "history_id": "h",
        "generation": "g",
        "revision": 3,
        "usage_columns": 2,
        "tasks": sealed([]),
        "usages": [0, 0],
        **changed,
    }
    with pytest.raises(MalformedMessage) as caught:
        opened(WireReport(**said))  # type: ignore[arg-type]
    assert f"`$.{field}`" in str(caught.value)
