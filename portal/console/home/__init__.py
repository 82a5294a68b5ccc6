"""The first page of the SRE console: what needs an SRE, and how the cells are.

    rows, statistics, Redis ──► figures, queues, findings ──► attention, charts ──► page ──► console/home.html

`figures` reads the machines, jobs, capacity and connections of the cells, `queues` the pending tasks, and `findings`
the values of alarms. `portal.console.attention` decides which of them need an SRE (pure), and `charts` draws (pure).
The number of queries and of requests to Redis does not depend on the number of cells.
"""
