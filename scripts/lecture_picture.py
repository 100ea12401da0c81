"""How the lectures' pictures are drawn: one style, the machine and the date under each, the same lines the same file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ladder_picture import STYLE, refuse_without_matplotlib

from hybrid.errors import UsageError
from hybrid.host import files

HERE, LECTURE, OTHER = "#4878a8", "#c44e52", "#6aa56e"
GREY = "#999999"
FORMATS = (".png", ".svg")


def refuse(path: str) -> None:
    """UsageError for what could not be written."""
    if Path(path).suffix not in FORMATS:
        raise UsageError(f"{path}: pictures are {' or '.join(FORMATS)}")
    files.refuse_unwritable(path)
    refuse_without_matplotlib()


@contextmanager
def figure(path: str, size: tuple[float, float], title: str, caption: str) -> Iterator[Any]:
    """A matplotlib figure, written to `path` at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    suffix = Path(path).suffix
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "lecture"}):
        drawn = Figure(figsize=size, layout="constrained")
        drawn.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        yield drawn
        drawn.supxlabel(caption, fontsize=8, x=0.01, ha="left")
        with files.atomic_write(path) as beside:
            drawn.savefig(beside, format=suffix[1:], metadata=metadata, dpi=120)


def plain(panel: Any, title: str = "") -> None:
    """A panel without a box, with a light grid."""
    panel.set_title(title, loc="left", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#e4e4e4", linewidth=0.6)
    panel.set_axisbelow(True)


def bars(panel: Any, names: Sequence[str], values: Sequence[float], texts: Sequence[str], colors: Sequence[str]) -> None:
    """From top to bottom on a logarithmic axis, each value's text behind its bar."""
    panel.barh(range(len(names)), values, color=colors, height=0.65)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(min(values) / 3, max(values) * 30)
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        panel.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="y", visible=False)
