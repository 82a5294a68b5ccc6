"""Locks of the tasks of one machine: a socket for each task (`doors`), and the sessions of their runs (`keeper`).

task ── HTTP ─► doors ─► keeper ── LockCall, RenewLocks ─► link ─► shard
                           └─ leases of the sessions, which end here before they end in PostgreSQL
"""
