"""Numba's own settings, judged before anything is compiled: some keep it from compiling, some from being imported."""

import os
import re
import warnings
from collections.abc import Iterable, Mapping

from psframe.errors import UserError, reason


def load() -> None:
    """Import Numba, whose variables the environment or a ``.numba_config.yaml`` here may set.

    Raises
    ------
    UserError
        Where one of them is none that Numba takes, or does not let it compile. All ranks meet that alike, mostly.
    """
    judge_features(os.environ)  # of which LLVM ends the process
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            import numba
        except ValueError as error:
            raise UserError(
                f"Numba's settings (NUMBA_*) must be what it takes, got an error ({reason(error)}); unset them"
            ) from None
    judge(bool(numba.config.DISABLE_JIT), [str(warning.message) for warning in said])


def judge_features(environ: Mapping[str, str]) -> None:
    """UserError where NUMBA_CPU_FEATURES is not a list of +FEATURE and -FEATURE."""
    found = environ.get("NUMBA_CPU_FEATURES", "")
    if found and not all(re.fullmatch(r"[+-][\w.-]+", word) for word in found.split(",")):
        raise UserError(f"NUMBA_CPU_FEATURES must be as +avx2,-avx512f, got {found!r}; run `unset NUMBA_CPU_FEATURES`")


def judge(is_off: bool, warned: Iterable[str]) -> None:
    """UserError where Numba is not to compile, or has warned of a variable that it cannot read.

    psframe's kernels are made of instructions that Python has not: without Numba there are none.
    """
    if is_off:
        where = "run `unset NUMBA_DISABLE_JIT`"
        if "NUMBA_DISABLE_JIT" not in os.environ:
            where = "take disable_jit out of .numba_config.yaml"
        raise UserError(f"Numba must compile psframe's kernels, got NUMBA_DISABLE_JIT set, which forbids it; {where}")
    for text in warned:
        found = re.match(r"Environment variable '(\w+)' is defined but its associated value '(.*?)' could not", text)
        if found:
            name, value = found.groups()
            raise UserError(f"{name} must be a value that Numba takes, got {value!r}; run `unset {name}`")
