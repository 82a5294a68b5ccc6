"""Tests against real kernels, servers and tools, without Django."""
