# SPDX-License-Identifier: MIT
"""Pictures as parts of a page: drawn by the scripts' own functions, then freed of what a page has once, and of fixed colours."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from experiments.common import plots

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# What is drawn on white follows the page, which may be dark.
FOLLOWING = {
    "#000000": "currentColor",
    plots.TEXT: "currentColor",
    "#ffffff": "var(--ground)",
    plots.GRID: "var(--line)",
    plots.HERE: "var(--here)",
    plots.LECTURE: "var(--lecture)",
    plots.OTHER: "var(--other)",
}
_COLOR = re.compile("|".join(FOLLOWING))
_REFERENCE = re.compile(r"(url\(#|^#)")


def drawn(draw: Callable[[str], None], name: str, title: str) -> str:
    """The SVG element of a picture that `draw` writes to a path. Names inside of it begin with `name`."""
    plots.give_matplotlib_a_folder()
    import matplotlib

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        with matplotlib.rc_context({"savefig.transparent": True}):
            draw(str(path))
        return part_of_page(path.read_text(encoding="utf-8"), name, title)


def part_of_page(picture: str, name: str, title: str) -> str:
    """Without a header, metadata, style sheet and size, with names of its own."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(picture)  # noqa: S314 (what we have just drawn)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _on_page(key, value, name))
    for key in ("width", "height"):
        root.attrib.pop(key)
    width = float(root.attrib["viewBox"].split()[2])
    root.attrib |= {"role": "img", "aria-label": title, "style": f"--width: {width:g}px"}
    return ElementTree.tostring(root, encoding="unicode")


def _on_page(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key in ("style", "fill", "stroke"):
        value = _COLOR.sub(lambda color: FOLLOWING[color[0]], value)
    if key in ("style", "clip-path", f"{{{XLINK}}}href"):
        value = _REFERENCE.sub(rf"\g<1>{name}-", value)
    return value
