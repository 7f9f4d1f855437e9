"""Compilation by several processes at once (:func:`sharing`): each compiles what no other is compiling.

A network's first step compiles ten kernels and more, one after the other, which takes a core half a minute and more.
The ranks of a node have a core each.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numba.core.errors import NumbaError

from psframe.nn.code_files import Code
from psframe.nn.threads import Threads


def sharing(warm: Callable[[], None]) -> None:
    """Call ``warm``, in which layers compute, and compile the kernels that it calls in place of running them.

    Other processes may do the same at the same moment, but must not be waited for in ``warm``. What cannot be compiled
    is left to who calls it in earnest.
    """
    with suppress(Exception), np.errstate(all="ignore"), _kernels(_compile):
        warm()  # computes with what no kernel has written


@contextmanager
def _kernels(instead: Callable[..., None]) -> Iterator[None]:
    Threads.instead = staticmethod(instead)
    try:
        yield
    finally:
        Threads.instead = None


def _compile(kernel: Any, *args: Any) -> None:
    """Compile a kernel for arguments of these types, unless that has been done, or another process is doing it."""
    code = getattr(kernel, "_cache", None)
    if not isinstance(code, Code):
        return
    signature = tuple(kernel.typeof_pyval(arg) for arg in args)
    if signature not in kernel.overloads and code.is_to_be_compiled(signature, kernel.targetctx):
        with suppress(NumbaError):
            kernel.compile(signature)
