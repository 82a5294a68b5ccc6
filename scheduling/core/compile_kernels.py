"""`python -m scheduling.core.compile_kernels` compiles every kernel. Run it when you install the software."""

import shutil

from scheduling.core.kernels.compiled import CACHE
from scheduling.core.warm import compile_kernels

compile_kernels()
for other in CACHE.parent.glob("kernels-*"):
    if other != CACHE:
        shutil.rmtree(other, ignore_errors=True)
