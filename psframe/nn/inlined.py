"""Compilation of functions that only jitted code calls (:class:`Inlined`): optimized with their callers alone.

By default Numba optimizes each function with all that it calls and makes machine code of it, and then does both again
for each caller, which takes a fifth of the time. The bits are the same; and so is the speed of psframe's kernels. Such
functions must not raise with values computed there: Numba's environment, which these need, is set where they are made.
"""

from typing import Any

from numba import _dynfunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering


class _Linked(JITCodeLibrary):
    """Code that is linked into that of its callers, and never called by itself."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Numba's lowering, into code that is only linked."""

    _name = "lowering_for_callers"

    def run_pass(self, state: Any) -> bool:
        """Lower a function, and register it for its callers."""
        context = state.targetctx
        state.library = library = _Linked(context.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state["cr"]
        description = lowered.fndesc
        # what callers know the function by; no address, as Numba gives it to one without a wrapper for Python
        key = _dynfunc.make_function(
            description.lookup_module(), description.qualname.split(".")[-1], "", 0, lowered.env, (library,)
        )
        context.insert_user_function(key, description, [library])
        if hasattr(library, "_reload_init"):  # not before Numba 0.61
            state.reload_init.extend(library._reload_init)
        state["cr"] = lowered._replace(cfunc=key)
        return True


class Inlined(CompilerBase):
    """Numba's compiler for such a function; the ``pipeline_class`` of ``numba.njit``."""

    def define_pipelines(self) -> list[Any]:
        """Return Numba's passes, with another lowering."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(_Lowering if each is NativeLowering else each, what) for each, what in passes.passes]
        passes.finalize()
        return [passes]


def options() -> dict[str, Any]:
    """Return arguments of ``numba.njit``; none with a Numba whose code libraries are made otherwise."""
    known = all(hasattr(JITCodeLibrary, name) for name in ("_optimize_final_module", "_finalize_final_module"))
    return {"pipeline_class": Inlined} if known else {}
