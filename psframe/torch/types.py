"""PyTorch's types and operations as ``compiled/_fold.h`` numbers them (:func:`type_number`, :func:`operation`)."""

from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist

_FOLDED = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64),
)
_NUMBERS = {dtype: number for number, dtype in enumerate(_FOLDED)}
_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_SUM = _OPERATIONS.index("SUM")
#: operations that a type has not
_WITHOUT = {
    **dict.fromkeys(_FOLDED[:4], ("BAND", "BOR", "BXOR")),
    **dict.fromkeys(_FOLDED[4:6], ("MIN", "MAX", "BAND", "BOR", "BXOR")),
    torch.bool: ("AVG",),
}
_TYPE_OF = {
    getattr(dist.ReduceOp, name): (number, name)
    for number, name in enumerate(_OPERATIONS)
    if hasattr(dist.ReduceOp, name)
}


def type_number(dtype: torch.dtype) -> int:
    """Return a number of the type that is the same on all ranks; those that cannot be folded have one, too."""
    known = _NUMBERS.get(dtype)
    return crc32(str(dtype).encode()) if known is None else known


def type_name(number: int) -> str:
    """Return the type's name."""
    return str(_FOLDED[number]).removeprefix("torch.") if number < len(_FOLDED) else "another type"


def operation(asked: Any, dtype: torch.dtype) -> tuple[int, Any]:
    """Return the number of a reduction, and the factor of each rank's values before it, or None.

    Raises
    ------
    ValueError
        The type has no such operation.
    """
    asked = getattr(asked, "reduceOp", asked)
    kind = getattr(asked, "op", asked)
    if kind == dist.ReduceOp.RedOpType.PREMUL_SUM:
        _check(dtype, "SUM")
        return _SUM, asked.factor
    number, name = _TYPE_OF.get(kind, (-1, str(kind)))
    _check(dtype, name)
    return number, None


def _check(dtype: torch.dtype, name: str) -> None:
    if dtype not in _NUMBERS or name not in _OPERATIONS or name in _WITHOUT.get(dtype, ()):
        raise ValueError(
            f"psframe reduces floating-point and complex numbers, integers and bool by the operations these have, got "
            f"{name} of {dtype}; take another operation, or convert the tensor"
        )
