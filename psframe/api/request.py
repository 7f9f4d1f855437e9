"""Request of a script for a training (:class:`Request`), to ranks that it starts or to those of its mpirun."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psframe.api.arrays import Arrays


@dataclass(frozen=True)
class Request:
    """Training that a script asks for.

    Attributes
    ----------
    content : mapping
        Content of the config, with names in place of objects.
    overrides : sequence of str
    objects : mapping of str to object
        Objects of the script, by these names.
    arrays : Arrays or None
        Data of the script, in place of a dataset.
    callbacks : sequence
    quiet : bool
        True to show no progress.
    log_level : str
        Least level of the lines that ranks show, of ``psframe.record.log.LEVELS``.
    """

    content: Mapping[str, Any]
    overrides: Sequence[str]
    objects: Mapping[str, Any]
    arrays: Arrays | None
    callbacks: Sequence[Any]
    quiet: bool
    log_level: str
