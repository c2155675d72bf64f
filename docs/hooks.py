"""Hooks of mkdocs: the site has every page that git tracks, at its path in the repository.

So links work alike in the repository and on the site, also those that lead out of docs/. Files that pages link to are
there, too.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"\]\(([^)\s#]+)")
FENCE = re.compile(r" *(`{3,})")
ITEM = re.compile(r"(?:[-*]|\d+\.) ")
PARAGRAPH = re.compile(r"(?!#|(?:[-*]|\d+\.) )\S")
FOREIGN = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    done = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True)
    tracked = {name for name in done.stdout.splitlines() if (root / name).is_file()}
    pages = {name for name in tracked if name.endswith(".md")}
    linked = {
        posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        for page in pages
        for target in LINK.findall((root / page).read_text(encoding="utf-8"))
    }
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    ours = sorted(pages | (linked & tracked))
    return Files([*of_theme, *(File.generated(config, name, abs_src_path=str(root / name)) for name in ours)])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite what GitHub reads otherwise than Python-Markdown: lists right below a paragraph, Markdown in HTML."""
    lines: list[str] = []
    fence = None
    for line in markdown.splitlines():
        mark = FENCE.match(line)
        if mark and fence is None:
            fence = mark[1]
        elif mark and mark[1] == fence and line.strip() == fence:
            fence = None
        elif fence is None and ITEM.match(line) and lines and PARAGRAPH.match(lines[-1]):
            lines.append("")
        lines.append(line.replace("<details>", "<details markdown>") if fence is None else line)
    return "\n".join(lines)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    foreign = FOREIGN.search(output)
    if foreign:
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {foreign[0]}")
    return output
