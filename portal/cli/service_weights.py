"""The weights of the tracks of a service, as arguments and as text, and the wait for the end of a switch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from portal.cli import output, periods
from portal.cli.context import Context
from portal.cli.failure import CommandFailed, bad_usage

_BAR = 20  # characters of a track that gets all clients
_PAUSE_S = 1.0


def parsed(given: Sequence[str]) -> dict[str, int]:
    """Return the weights that arguments such as `blue=90` describe. Raises `CommandFailed` for others."""
    found: dict[str, int] = {}
    for text in given:
        track, equals, weight = text.rpartition("=")
        if not (track and equals and weight.isascii() and weight.isdecimal() and len(weight) < 10):
            problem = "is not a track with a weight: write TRACK=WEIGHT, for example blue=90"
            raise bad_usage(f"{text!r} {problem}", weights=problem)
        if track in found:
            raise bad_usage(f"track {track} was given twice: give each track once", weights=f"{track} was given twice")
        found[track] = int(weight)
    return found


def seconds(option: str, text: str) -> int:
    """Return the seconds of a duration such as `60s` or `10m`. Raises `CommandFailed` for another text."""
    found = periods.duration_s(text if text[-1:].isalpha() else f"{text}s")
    if found is None:
        problem = "is not a duration: write a number with s, m, h or d, such as 60s"
        raise bad_usage(f"--{option} {text!r} {problem}", **{option: problem})
    return found


def show_traffic(traffic: Mapping[str, Any], *, dry_run: bool = False) -> None:
    """Print the tracks with their weights as bars, the last switch, and the notes."""
    if not traffic["weights"]:
        output.say("The service has no weights, so the clients use all tracks by the weights of their tasks.")
    output.table(
        ["TRACK", "WEIGHT", "SHARE", "", "RUNNING", "JOBS"],
        [
            (
                track["name"],
                "-" if track["weight"] is None else track["weight"],
                "-" if track["share"] is None else f"{track['share']:.1f} %",
                "#" * round(_BAR * (track["share"] or 0) / 100),
                f"{track['tasks_up']}/{track['tasks_wanted']}",
                ", ".join(track["jobs"]) or "no live job",
            )
            for track in traffic["tracks"]
        ],
        empty="No job of the service has tasks that clients can find by name.",
    )
    for note in traffic["notes"]:
        output.say(note)
    if traffic["switch"] is not None:
        output.say(sentence(traffic["switch"], traffic["by"]))
    if traffic["stops"]:
        output.say(f"At its end, the switch stops: {', '.join(traffic['stops'])}.")
    if dry_run:
        output.say("This was a dry run, and nothing has changed.")


def sentence(switch: Mapping[str, Any], by: str) -> str:
    """Return the state of a switch as a sentence. `by`: the user who began it."""
    start = f"The switch to track {switch['to']} by {by}"
    reason = f": {switch['reason']}" if switch["reason"] else ""
    match switch["state"]:
        case "switching":
            waits = f", when {switch['enough']} % of its tasks are up" if switch["gated"] else ""
            return f"{start} is in progress. The next step is at {output.when(switch['next_at'])}{waits}."
        case "stopping":
            return f"{start} has moved all clients. The jobs of the old tracks are being stopped."
        case "done":
            return f"{start} is done{reason}."
        case "returned":
            return f"{start} failed, and the earlier weights are set again{reason}."
    return f"{start} was ended{reason}."


def ended(session: Context, path: str, answer: Any) -> Any:
    """Wait until the switch has ended, and return the last answer. Raises `CommandFailed` if it was not done."""
    while answer["in_progress"]:
        time.sleep(_PAUSE_S)
        answer = session.client.get(path)
    switch = answer["switch"]
    if switch is None or switch["state"] != "done":
        detail = sentence(switch, answer["by"]) if switch else "the service has no switch any more"
        raise CommandFailed("switch-failed", detail, document=answer)
    return answer
