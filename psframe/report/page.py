"""The complete page (:func:`whole`), which loads nothing from elsewhere."""

import time
from collections.abc import Sequence
from importlib.resources import files

from psframe import __version__
from psframe.report.html import Section
from psframe.report.svg import esc


def whole(sections: Sequence[Section], notices: Sequence[str], shown: str) -> str:
    """Return the page.

    Parameters
    ----------
    notices : sequence of str
        Notes on input that is unreadable or damaged.
    shown : str
        One line on the page's contents.
    """
    style = (files("psframe.report") / "style.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{section.name}">{esc(section.title)}</a></li>' for section in sections)
    body = "".join(f'<section id="{s.name}"><h2>{esc(s.title)}</h2>{s.body}</section>' for s in sections)
    when = time.strftime("%Y-%m-%d %H:%M")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>psframe report</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the contents</a>
<header><h1>psframe report</h1><p>{esc(shown)} · psframe {esc(__version__)} · {when}</p></header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main id="main">
{_notices(notices)}{body}
</main>
</body>
</html>
"""


def _notices(notices: Sequence[str]) -> str:
    if not notices:
        return ""
    items = "".join(f"<li>{esc(notice)}</li>" for notice in notices)
    return f'<aside id="notices" aria-label="Notices"><h2>Notices</h2><ul>{items}</ul></aside>'
