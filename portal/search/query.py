"""Parses the text of a search, and orders its results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

# A longer text is not a name.
LONGEST = 200
# A longer number is not that of an order.
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Query:
    """A search. `text`: in lower case, without spaces around it.

    `job`: a part of the name of a job. `tenant`, `cell`: as far as the text names them, else "". `index`: the index of
    a task, or None. `order`: the number of an order, or None. `address`: an IP address, or "".
    """

    text: str
    job: str = ""
    tenant: str = ""
    cell: str = ""
    index: int | None = None
    order: int | None = None
    address: str = ""

    @property
    def words(self) -> list[str]:
        """Return the words of the text."""
        return self.text.split()


@dataclass(frozen=True, slots=True)
class Result:
    """A result: its title, a less important text beside it, and the address of its page. `names`: further texts that
    name it exactly.
    """

    title: str
    detail: str
    link: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Results of one kind. `title`: the kind, such as Machines."""

    title: str
    results: Sequence[Result] = field(default_factory=tuple)


def parse(text: str) -> Query:
    """Return the parts of the text of a search. Each text is a valid search. `[[cell/]tenant/]job[/index]` names jobs
    and tasks, `#7` or `7` an order.
    """
    text = text.replace("\x00", "").strip()[:LONGEST].lower()
    order = text.removeprefix("#")
    number = int(order) if order.isascii() and order.isdecimal() and len(order) <= _DIGITS else None
    try:
        address = str(ip_address(text))
    except ValueError:
        address = ""
    parts = [part for part in text.split("/") if part]
    index = None
    if len(parts) > 1 and parts[-1].isascii() and parts[-1].isdecimal() and len(parts[-1]) < 9:
        index = int(parts.pop())
    if len(parts) > 3 or not parts or " " in text:
        return Query(text, order=number, address=address)
    cell, tenant, job = ("", "", *parts)[-3:]
    return Query(text, job, tenant, cell, index, number, address)


def arranged(text: str, groups: Iterable[ResultGroup]) -> list[ResultGroup]:
    """Return the groups that are not empty. Groups with a result that `text` names exactly come first, and so do such
    results within their group.
    """

    def names_it(result: Result) -> bool:
        return text in (result.title.lower(), *result.names)

    found = [
        ResultGroup(group.title, sorted(group.results, key=lambda one: not names_it(one)))
        for group in groups
        if group.results
    ]
    return sorted(found, key=lambda group: not names_it(group.results[0]))
