"""The event that publishes a machine's facts in the journal."""

from __future__ import annotations

from scheduling.core.vocabulary import events
from scheduling.models import Machine


def machine_set_event(machine: Machine) -> events.MachineSet:
    """Return the event with all facts of a machine. Its capacity excludes the resources of kept allocs."""
    kept = [*machine.kept, *[0] * (len(machine.capacity) - len(machine.kept))]
    return events.MachineSet(
        machine_id=machine.id,
        hostname=machine.hostname,
        address=machine.address,
        capacity=tuple([max(0, has - held) for has, held in zip(machine.capacity, kept, strict=False)]),
        attributes=dict(machine.attributes),
        platform=machine.platform,
        rack=machine.rack,
        power_domain=machine.power_domain,
        port_low=machine.port_low,
        port_high=machine.port_high,
        state=machine.state,
    )
