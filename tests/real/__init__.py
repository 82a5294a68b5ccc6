"""Tests of code against real kernels, servers and tools, without Django."""
