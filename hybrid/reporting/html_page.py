# SPDX-License-Identifier: MIT
"""The frame of HTML pages of results: each is one file that fetches nothing, light or dark as the reader's screen."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from hybrid.host.files import atomic_write
from hybrid.reporting.svg import PALETTE

# Even if a text gets past the escaping, the browser runs and fetches nothing. A page's own script is allowed by its hash.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def _variables(scheme: int) -> str:
    return " ".join(f"--{name}: {colours[scheme]};" for name, colours in PALETTE.items())


_COLOURS = f"""\
:root {{ color-scheme: light dark; {_variables(0)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_variables(1)} }}
}}
"""
_STYLE = """\
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.15rem; margin: 1.6rem 0 0.3rem; }
p, ul { margin: 0.4rem 0; }
ul { padding-left: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.5rem 0.2rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
.number { text-align: right; white-space: nowrap; }
.soft { color: var(--soft); }
.wrong { color: var(--bad); font-weight: 600; }
"""


def document(title: str, body: Sequence[str], style: str = "", script: str = "") -> str:
    """A whole page. `body`: lines of HTML; `style`: this page's rules, after those of all pages; `script`: the only one that the
    browser may run."""
    policy = _POLICY
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy, body = f"{_POLICY}; script-src 'sha256-{digest}'", [*body, f"<script>{script}</script>"]
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_COLOURS}{_STYLE}{style}</style>\n</head>"
    )
    return "\n".join([head, "<body>", "<main>", *body, "</main>", "</body>", "</html>", ""])


def write(path: str, page: str) -> None:
    """Write a page to a file atomically."""
    with atomic_write(path) as beside:
        beside.write_text(page, encoding="utf-8")
