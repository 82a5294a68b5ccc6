"""How a command ends when it can't do what was asked: exit status 1 refused or failed, 2 bad usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quota.vocabulary import resources

REFUSED, BAD_USAGE = 1, 2


class CommandFailed(Exception):
    """Shown as one sentence, with what was wrong with each field; as the problem document with `--json`.

    `passing`: nobody was reached, or the portal has trouble of its own: the same may work in a moment.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: Mapping[str, str] | None = None,
        document: dict[str, Any] | None = None,
        status: int = REFUSED,
        passing: bool = False,
    ) -> None:
        super().__init__(detail)
        self.code, self.detail, self.fields = code, detail, dict(fields or {})
        self.document = document or {
            "code": code, "detail": detail, **({"fields": self.fields} if self.fields else {}),
        }  # fmt: skip
        self.status, self.passing = status, passing

    def hints(self) -> list[str]:
        """What the figures of a refusal for want of quota say: who holds it, and what would cure it."""
        document = self.document.get("problem") or self.document  # a plan has it inside
        figures = document.get("figures") if isinstance(document, dict) else None
        return [*_held(figures), *_cured(figures)] if isinstance(figures, dict) else []


def bad_usage(detail: str, **fields: str) -> CommandFailed:
    """What the caller typed makes no sense: nothing was sent."""
    return CommandFailed("bad-usage", detail, fields=fields, status=BAD_USAGE)


def _held(figures: dict[str, Any]) -> list[str]:
    holders = figures.get("holders")
    if not isinstance(holders, list) or not holders:
        return []
    short = figures.get("short") or {}
    shown = [f"{one['job']} ({_amounts(one['holds'], short)})" for one in holders]
    more = int(figures.get("holding_jobs", 0)) - len(holders)
    return [f"held by {', '.join(shown)}{f' and {more} more' if more > 0 else ''}"]


def _amounts(holds: Mapping[str, int], short: Mapping[str, Any]) -> str:
    """Of what is short alone, where that is known."""
    return (
        ", ".join(_amount(name, value) for name, value in holds.items() if not short or name in short) or "-"
    )


def _amount(name: str, value: int) -> str:
    if name in ("cpu", "accelerators"):
        return f"{resources.format_number(value / 1000)} {name}"
    if name in ("ram", "disk", "disk_bandwidth"):
        return f"{resources.describe(resources.NAMES.index(name), value)} {name}"
    return f"{resources.format_number(value)} {name}"


def _cured(figures: dict[str, Any]) -> list[str]:
    cure = figures.get("cure")
    if not isinstance(cure, dict):
        return []
    if cure.get("problem"):
        return [f"to buy what is missing: {cure['problem']}"]
    left = ", ".join(_amount(name, value) for name, value in (cure.get("left") or {}).items())
    if left:
        return [f"the cell has only {left} left to sell until {cure['until']}", *_instead(cure)]
    return [
        f"what is missing costs {cure['price_text']} credits from {cure['from']} until {cure['until']}:",
        f"  {cure['command']}",
    ]


def _instead(cure: dict[str, Any]) -> list[str]:
    """What can be bought in place of what can't."""
    lines = []
    for other in cure.get("instead") or ():
        at = "" if other["band"] == cure.get("band") else f" at {other['band']}, for a job with its priority"
        lines += [
            f"it has all that is missing{at} from {other['from']} until {other['until']}:",
            f"  {other['command']}",
        ]
    return lines or [
        "and has it at no other time or band: ask for less, or submit at priority 0, which is free"
    ]
