"""The error that ends a command. The exit status is 1 if the portal rejected the request or the request failed, and 2
for wrong usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quota.vocabulary import resources

REFUSED, BAD_USAGE = 1, 2


class CommandFailed(Exception):
    """The error that ends a command. `detail`: the message. `fields`: a text for each wrong field. `document`: the JSON
    to print if `--json` is given.

    `passing`: whether another attempt may succeed, because the portal was unreachable or had an internal error.
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
        self.document = document or {"code": code, "detail": detail, **({"fields": self.fields} if self.fields else {})}
        self.status, self.passing = status, passing

    def hints(self) -> list[str]:
        """If a job was rejected because quota is missing, return lines of help: which jobs use the quota, and which
        command buys more. Otherwise, return an empty list.
        """
        document = self.document.get("problem") or self.document  # a plan contains a problem document
        figures = document.get("figures") if isinstance(document, dict) else None
        return [*_holders(figures), *_cures(figures)] if isinstance(figures, dict) else []


def bad_usage(detail: str, **fields: str) -> CommandFailed:
    """Return the error for wrong arguments of a command. `fields`: a text for each wrong argument."""
    return CommandFailed("bad-usage", detail, fields=fields, status=BAD_USAGE)


def unreachable(url: str, error: Exception) -> CommandFailed:
    """Return the error for a portal that does not answer. Its attribute `passing` says that another attempt may
    succeed.
    """
    problem = f"cannot reach the portal at {url}: {error or type(error).__name__}. Is it running (`make up`)?"
    return CommandFailed("unreachable", problem, passing=True)


def _holders(figures: dict[str, Any]) -> list[str]:
    holders = figures.get("holders")
    if not isinstance(holders, list) or not holders:
        return []
    short = figures.get("short") or {}
    shown = [f"{one['job']} ({_amounts(one['holds'], short)})" for one in holders]
    more = int(figures.get("holding_jobs", 0)) - len(holders)
    return [f"held by {', '.join(shown)}{f' and {more} more' if more > 0 else ''}"]


def _amounts(holds: Mapping[str, int], short: Mapping[str, Any]) -> str:
    """Format the amounts of resources in `holds`. If `short` is not empty, include only the resources in `short`."""
    return ", ".join(_amount(name, value) for name, value in holds.items() if not short or name in short) or "-"


def _amount(name: str, value: int) -> str:
    if name in ("cpu", "accelerators"):
        return f"{resources.format_number(value / 1000)} {name}"
    if name in ("ram", "disk", "disk_bandwidth"):
        return f"{resources.describe(resources.NAMES.index(name), value)} {name}"
    return f"{resources.format_number(value)} {name}"


def _cures(figures: dict[str, Any]) -> list[str]:
    cure = figures.get("cure")
    if not isinstance(cure, dict):
        return []
    if cure.get("problem"):
        return [f"the missing quota cannot be bought: {cure['problem']}"]
    left = ", ".join(_amount(name, value) for name, value in (cure.get("left") or {}).items())
    if left:
        return [f"the cell has only {left} left to sell until {cure['until']}", *_alternatives(cure)]
    price = f"the missing quota costs {cure['price_text']} credits from {cure['from']} until {cure['until']}:"
    return [price, f"  {cure['command']}"]


def _alternatives(cure: dict[str, Any]) -> list[str]:
    """Return lines of text about other bands and times in which the cell can sell the missing quota. `cure`: a part of
    the portal's error response.
    """
    lines = []
    for other in cure.get("instead") or ():
        at = "" if other["band"] == cure.get("band") else f" at {other['band']}, for a job with its priority"
        lines.append(f"the cell can sell all the missing quota{at} from {other['from']} until {other['until']}:")
        lines.append(f"  {other['command']}")
    return lines or ["no other time or band has enough: request less, or submit at priority 0, which is free"]
