"""The site as a reader sees it on a phone: no page scrolls sideways, notebooks included."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.browser import browse, needs_chromium

ROOT = Path(__file__).parents[1]
PHONE = 390  # pixels
MEASURE = """<script>
onload = () => setTimeout(() => {
  const widths = {};
  for (const frame of document.querySelectorAll("iframe"))
    widths[frame.title] = frame.contentDocument.documentElement.scrollWidth;
  document.body.innerHTML = `<pre id="widths">${JSON.stringify(widths)}</pre>`;
}, 1000);  // what scripts of the pages do after they are loaded
</script>"""


@pytest.mark.slow
@needs_chromium
def test_no_page_is_wider_than_a_phone(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", tmp_path]
    subprocess.run(build, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    pages = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")}
    assert {"index.html", "strategies.html", "notebooks/impute.html"} < pages
    frames = "".join(
        f'<iframe title="{page}" src="{page}" width="{PHONE}" height="900"></iframe>'
        for page in sorted(pages)
    )
    # Files count as of one origin, so that the page can measure its frames without a server.
    options = ("--dump-dom", "--allow-file-access-from-files", "--virtual-time-budget=20000")
    shown = browse(tmp_path, frames + MEASURE, *options)
    widths = json.loads(re.search(r'<pre id="widths">(.*?)</pre>', shown)[1])
    assert len(widths) == len(pages)
    assert {page: width for page, width in widths.items() if width > PHONE} == {}
