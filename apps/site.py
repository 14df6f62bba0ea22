"""A hook of MkDocs: notebooks as pages, and links to files of the repository outside of ``docs``.

Pages link to notebooks, source files and the README by relative paths, which is what a plain view
of the repository needs. A site holds its own folder alone. So the hook makes a page of each
notebook, puts every other file that a page links to into the site, under ``files``, and lets the
links lead there. The README's place takes the first page.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

_LINK = re.compile(r"\]\((?P<file>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
_FILES, _NOTEBOOKS, _FIRST = "files", "notebooks", "index.md"
_AFTER = "How-to"


def on_config(config: MkDocsConfig, /) -> MkDocsConfig:
    """Put the notebooks into the navigation."""
    names = [notebook.stem for notebook in _notebooks(config)]
    sections = [next(iter(item)) if isinstance(item, dict) else item for item in config.nav or []]
    pages = [f"{_NOTEBOOKS}/{name}.md" for name in names]
    if pages and config.nav is not None:
        config.nav.insert(sections.index(_AFTER) + 1, {"Notebooks": pages})
    return config


def on_files(files: Files, /, *, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, and each file outside of ``docs`` that a page links to."""
    docs = Path(config.docs_dir)
    for notebook in _notebooks(config):
        for name, content in pages_of(notebook).items():
            files.append(File.generated(config, f"{_NOTEBOOKS}/{name}", content=content))
    for page in files.documentation_pages():
        for match in _LINK.finditer(page.content_string):
            found = target_in_site(docs.name, page.src_uri, match["file"])
            if found is None or found[1].endswith(".md"):
                continue
            path, place = found[0], f"{_FILES}/{found[0]}"
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

    Shapes: returns the file, from the root of the repository, and the link in the site; None for a
    link within the documentation.
    """
    here = posixpath.dirname(page)
    path = posixpath.normpath(posixpath.join(docs, here, link))
    if path.startswith((f"{docs}/", "..", "/")):
        return None
    target = f"{_FILES}/{path}"
    if path == "README.md":
        target = _FIRST
    elif path.startswith(f"{_NOTEBOOKS}/") and path.endswith(".ipynb"):
        target = path.removesuffix(".ipynb") + ".md"
    return path, posixpath.relpath(target, here or ".")


def pages_of(notebook: Path) -> dict[str, str | bytes]:
    """Return a notebook as Markdown, and its pictures, by name."""
    exporter = MarkdownExporter()  # type: ignore[no-untyped-call]
    text, resources = exporter.from_filename(str(notebook))
    pictures = resources.get("outputs") or {}
    for name in pictures:
        text = text.replace(f"({name})", f"({notebook.stem}_{name})")
    # Tables of results are HTML, which a blank line within would end.
    text = re.sub(r"<style[^>]*>.*?</style>\s*", "", text, flags=re.S)
    found: dict[str, str | bytes] = {f"{notebook.stem}.md": text.replace("](../docs/", "](../")}
    return found | {f"{notebook.stem}_{name}": content for name, content in pictures.items()}


def _notebooks(config: MkDocsConfig) -> list[Path]:
    return sorted((Path(config.docs_dir).parent / _NOTEBOOKS).glob("*.ipynb"))
