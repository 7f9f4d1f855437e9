"""Makes the page as a user does, and looks at what it is made of."""

import re
from html.parser import HTMLParser

from tests.helpers.forked import command
from tests.helpers.launcher import ROOT

FIGURES = ("phases", "bytes", "curves", "staleness", "scaling", "pages", "usage-0", "bcast", "gather", "allreduce")
FIGURES += ("threads", "forward", "peers", "metrics", "confusion")
TABLES = ("runs", "config", "scaling", "placed", "woo-1", "woo-4", "woo-5", "threads", "lerat", "forward", "peers")
TABLES += ("traces", "folders", "classes", "torch", "torch_record")


def report(*arguments, cwd=ROOT):
    return command("psframe.report", *arguments, cwd=cwd)


class Balanced(HTMLParser):
    """Says whether every tag is closed in its turn, and which elements have which id."""

    VOID = ("meta", "link", "img")

    def __init__(self, page):
        super().__init__()
        self.open, self.ids, self.tags, self.addresses = [], [], set(), []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.addresses += [value for name, value in attrs if name in ("src", "srcset", "href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def sound(page):
    """Assert that a page is well formed, has no script, asks for nothing, and has no number that is none."""
    parsed = Balanced(page)
    assert "script" not in parsed.tags
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert all(address == "data:," or address[1:] in parsed.ids for address in parsed.addresses)
    assert not re.search(r"@import|url\(", page)
    assert not re.search(r'(?:d|x|y|x1|y1|x2|y2|cx|cy|width|height)="[^"]*(nan|inf)', page)
    return parsed


def rows_of(page, name):
    found = re.search(rf'id="table-{name}".*?</table>', page, re.S)[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr.*?</tr>", found) if "<td" in row]
