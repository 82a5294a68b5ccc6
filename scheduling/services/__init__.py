"""Services: the jobs of a tenant in a cell that have the same label `service` (§8.1)."""
