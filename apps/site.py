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
            path = _outside(docs, page.src_uri, match["file"])
            if path is None or path == "README.md":
                continue
            place = f"{_FOLDER}/{path}"
            if files.get_file_from_path(place) is None and (docs.parent / path).is_file():
                added = File.generated(config, place, abs_src_path=str(docs.parent / path))
                added.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(added)
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files outside of ``docs`` lead to their copies in the site."""
    docs = Path(config.docs_dir)
    here = posixpath.dirname(page.file.src_uri)

    def led(match: re.Match[str]) -> str:
        path = _outside(docs, page.file.src_uri, match["file"])
        if path is None:
            return match[0]
        target = _FIRST if path == "README.md" else f"{_FOLDER}/{path}"
        return f"]({posixpath.relpath(target, here or '.')}{match['anchor'] or ''})"

    return _LINK.sub(led, markdown)


def _outside(docs: Path, page: str, target: str) -> str | None:
    """Return a target's path from the root of the repository, or None for one within ``docs``."""
    path = posixpath.normpath(posixpath.join(docs.name, posixpath.dirname(page), target))
    return None if path.startswith((f"{docs.name}/", "..", "/")) else path
