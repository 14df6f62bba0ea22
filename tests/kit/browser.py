"""Pages in headless Chromium; tests that need it are skipped where there is none."""

import html
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
    frame = (
        f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{html.escape(page)}" '
        "onload=\"document.body.prepend('scrolls over ' + "
        "this.contentDocument.documentElement.scrollWidth + ' pixels')\"></iframe>"
    )
    return int(re.search(r"scrolls over (\d+) pixels", browse(folder, frame, "--dump-dom"))[1])
