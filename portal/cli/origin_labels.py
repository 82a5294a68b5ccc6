"""Labels that say which file, template, cron job or workflow has made a job. A copy of the job was made by none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

APPLIED_BY = "applied-by"  # `borgctl apply` ends objects with this label whose file is gone
# The others are those of `scheduling`: `cron.cron_spec`, `workflows.workflow_spec`, `job_templates.template_spec`.
LABELS = (APPLIED_BY, "cron", "workflow", "node", "template", "dispatched-by")


def without_origin(file: Mapping[str, Any], *, same_name: bool = False) -> dict[str, Any]:
    """Return a copy of a job file without these labels. `same_name`: whether the copy has the name of the job; then
    `borgctl apply` still owns it.
    """
    kept = {APPLIED_BY} if same_name else set()
    labels = {name: value for name, value in (file.get("labels") or {}).items() if name in kept or name not in LABELS}
    rest = {name: value for name, value in file.items() if name != "labels"}
    return rest | ({"labels": labels} if labels else {})
