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
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_SUM = OPERATIONS.index("SUM")
#: operations that a type has not
_WITHOUT = {
    **dict.fromkeys(_FOLDED[:4], ("BAND", "BOR", "BXOR")),
    **dict.fromkeys(_FOLDED[4:6], ("MIN", "MAX", "BAND", "BOR", "BXOR")),
    torch.bool: ("AVG",),
}
#: by PyTorch's number of an operation
_NAMED = {int(getattr(dist.ReduceOp.RedOpType, name)): (number, name) for number, name in enumerate(OPERATIONS)}
_SUM_OF_TORCH = int(dist.ReduceOp.RedOpType.SUM)
_PREMULTIPLIED = int(dist.ReduceOp.RedOpType.PREMUL_SUM)
#: number of an operation by its number in PyTorch and the type, of those that the type has
_ALLOWED = {
    (torchs, dtype): number
    for torchs, (number, name) in _NAMED.items()
    for dtype in _FOLDED
    if name not in _WITHOUT.get(dtype, ())
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
    kind = int(getattr(asked, "op", asked))
    allowed = _ALLOWED.get((kind, dtype))
    if allowed is not None:
        return allowed, None
    if kind == _PREMULTIPLIED and (_SUM_OF_TORCH, dtype) in _ALLOWED:
        return _SUM, asked.factor
    raise ValueError(
        f"psframe reduces floating-point and complex numbers, integers and bool by the operations these have, got "
        f"{_NAMED[kind][1] if kind in _NAMED else 'another operation'} of {dtype}; take another operation, or convert "
        "the tensor"
    )
