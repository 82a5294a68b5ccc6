"""Reads that one page needs and nobody else: plain functions, each a fixed number of queries."""
