"""Presets of reclamation: how closely reservations follow usage (§5.5, Figure 12)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preset:
    """One preset for reclamation, which an SRE chooses per cell (Figure 12). The reservation of a task slowly
    approaches a target: the task's peak usage plus a safety margin.

    `margin`: the safety margin for CPU, RAM and disk, as a share of the peak. `half_life_s`: in this many seconds,
    the difference between reservation and target becomes half as large.
    """

    name: str
    margin: tuple[float, float, float]
    half_life_s: float


BASELINE = Preset("baseline", (0.40, 0.40, 0.40), 600.0)
MEDIUM = Preset("medium", (0.25, 0.25, 0.25), 450.0)  # mid-way between the others, as in the paper's third week
AGGRESSIVE = Preset("aggressive", (0.10, 0.10, 0.10), 300.0)
OFF = Preset("off", (0.0, 0.0, 0.0), 1.0)
"""Every reservation equals its limit immediately: nothing is reclaimed."""

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (OFF, BASELINE, MEDIUM, AGGRESSIVE)}
