"""What is sold, in people's words: names of resources, hints how to write them, bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quota.models import PriorityBand
from quota.pricing.arithmetic import UNIT
from quota.vocabulary.resources import NAMES, describe


class Size(NamedTuple):
    """A field of the form. `more`: shown only to those who ask for it."""

    name: str
    label: str | Promise
    hint: str | Promise
    more: bool = False


SIZES = (
    Size("cpu", gettext_lazy("CPU, in cores"), gettext_lazy("4, or 500m for half")),
    Size("ram", gettext_lazy("RAM"), gettext_lazy("16Gi or 512Mi")),
    Size("disk", gettext_lazy("Disk"), gettext_lazy("100Gi or 2Ti")),
    Size("accelerators", gettext_lazy("Accelerators"), gettext_lazy("1, or 250m for a quarter"), True),
    Size("disk_bandwidth", gettext_lazy("Disk speed"), gettext_lazy("200Mi, for a second"), True),
)
assert {size.name for size in SIZES} == set(UNIT), "the shop sells what has a price"
LABELS = {size.name: size.label for size in SIZES}
_BANDS = {
    "monitoring": gettext_lazy(
        "For watching and alarms: placed before everything else, and never pushed aside."
    ),
    "production": gettext_lazy("For services that people wait for: never pushed aside by other teams' work."),
    "batch": gettext_lazy(
        "For work that may wait a little: runs when production leaves room, and may be pushed aside."
    ),
    "best-effort": gettext_lazy("For trials and odd jobs: cheapest, and the first to be pushed aside."),
}


def band_words(band: PriorityBand) -> str:
    """For whom a band is, with the priorities of its jobs."""
    kind = _BANDS.get(band.name) or (
        _("Placed by its limits, never in what others leave unused.")
        if band.prod
        else _("May be pushed aside by production.")
    )
    return _("%(kind)s Its jobs have priority %(low)d to %(high)d.") % {
        "kind": kind, "low": band.low, "high": band.high,
    }  # fmt: skip


def wanted_words(amounts: Sequence[int]) -> str:
    """`4 cores, 16 GiB RAM, 100 GiB disk` of what is not zero and sold."""
    said = []
    for index, value in enumerate(amounts[: len(NAMES)]):
        name = NAMES[index]
        if not value or name not in UNIT:
            continue
        text = describe(index, int(value))
        said.append(text if name in ("cpu", "accelerators") else f"{text} {_word(name)}")
    return ", ".join(said)


def _word(name: str) -> str:
    """A resource in the middle of a sentence."""
    return str(LABELS[name]) if name == "ram" else str(LABELS[name]).lower()
