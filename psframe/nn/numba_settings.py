"""Check of Numba's settings before compilation (:func:`load`): some prevent compilation, some even the import."""

import os
import re
import warnings
from collections.abc import Iterable, Mapping

from psframe.errors import UserError, reason


def load() -> None:
    """Import Numba, whose variables the environment or a ``.numba_config.yaml`` in the current folder may set.

    Raises
    ------
    UserError
        A variable is invalid for Numba, or prevents compilation. In most cases all ranks raise alike.
    """
    check_features(os.environ)  # before the import: on wrong ones LLVM ends the process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            import numba
        except ValueError as error:
            raise UserError(
                f"Numba's settings (NUMBA_*) must be what it takes, got an error ({reason(error)}); unset them"
            ) from None
    check(bool(numba.config.DISABLE_JIT), [str(warning.message) for warning in caught])


def check_features(environ: Mapping[str, str]) -> None:
    """Raise UserError if NUMBA_CPU_FEATURES is not a list of +FEATURE and -FEATURE."""
    value = environ.get("NUMBA_CPU_FEATURES", "")
    if value and not all(re.fullmatch(r"[+-][\w.-]+", word) for word in value.split(",")):
        raise UserError(f"NUMBA_CPU_FEATURES must be as +avx2,-avx512f, got {value!r}; run `unset NUMBA_CPU_FEATURES`")


def check(is_off: bool, warned: Iterable[str]) -> None:
    """Raise UserError if Numba's compilation is off, or Numba has warned of a variable that it cannot read.

    psframe's kernels consist of instructions that Python does not have: without compilation they do not exist.
    """
    if is_off:
        where = "run `unset NUMBA_DISABLE_JIT`"
        if "NUMBA_DISABLE_JIT" not in os.environ:
            where = "take disable_jit out of .numba_config.yaml"
        raise UserError(f"Numba must compile psframe's kernels, got NUMBA_DISABLE_JIT set, which forbids it; {where}")
    for text in warned:
        match = re.match(r"Environment variable '(\w+)' is defined but its associated value '(.*?)' could not", text)
        if match:
            name, value = match.groups()
            raise UserError(f"{name} must be a value that Numba takes, got {value!r}; run `unset {name}`")
