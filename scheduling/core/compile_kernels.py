"""`python -m scheduling.core.compile_kernels`: compile every kernel, at installation."""

import shutil

from scheduling.core.kernels.compiled import CACHE
from scheduling.core.warm import compile_kernels

compile_kernels()
for other in CACHE.parent.glob("kernels-*"):
    if other != CACHE:
        shutil.rmtree(other, ignore_errors=True)
