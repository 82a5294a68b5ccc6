"""Changes of a simulated cell by hand: another setting, band, or type of machines."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import msgspec

from quota.vocabulary.bands import Band
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import CPU, DISK, RAM, SIZE
from scheduling.core.vocabulary import events
from scheduling.policy import cell_settings
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.simulation import Simulation

_OWN = ("pass_every_s", "look_every_s")
_BAND_RULES = ("prod", "preempts_within")
_MACHINES = re.compile(r"^([0-9]+):([0-9.]+):([0-9.]+)$")
_DISK_BYTES = 4 * 2**40


def change(simulation: Simulation, name: str, value: str) -> None:
    """Change one thing from now on. Raises `ValueError` that says what is wrong and what is allowed.

    * `scorer`, `reclamation` and all other settings of a cell
    * `pass_every_s`, `look_every_s`: the intervals of passes and of reclamation
    * `BAND.prod`, `BAND.preempts_within`: a setting of a priority band, true or false
    * `add_machines`: `NUMBER:CORES:GIB`, further machines of one type
    """
    if name == "add_machines":
        _add_machines(simulation, value)
    elif "." in name:
        _change_band(simulation, name, value)
    elif name in _OWN:
        number, settings = _number(name, value), simulation.settings
        passes, looks = (number, settings.look_every_s) if name == "pass_every_s" else (settings.pass_every_s, number)
        simulation.set_settings(replace(settings, pass_every_s=passes, look_every_s=looks))
    else:
        _change_cell(simulation, name, value)


def _change_cell(simulation: Simulation, name: str, value: str) -> None:
    settings = simulation.settings
    known = msgspec.structs.asdict(settings.cell)
    if name not in known:
        names = ", ".join((*_OWN, "BAND.prod", "BAND.preempts_within", "add_machines", *known))
        raise ValueError(f"{name!r} is not a setting that can be changed; the names are {names}")
    given: object = value if isinstance(getattr(CellSettings(), name), str) else _json(name, value)
    given = float(given) if isinstance(given, int) and not isinstance(given, bool) else given
    try:
        accepted = cell_settings.accept({**known, name: given})
    except Rejected as error:
        raise ValueError(error.detail) from error
    simulation.set_settings(replace(settings, cell=accepted))


def _change_band(simulation: Simulation, name: str, value: str) -> None:
    band_name, _, rule = name.partition(".")
    bands = simulation.settings.bands
    if rule not in _BAND_RULES or band_name not in {band.name for band in bands}:
        names = ", ".join(f"{band.name}.{one}" for band in bands for one in _BAND_RULES)
        raise ValueError(f"{name!r} is not a setting of a priority band; the settings are {names}")
    on = _json(name, value)
    if not isinstance(on, bool):
        raise ValueError(f"{name} is {value!r}; give true or false")

    def changed(band: Band) -> Band:
        return band._replace(prod=on) if rule == "prod" else band._replace(preempts_within=on)

    after = tuple(changed(band) if band.name == band_name else band for band in bands)
    simulation.set_settings(replace(simulation.settings, bands=after))


def _add_machines(simulation: Simulation, value: str) -> None:
    match = _MACHINES.match(value)
    if match is None:
        raise ValueError(f"add_machines is {value!r}; give NUMBER:CORES:GIB, for example 100:64:256")
    capacity = [0] * SIZE
    capacity[CPU], capacity[RAM] = int(float(match[2]) * 1000), int(float(match[3]) * 2**30)
    capacity[DISK] = _DISK_BYTES
    cell, known = simulation.cell, simulation.state.machines.slot
    first = max(known, default=0) + 1
    cell.begin(simulation.now)
    for number in range(int(match[1])):
        cell.append(
            events.MachineSet(
                machine_id=first + number,
                hostname=f"new{number}",
                address="127.0.0.1",
                capacity=tuple(capacity),
                rack=f"new{number // 40}",
            )
        )
    cell.flush()


def _json(name: str, value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}; give a number, true or false") from None


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number <= 86_400:
        raise ValueError(f"{name} is {value!r}; give a number of seconds from 0 (exclusive) to 86400")
    return number
