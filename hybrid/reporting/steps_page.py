# SPDX-License-Identifier: MIT
"""A small product step by step, as one HTML page: the picture that lectures draw, with buttons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from hybrid.core.problem import record
from hybrid.reporting.html_page import document


@record
class Steps:
    """The steps of a kernel."""

    about: str  # what is launched, and how
    data: Mapping[str, Any]  # arrays, source, and each block's steps, as steps_page.js reads them
    in_words: Sequence[str]  # for readers without scripts


def page(title: str, steps: Steps) -> str:
    """A page with nothing but the steps."""
    return document(title, [f"<h1>{escape(title)}, step by step</h1>", *stage(steps)], style(), script())


def stage(steps: Steps) -> list[str]:
    """The lines of HTML that show the steps, in a page that has `style` and `script`."""
    text = json.dumps(steps.data, separators=(",", ":")).replace("<", "\\u003c")
    return [
        f'<p class="soft">{escape(steps.about)}</p>',
        f"<noscript><pre>{escape(chr(10).join(steps.in_words))}</pre></noscript>",
        '<div id="blocks" class="buttons" role="group" aria-label="thread block"></div>',
        '<div class="buttons"><button id="phase-before">|◀ barrier</button><button id="before">◀ step</button>'
        '<button id="play">▶ play</button><button id="after">step ▶</button><button id="phase-after">barrier ▶|</button></div>',
        '<p id="said" aria-live="polite"></p>',
        '<p class="soft">Coloured: the threads (x,y) that load or store the element. Grey: loaded before. '
        f"Bars in {escape(steps.data['arrays'][2]['name'])}: how much of the sum is there.</p>",
        '<div class="stage"><div><div id="matrices"></div>',
        '<div id="shared"></div>',
        '<p id="threads" class="soft"></p></div>',
        '<pre id="source"></pre></div>',
        f'<script type="application/json" id="data">{text}</script>',
    ]


def style() -> str:
    return _beside("css")


def script() -> str:
    return _beside("js")


@cache
def _beside(kind: str) -> str:
    """The text of the file that lies beside this one and has this ending."""
    return Path(__file__).resolve().with_suffix(f".{kind}").read_text(encoding="utf-8")
