"""Labels and hints for the resources and bands that the shop sells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quota.models import PriorityBand
from quota.pricing.arithmetic import UNIT
from quota.vocabulary.resources import NAMES, describe


class Size(NamedTuple):
    """A field of the form. `more`: hidden until the user opens "more"."""

    name: str
    label: str | Promise
    hint: str | Promise
    more: bool = False


SIZES = (
    Size("cpu", gettext_lazy("CPU, in cores"), gettext_lazy("4, or 500m for half")),
    Size("ram", gettext_lazy("RAM"), gettext_lazy("16Gi or 512Mi")),
    Size("disk", gettext_lazy("Disk"), gettext_lazy("100Gi or 2Ti")),
    Size("accelerators", gettext_lazy("Accelerators"), gettext_lazy("1, or 250m for a quarter"), True),
    Size("disk_bandwidth", gettext_lazy("Disk speed"), gettext_lazy("200Mi, per second"), True),
)
assert {size.name for size in SIZES} == set(UNIT), "the shop sells what has a price"
LABELS = {size.name: size.label for size in SIZES}
_BANDS = {
    "monitoring": gettext_lazy("For monitoring and alerts: placed before all other work, and never preempted."),
    "production": gettext_lazy("For services with users: never preempted by other teams' jobs."),
    "batch": gettext_lazy("For work that can wait: runs when production leaves capacity free, and may be preempted."),
    "best-effort": gettext_lazy("For tests and experiments: the cheapest, and preempted first."),
}


def size_fields(given: Mapping[str, str], errors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the fields of the form for all sizes, with their texts and errors."""
    return [{**size._asdict(), "text": given.get(size.name, ""), "error": errors.get(size.name, "")} for size in SIZES]


def band_words(band: PriorityBand) -> str:
    """Return a description of the band with its range of priorities."""
    kind = _BANDS.get(band.name) or (
        _("Placed by its limits, never in capacity reclaimed from other jobs.")
        if band.prod
        else _("May be preempted by production jobs.")
    )
    return _("%(kind)s Its jobs have priority %(low)d to %(high)d.") % {
        "kind": kind,
        "low": band.low,
        "high": band.high,
    }


def wanted_words(amounts: Sequence[int]) -> str:
    """Return the sold amounts that are not zero as `4 cores, 16 GiB RAM, 100 GiB disk`."""
    parts = []
    for index, value in enumerate(amounts[: len(NAMES)]):
        name = NAMES[index]
        if not value or name not in UNIT:
            continue
        text = describe(index, int(value))
        parts.append(text if name in ("cpu", "accelerators") else f"{text} {_word(name)}")
    return ", ".join(parts)


def _word(name: str) -> str:
    """Return a resource's name for the middle of a sentence."""
    return str(LABELS[name]) if name == "ram" else str(LABELS[name]).lower()
