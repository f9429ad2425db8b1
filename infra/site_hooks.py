"""Hooks of the documentation site: pages may link to files of the repository outside of docs/.

Such a file becomes a part of the site, below `repository/`, so that the site needs no network. A link to a file that
does not exist is left as it is, and `mkdocs build --strict` refuses it.
"""  # noqa: INP001

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_folder = "repository"
_link = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside of docs/ that a page links to."""
    docs, wanted = Path(config.docs_dir).resolve(), set[Path]()
    for file in files.documentation_pages():
        folder = (docs / file.src_uri).parent
        wanted |= {
            path
            for _, target in _link.findall(file.content_string)
            if (path := _outside(folder, target, docs))
        }
    for path in sorted(wanted):
        files.append(File.generated(config, _uri(path, docs), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to those files lead to their copies."""
    del files
    docs = Path(config.docs_dir).resolve()
    folder = (docs / page.file.src_uri).parent
    up = "../" * page.file.src_uri.count("/")

    def rewritten(match: re.Match[str]) -> str:
        path = _outside(folder, match[2], docs)
        return match[0] if path is None else f"{match[1]}{up}{_uri(path, docs)}"

    return _link.sub(rewritten, markdown)


def _outside(folder: Path, target: str, docs: Path) -> Path | None:
    """The file of the repository that a link leads to; None where it is a page, or no file."""
    path = (folder / target).resolve()
    is_ours = path.is_file() and path.is_relative_to(docs.parent) and not path.is_relative_to(docs)
    return path if is_ours else None


def _uri(path: Path, docs: Path) -> str:
    """Its place in the site. Markdown is shown as text there: as a page it would lack its own surroundings."""
    ending = ".txt" if path.suffix == ".md" else ""
    return f"{_folder}/{path.relative_to(docs.parent).as_posix()}{ending}"
