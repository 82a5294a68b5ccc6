"""The labels, hints and descriptions of the resources and bands that the shop sells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quota.models import PriorityBand
from quota.pricing.price_formula import UNIT
from quota.vocabulary.resources import NAMES, describe


class Size(NamedTuple):
    """A field of the shop's form for the amount of one resource. `more`: whether the form hides the field until the
    user opens the part for more resources.
    """

    name: str
    label: str | Promise
    hint: str | Promise
    more: bool = False


SIZES = (
    Size("cpu", gettext_lazy("CPU, in cores"), gettext_lazy("4, or 500m for half a core")),
    Size("ram", gettext_lazy("RAM"), gettext_lazy("16Gi or 512Mi")),
    Size("disk", gettext_lazy("Disk"), gettext_lazy("100Gi or 2Ti")),
    Size("accelerators", gettext_lazy("Accelerators"), gettext_lazy("1, or 250m for a quarter of one"), True),
    Size("disk_bandwidth", gettext_lazy("Disk speed"), gettext_lazy("200Mi for 200 MiB per second"), True),
)
assert {size.name for size in SIZES} == set(UNIT), "the shop sells what has a price"
LABELS = {size.name: size.label for size in SIZES}
_BANDS = {
    "monitoring": gettext_lazy("For monitoring and alerts. These jobs are placed first and are never preempted."),
    "production": gettext_lazy("For services with users. Jobs of other teams never preempt these jobs."),
    "batch": gettext_lazy("For work that can wait. These jobs run in capacity that production leaves free."),
    "best-effort": gettext_lazy("For tests and experiments. These jobs cost the least and are preempted first."),
}


def size_fields(given: Mapping[str, str], errors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the form fields for the amounts. `given`, `errors`: the text and the error of each field."""
    return [{**size._asdict(), "text": given.get(size.name, ""), "error": errors.get(size.name, "")} for size in SIZES]


def band_words(band: PriorityBand) -> str:
    """Return a description of the band with its range of priorities."""
    kind = _BANDS.get(band.name) or (
        _("These jobs never run in capacity that is reclaimed from other jobs.")
        if band.prod
        else _("Production jobs may preempt these jobs.")
    )
    return _("%(kind)s Jobs of this band have priority %(low)d to %(high)d.") % {
        "kind": kind,
        "low": band.low,
        "high": band.high,
    }


def wanted_words(amounts: Sequence[int]) -> str:
    """Return the amounts that are not zero as text, such as `4 cores, 16 GiB RAM, 100 GiB disk`."""
    places = enumerate(amounts[: len(NAMES)])
    return ", ".join(described(index, int(value)) for index, value in places if value and NAMES[index] in UNIT)


def described(index: int, value: int) -> str:
    """Return an amount with its resource, such as `16 GiB RAM`. `index`: the index in the list of resources."""
    text, name = describe(index, value), NAMES[index]
    if name in ("cpu", "accelerators"):
        return text  # it already contains the name of the resource
    return f"{text} {LABELS[name] if name == 'ram' else str(LABELS[name]).lower()}"
