"""Queries that only pages need. Each function makes a fixed number of queries."""
