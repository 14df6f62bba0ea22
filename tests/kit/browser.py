"""Pages in headless Chromium; tests that need it are skipped where there is none."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def browse(folder, text, *options):
    """Show a page and return what Chromium prints, such as the page by ``--dump-dom``."""
    file = folder / "page.html"
    file.write_text(text, "utf-8")
    return visit(file.as_uri(), *options)


def visit(address, *options):
    """Show what is at an address; returns as `browse`."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--hide-scrollbars", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    return done.stdout


def scroll_width(folder, page, width):
    """Return over how many pixels a page scrolls sideways in a window of a width."""
    return overflowing(folder, page, width)[0]


_LOOK = """
const page = this.contentDocument, root = page.documentElement;
const hidden = [...page.querySelectorAll('section, figure, figure img, pre, .table')].filter(
  one => one.scrollWidth > one.clientWidth && !['auto', 'scroll'].includes(
    this.contentWindow.getComputedStyle(one).overflowX));
const found = [root.scrollWidth, ...hidden.map(one => `${one.tagName} ${one.id}`)];
document.body.prepend('found ' + JSON.stringify(found) + ' there');
"""


def overflowing(folder, page, width):
    """Return over how many pixels a page scrolls, and what is wider than its box without a hint.

    Boxes that scroll by themselves are none of it.
    """
    frame = (
        f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{html.escape(page)}" '
        f'onload="{html.escape(_LOOK)}"></iframe>'
    )
    shown = html.unescape(browse(folder, frame, "--dump-dom"))
    return json.loads(re.search(r"found (\[.*?\]) there", shown)[1])
