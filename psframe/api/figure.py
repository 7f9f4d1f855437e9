"""Page of figures that a notebook shows (:class:`Figure`)."""

from html import escape
from pathlib import Path


class Figure:
    """Page of figures, which a notebook shows; :meth:`save` writes it to a file.

    Parameters
    ----------
    page : str
        HTML that loads nothing from elsewhere.
    height : str
        Of the frame that it is shown in, as CSS has it.
    """

    def __init__(self, page: str, height: str = "40em"):
        self.page, self.height = page, height

    def _repr_html_(self) -> str:
        # a frame of its own, so that the page's style does not reach the notebook's
        return f'<iframe srcdoc="{escape(self.page)}" style="width: 100%; height: {self.height}; border: 0"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        from psframe.report.make import write

        write(str(path), self.page)
