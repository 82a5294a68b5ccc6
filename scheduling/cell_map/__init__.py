"""The map of a cell: the facts, sums and usage of all its machines as columns, for pages, live pages and REST.

rows ──► rows.py ──► kept_maps.py (one map per cell and process) ──► columns.py ──► REST, Sigma
journal ──► changes.py (the machines that events concern) ──┘ └──► live pages
"""
