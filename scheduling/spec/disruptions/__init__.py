"""Disruption budgets in job files: fields and checks (§3.2, §4). Pure."""
