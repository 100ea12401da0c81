# SPDX-License-Identifier: MIT
"""SVG drawings and HTML pages, in the reader's light or dark scheme. Each is one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from hybrid.core.text import printable
from hybrid.host.files import write_text

# Each colour on light and on dark ground. The last three also differ in lightness, for readers with red-green blindness.
PALETTE = {
    "ground": ("#ffffff", "#15181b"),
    "ink": ("#22262a", "#e4e6e8"),
    "soft": ("#5a626a", "#a2aab2"),
    "line": ("#dcdfe2", "#383e44"),
    "bad": ("#b3261e", "#ff8a80"),
    "first": ("#004488", "#6699cc"),
    "second": ("#bb5566", "#ee99aa"),
    "third": ("#ddaa33", "#eecc66"),
}
# For unordered things, such as threads: Okabe and Ito's, which the colour-blind can tell apart on either ground.
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#8fa8ff", "#b8b8b8")


def _classes(scheme: int) -> str:
    """The classes fill-NAME and stroke-NAME, without CSS variables, which some SVG viewers lack."""
    colours = {name: of_schemes[scheme] for name, of_schemes in PALETTE.items()}
    rules = [f"svg .fill-{name} {{ fill: {each} }} svg .stroke-{name} {{ stroke: {each} }}" for name, each in colours.items()]
    return "\n".join([f"svg text {{ fill: {colours['ink']} }}", *rules])


def _variables(scheme: int) -> str:
    return " ".join(f"--{name}: {colours[scheme]};" for name, colours in PALETTE.items())


_DARK = "@media (prefers-color-scheme: dark)"
STYLE = f"svg text {{ font: 11px system-ui, sans-serif }}\n{_classes(0)}\n{_DARK} {{\n{_classes(1)}\n}}\n"
_PAGE_STYLE = f"""\
:root {{ color-scheme: light dark; {_variables(0)} }}
{_DARK} {{
  :root {{ {_variables(1)} }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
main {{ max-width: 60rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; }}
h2 {{ font-size: 1.15rem; margin: 1.6rem 0 0.3rem; }}
p, ul {{ margin: 0.4rem 0; }}
ul {{ padding-left: 1.2rem; }}
table {{ border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.2rem 0.5rem 0.2rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
th {{ color: var(--soft); font-weight: 600; }}
.number {{ text-align: right; white-space: nowrap; }}
.soft {{ color: var(--soft); }}
.wrong {{ color: var(--bad); font-weight: 600; }}
"""
# Even if a text gets past the escaping, the browser runs and fetches nothing. A page's own script is allowed by its hash.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def document(title: str, body: Sequence[str], style: str = "", script: str = "") -> str:
    """A whole HTML page. `body`: lines; `style`: this page's rules, after those of all pages; `script`: the only one that the
    browser may run."""
    policy = _POLICY
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy, body = f"{_POLICY}; script-src 'sha256-{digest}'", [*body, f"<script>{script}</script>"]
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_PAGE_STYLE}{style}</style>\n</head>"
    )
    return "\n".join([head, "<body>", "<main>", *body, "</main>", "</body>", "</html>", ""])


def write_svg(path: str, title: str, size: tuple[float, float], drawn: Iterable[str], style: str = "") -> None:
    """Write an SVG file. `drawn`: elements within a frame of this size; `style`: more rules."""
    width, height = (f"{length:.0f}" for length in size)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(printable(title))}">',
        f"<style>\n{STYLE}{style}</style>",
        '<rect class="fill-ground" width="100%" height="100%"/>',
        *drawn,
        "</svg>\n",
    ]
    write_text(path, "\n".join(lines))


def text(x: float, y: float, said: str, kind: str = "", more: str = "") -> str:
    """A text element of SVG. `kind`: its classes; `more`: other attributes."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text{classes} x="{x:.1f}" y="{y:.1f}"{more and f" {more}"}>{escape(printable(said))}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, more: str = "") -> str:
    """A rectangle of SVG; as `text`."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{more and f" {more}"}/>'
