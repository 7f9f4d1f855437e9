"""The page of psframe.report in Chromium: no complaints, no request, nothing that sticks out."""

import re
import shutil
import subprocess

import pytest

from tests.helpers.report_page import FIGURES


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return found or pytest.skip("no Chromium or Chrome: install the package chromium")


def opened(browser, page, profile, width):
    """Return the page's DOM after its scripts ran, and what the browser said."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    flags += [f"--user-data-dir={profile}", "--virtual-time-budget=2000", f"--window-size={width},900", "--dump-dom"]
    ended = subprocess.run([browser, *flags, f"file://{page}"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def test_browser_has_nothing_to_complain_of(browser, report_page, tmp_path):
    dom, said = opened(browser, report_page, tmp_path / "profile", 1280)
    assert not [line for line in said.splitlines() if "CONSOLE" in line]
    assert all(f'id="figure-{name}"' in dom for name in FIGURES)


#: tells the page around it: the window's and the page's width, and the texts of figures that stick out of them
PROBE = """<script>onload = () => {
  const out = [];
  for (const svg of document.querySelectorAll(".panel svg")) {
    const all = svg.viewBox.baseVal;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBBox();
      if (box.x < -6 || box.x + box.width > all.width + 6 || box.y < -2 || box.y + box.height > all.height + 6)
        out.push(text.textContent);
    }
  }
  parent.postMessage([innerWidth, document.documentElement.scrollWidth, JSON.stringify(out)].join("|"), "*");
}</script></body>"""
#: a window is 500 wide or more, a frame as wide as it is told to be
FRAME = """<!DOCTYPE html><title>-</title><script>onmessage = event => { document.title = event.data; }</script>
<iframe src="probed.html" style="border: 0; width: WIDTHpx; height: 900px"></iframe>"""


@pytest.mark.parametrize("width", [400, 1280])
def test_page_has_nothing_that_sticks_out(browser, report_page, tmp_path, width):
    (tmp_path / "probed.html").write_text(report_page.read_text().replace("</body>", PROBE))
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)))
    dom, _ = opened(browser, tmp_path / "frame.html", tmp_path / "profile", width)
    window, reached, out = re.search(r"<title>(\d+)\|(\d+)\|(.*?)</title>", dom).groups()
    assert int(window) == width
    assert int(reached) <= width
    assert out == "[]"
