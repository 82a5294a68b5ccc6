"""Statistics that the journal already contains: evictions, start times, delays of the scheduler, and pending hours.

journal ─► reader: one transaction per part ─┬─► fold (pure) ─► tallies ─► rows per hour, and totals
                                             └─► the state of the fold and the revision that it has reached
"""
