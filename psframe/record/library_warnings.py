"""Warnings of libraries on the ranks (:data:`LIBRARIES`): counted on each, and logged once for all of them."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from psframe.record.log import LOG

MOST = 100  # different ones that a rank counts between two reports
SHOWN = 20  # of one report, on stderr
KEPT = 2000  # that are remembered, so that they are not shown again
LONGEST = 500  # characters of one


class LibraryWarnings(logging.Handler):
    """Context in which this rank counts what libraries warn of, by ``warnings`` or by loggers nobody has set up.

    Python shows neither meanwhile; what a library says of an error is logged at once. Outside of the context nothing is
    counted.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts, self._told, self._leads = dict[str, int](), set[str](), False
        self._before: tuple[Any, Any] = warnings.showwarning, logging.lastResort

    def __enter__(self) -> "LibraryWarnings":
        self._before = warnings.showwarning, logging.lastResort
        warnings.showwarning, logging.lastResort = self._show, self
        return self

    def __exit__(self, *_: object) -> None:
        warnings.showwarning, logging.lastResort = self._before
        self.log_rest(shown=self._leads)

    def log_rest(self, shown: bool) -> None:
        """Log what this rank has counted since its last report."""
        for text, times in self.take().items():
            if text not in self._told:
                LOG.warning("%s%s", text, _where([0], times, 1), extra={"of": text, "told": not shown})

    def take(self) -> dict[str, int]:
        """Return how often this rank was warned of what since the last call."""
        taken, self._counts = self._counts, {}
        return taken

    def tell(self, every: Sequence[Mapping[str, int]]) -> None:
        """Log what was not yet, once, with the number of ranks and of times; by what each rank has taken, by rank.

        Only SHOWN of them go to stderr. The rank that leads calls.
        """
        self._leads = True
        ranks: dict[str, list[int]] = {}
        for rank, counts in enumerate(every):
            for text in counts:
                ranks.setdefault(text, []).append(rank)
        new = [text for text in ranks if text not in self._told]
        for number, text in enumerate(new):
            times = sum(counts.get(text, 0) for counts in every)
            more = {"of": text, "told": number >= SHOWN}
            LOG.warning("%s%s", text, _where(ranks[text], times, len(every)), extra=more)
        if len(new) > SHOWN:
            LOG.warning(f"libraries warned of {len(new) - SHOWN} other things: see log.jsonl")
        self._told.update(new[: KEPT - len(self._told)])

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = f"{record.name}: {record.getMessage()}"
            if record.levelno >= logging.ERROR:
                LOG.warning("%s", text, exc_info=record.exc_info, extra={"of": text})
            else:
                self._note(text)
        except Exception:  # a format that does not fit
            self.handleError(record)

    def _show(
        self, message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object, **__: object
    ) -> None:
        place = "/".join(PurePath(filename).parts[-2:])
        self._note(f"{category.__name__}: {message} ({place}, line {lineno})")

    def _note(self, text: str) -> None:
        line = " ".join(text.split())
        line = line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
        counts = self._counts
        if line in counts or len(counts) < MOST:
            counts[line] = counts.get(line, 0) + 1


def _where(ranks: Sequence[int], times: int, n_ranks: int) -> str:
    """Return in words which of the ranks were warned, and how often."""
    several = f"{len(ranks)} ranks, the first is {ranks[0]}"
    who = "" if n_ranks == 1 else f"all {n_ranks} ranks" if len(ranks) == n_ranks else several
    who = f"rank {ranks[0]}" if len(ranks) == 1 and n_ranks > 1 else who
    often = f"{times:,} times" if times > len(ranks) else ""
    words = ", ".join(word for word in (f"on {who}" if who else "", often) if word)
    return f"; {words}" if words else ""


LIBRARIES = LibraryWarnings()  #: of this process
