"""Reads that only pages need: plain functions, each with a fixed number of queries."""
