"""The inner loops of a scheduling pass, which Numba compiles (kernels). Only `scheduling.core` uses them. The main
kernel is in `placement.py`.
"""
