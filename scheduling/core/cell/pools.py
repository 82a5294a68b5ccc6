"""The machine pools of a cell: which machines the tasks of a tenant may use, and which ones they prefer.

    PoolSet ─► Pools ─ rules_of(tenant) ─► constraints on the attribute `pool`, beside those of the job

A machine belongs to the pool that its attribute `pool` names. A tenant may not use the machines of a pool that is
dedicated to other tenants. So its tasks get constraints that their job file does not contain (`PoolRule`). Everything
that places tasks reads constraints, and no kernel knows pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.requirement import POOL, Constraint, Relation, Requirement
from scheduling.core.vocabulary.states import PoolUse

if TYPE_CHECKING:  # the web processes import this module, and need no kernels
    from scheduling.core.cell.tasks import LiveJob

# A machine of a preferred pool counts as one that satisfies so many times the weight of all soft constraints. With the
# default weights, this is more than all other parts of the score together, except preemption.
PREFERENCE = 4.0


class PoolRule(Constraint, frozen=True, order=True, forbid_unknown_fields=True):
    """A constraint that follows from a pool, and not from a job file."""

    @property
    def excludes(self) -> bool:
        """Return whether the rule excludes the machines of a pool. Otherwise it asks for them."""
        return self.relation is Relation.NOT_EQUAL


Rules = tuple[PoolRule, ...]


def rules_for(pools: Iterable[events.PoolSet], tenant: str) -> Rules:
    """Return the rules of the pools for the tasks of a tenant. The pools are sorted by name."""
    rules = []
    for pool in pools:
        if tenant not in pool.tenants:
            if pool.dedicated:
                rules.append(PoolRule(POOL, Relation.NOT_EQUAL, pool.pool))
        elif pool.use == PoolUse.MUST:
            rules.append(PoolRule(POOL, Relation.EQUAL, pool.pool))
        elif pool.use == PoolUse.PREFER:
            rules.append(PoolRule(POOL, Relation.EQUAL, pool.pool, hard=False, weight=PREFERENCE))
    return tuple(rules)


def with_rules(requirement: Requirement, rules: Rules) -> Requirement:
    """Return the requirement with the rules of pools after the constraints of the job."""
    if not rules:
        return requirement
    return msgspec.structs.replace(requirement, constraints=(*requirement.constraints, *rules))


class Pools:
    """The machine pools of a cell, by name."""

    def __init__(self) -> None:
        self.pools: dict[str, events.PoolSet] = {}
        self._forget()

    def set(self, event: events.PoolSet) -> None:
        """Store a pool, or forget one that was deleted."""
        if event.deleted:
            self.pools.pop(event.pool, None)
        else:
            self.pools[event.pool] = event
        self._forget()

    def rules_of(self, tenant: str) -> Rules:
        """Return the rules of all pools for the tasks of a tenant."""
        return self._distinct[self._number_of(tenant)]

    def of_job(self, job: LiveJob | None) -> Rules:
        """Return the rules for the tasks of a job. A task inside an alloc set follows its alloc, so it has none."""
        return () if job is None or job.alloc_set else self.rules_of(job.tenant)

    def of_jobs(self, jobs: Sequence[LiveJob | None]) -> tuple[list[Rules], Ints]:
        """Return the different rules of tenants, and for each job the number of its rules among them."""
        if not self.pools:
            return self._distinct, np.zeros(len(jobs), dtype=np.int64)
        codes = [0 if job is None or job.alloc_set else self._number_of(job.tenant) for job in jobs]
        return self._distinct, np.array(codes, dtype=np.int64)

    def _number_of(self, tenant: str) -> int:
        """Return the number of a tenant's rules. Tenants with equal rules have the same number; 0: no rules."""
        if not self.pools:
            return 0
        number = self._numbers.get(tenant)
        if number is None:
            rules = rules_for([self.pools[name] for name in sorted(self.pools)], tenant)
            if rules not in self._distinct:
                self._distinct.append(rules)
            number = self._numbers[tenant] = self._distinct.index(rules)
        return number

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._distinct: list[Rules] = [()]
