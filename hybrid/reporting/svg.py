# SPDX-License-Identifier: MIT
"""Drawings for SVG files and HTML pages, without other packages, in the reader's light or dark scheme."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from hybrid.core.text import printable
from hybrid.errors import UsageError
from hybrid.host.files import atomic_write

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
_FONT = "system-ui, sans-serif"


def _classes(scheme: int) -> str:
    """The classes fill-NAME and stroke-NAME, without CSS variables, which some SVG viewers lack."""
    rules = []
    for name, colours in PALETTE.items():
        rules.append(f"svg .fill-{name} {{ fill: {colours[scheme]} }} svg .stroke-{name} {{ stroke: {colours[scheme]} }}")
    return "\n".join([f"svg text {{ fill: {PALETTE['ink'][scheme]} }}", *rules])


STYLE = f"""\
svg text {{ font: 11px {_FONT} }}
{_classes(0)}
@media (prefers-color-scheme: dark) {{
{_classes(1)}
}}
"""


def refuse(path: str) -> None:
    """UsageError for a file name that does not end in .svg."""
    if not path.endswith(".svg"):
        raise UsageError(f"--picture {path}: the name must end in .svg", code="file-kind")


def write(path: str, title: str, size: tuple[float, float], drawn: Iterable[str], style: str = "") -> None:
    """Write an SVG file atomically. `drawn`: elements within a frame of this size; `style`: more rules."""
    width, height = (f"{length:.0f}" for length in size)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(printable(title))}">',
        f"<style>\n{STYLE}{style}</style>",
        '<rect class="fill-ground" width="100%" height="100%"/>',
        *drawn,
        "</svg>",
    ]
    with atomic_write(path) as beside:
        beside.write_text("\n".join(lines) + "\n", encoding="utf-8")


def text(x: float, y: float, said: str, kind: str = "", more: str = "") -> str:
    """A text element. `kind`: its classes; `more`: other attributes."""
    classes = f' class="{kind}"' if kind else ""
    return f'<text{classes} x="{x:.1f}" y="{y:.1f}"{more and f" {more}"}>{escape(printable(said))}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, more: str = "") -> str:
    """A rectangle. `kind`: its classes; `more`: other attributes."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"{more and f" {more}"}/>'
