# SPDX-License-Identifier: MIT
"""The site's pages that lie elsewhere in the repository, and links between all pages as they are written there."""

from __future__ import annotations

import posixpath
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from hybrid.errors import CODES

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "kernels/README.md": "kernels.md",
    "slurm/README.md": "slurm.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_AT_HOME = {page: path for path, page in ELSEWHERE.items()}
_TABLE, _ROW, _HEAD = (re.compile(f"<{tag}\\b.*?</{tag}>", re.DOTALL) for tag in ("table", "tr", "th"))
_CODE, _OPTION = re.compile("(?:(?<=<code>)|(?<=</span>))[^<]+"), re.compile(r"(?<!\S)--[\w-]+")
_LINK = re.compile(r"(!?\[[^\]]*\])\((?!\w+:)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    for path, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead to a page or a file of the site are made relative to it; those to other files become plain text. The codes
    are put in."""
    folder = posixpath.dirname(_AT_HOME.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def from_here(of_the_site: str) -> str:
        return posixpath.relpath(of_the_site, posixpath.dirname(page.file.src_uri) or ".")

    def on_the_site(link: re.Match[str]) -> str:
        text, target, anchor = link[1], posixpath.normpath(posixpath.join(folder, link[2])), link[3] or ""
        if target in ELSEWHERE:
            return f"{text}({from_here(ELSEWHERE[target])}{anchor})"
        if target.startswith("docs/") and (ROOT / target).is_file():
            return f"{text}({from_here(target.removeprefix('docs/'))}{anchor})"
        # What exists nowhere stays a link, on which a strict build fails.
        return text.strip("[]") if (ROOT / target).exists() else link[0]

    codes = "\n".join(f"* `{code}`: {meaning}" for code, meaning in CODES.items())
    return _LINK.sub(on_the_site, markdown).replace("<!-- codes -->", codes)


def on_page_content(html: str, **_: Any) -> str:
    """Each cell of a table names the head of its column, which site.css shows where rows are lists; options get its class."""

    def with_heads(table: re.Match[str]) -> str:
        heads = [escape(unescape(re.sub(r"<[^>]*>", "", head)).strip()) for head in _HEAD.findall(table[0])]

        def row(found: re.Match[str]) -> str:
            names = iter(heads)
            return re.sub(r"<td\b", lambda _: f'<td data-head="{next(names, "")}"', found[0])

        return _ROW.sub(row, table[0])

    html = _CODE.sub(lambda code: _OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
    return _TABLE.sub(with_heads, html)
