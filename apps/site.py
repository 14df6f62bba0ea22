"""A hook of MkDocs: links from a page to files of the repository outside of ``docs``.

Pages link to notebooks, source files and the README by relative paths, which is what a plain view
of the repository needs. A site holds its own folder alone, so the hook puts each such file into
the site, under ``files``, and lets the link lead there; the README's place takes the first page.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

_LINK = re.compile(r"\]\((?P<file>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
_FOLDER = "files"
_FIRST = "index.md"


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add each file outside of ``docs`` that a page links to."""
    docs = Path(config.docs_dir)
    for page in files.documentation_pages():
        for match in _LINK.finditer(page.content_string):
            found = target_in_site(docs.name, page.src_uri, match["file"])
            if found is None or found[1].endswith(_FIRST):
                continue
            path = found[0]
            place = f"{_FOLDER}/{path}"
            if files.get_file_from_path(place) is None and (docs.parent / path).is_file():
                added = File.generated(config, place, abs_src_path=str(docs.parent / path))
                added.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(added)
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files outside of ``docs`` lead to their copies, and read folded Markdown."""
    docs = Path(config.docs_dir).name

    def led(match: re.Match[str]) -> str:
        found = target_in_site(docs, page.file.src_uri, match["file"])
        return match[0] if found is None else f"]({found[1]}{match['anchor'] or ''})"

    return _LINK.sub(led, markdown).replace("<details>", '<details markdown="1">')


def target_in_site(docs: str, page: str, link: str) -> tuple[str, str] | None:
    """Find where a link leads that leaves the documentation.

    Parameters
    ----------
    docs : str
        Name of the documentation's folder, in the root of the repository.
    page : str
        The page, from that folder.
    link : str
        The link's path, from the page.

    Returns
    -------
    tuple[str, str] or None
        The file, from the root of the repository, and the link in the site; None for a link
        within the documentation.
    """
    here = posixpath.dirname(page)
    path = posixpath.normpath(posixpath.join(docs, here, link))
    if path.startswith((f"{docs}/", "..", "/")):
        return None
    target = _FIRST if path == "README.md" else f"{_FOLDER}/{path}"
    return path, posixpath.relpath(target, here or ".")
