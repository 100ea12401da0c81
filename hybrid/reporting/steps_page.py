# SPDX-License-Identifier: MIT
"""A small product, step by step, as one HTML page: the picture that lectures draw, with buttons."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hybrid.reporting.html_page import document

_HERE = Path(__file__).resolve().parent


def page(title: str, about: str, data: Mapping[str, Any], in_words: Sequence[str]) -> str:
    """`data`: arrays, source, and each block's steps, as steps_page.js reads them; `in_words`: for readers without scripts."""
    style, script = ((_HERE / f"steps_page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    body = [
        f"<h1>{escape(title)}, step by step</h1>",
        f'<p class="soft">{escape(about)}</p>',
        f"<noscript><pre>{escape(chr(10).join(in_words))}</pre></noscript>",
        '<div id="blocks" class="buttons" role="group" aria-label="thread block"></div>',
        '<div class="buttons"><button id="phase-before">|◀ barrier</button><button id="before">◀ step</button>'
        '<button id="play">▶ play</button><button id="after">step ▶</button><button id="phase-after">barrier ▶|</button></div>',
        '<p id="said" aria-live="polite"></p>',
        '<div class="stage"><div><div id="matrices"></div>',
        '<div id="shared"></div>',
        '<p id="threads" class="soft"></p></div>',
        '<pre id="source"></pre></div>',
        f'<script type="application/json" id="data">{text}</script>',
    ]
    return document(title, body, style, script)
