# SPDX-License-Identifier: MIT
"""A report as one HTML page that needs nothing else: every text is escaped, every picture is part of it, no script runs."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from experiments.common.tables import Block, Remarks, Table

STYLE = Path(__file__).resolve().with_name("report.css")
# Should a text ever get past the escaping: the browser runs and fetches nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LONG_HEAD = 12  # letters
_CODE = re.compile("`([^`]+)`")


@dataclass(frozen=True)
class Figure:
    """Something measured. `picture`: an SVG element, or empty; `narrow`: the same for narrow pages."""

    blocks: Sequence[Block]
    machine: str
    dates: str
    commands: Sequence[str]
    picture: str = ""
    narrow: str = ""


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    about: str  # paragraphs; indented lines are a list
    figures: Sequence[Figure]


def page(title: str, introduction: Sequence[str], sections: Sequence[Section], notes: Sequence[Remarks]) -> str:
    """`notes`: what is not on the page, and why."""
    links = [(section.name, section.title) for section in sections]
    links += [(f"note-{index}", note.title) for index, note in enumerate(notes, 1)]
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{inline(text)}</p>" for text in introduction)]
    body += [
        "<nav aria-label='contents'>",
        "<ol>",
        *(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, title in links),
        "</ol>",
        "</nav>",
    ]
    body += [line for section in sections for line in _section(section)]
    body += [line for index, note in enumerate(notes, 1) for line in _note(index, note)]
    return "\n".join([*_head(title), "<body>", "<main>", *body, "</main>", "</body>", "</html>", ""])


def inline(text: str) -> str:
    """Escaped, `code` marked."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _head(title: str) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{escape(title)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>"


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{escape(section.name)}">\n<h2>{escape(section.title)}</h2>'
    yield from _about(section.about)
    for figure in section.figures:
        yield "<figure>"
        if figure.picture:
            yield f'<div class="beside">{_wide(figure.picture, f"picture: {section.title}")}</div>'
            yield f'<div class="below">\n{figure.narrow}\n</div>'
        yield "<div class='blocks'>"
        for block in figure.blocks:
            yield from ("<div class='block'>", *_block(block), "</div>")
        yield "</div>"
        yield from _origin(figure)
        yield "</figure>"
    yield "</section>"


def _about(text: str) -> Iterator[str]:
    for paragraph in filter(None, text.split("\n\n")):
        for listed, lines in groupby(paragraph.splitlines(), lambda line: line.startswith(" ")):
            if listed:
                yield from _list(_items(lines))
            else:
                yield f"<p>{inline(' '.join(lines))}</p>"


def _items(lines: Iterable[str]) -> list[str]:
    """Of a list: what is indented more than its first line goes on with the line before."""
    items: list[str] = []
    least = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        least = least or indent
        if indent > least:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    return items


def _block(block: Block) -> Iterator[str]:
    if block.title:
        yield f"<p class='title'>{inline(block.title)}</p>"
    if isinstance(block, Table):
        yield _wide("\n".join(_table(block)), block.title or "table")
    else:
        yield from _list(block.lines)


def _list(lines: Sequence[str]) -> Iterator[str]:
    yield from ("<ul>", *(f"<li>{_item(line)}</li>" for line in lines), "</ul>")


def _item(line: str) -> str:
    """What stands before two spaces is what the line is about."""
    subject, gap, text = line.partition("  ")
    return f"<b>{inline(subject)}</b> {inline(text.strip())}" if gap else inline(line)


def _table(table: Table) -> Iterator[str]:
    yield "<table>"
    if any(table.heads):
        heads = (
            f'<th scope="col" class="{side}{" long" * (len(head) > LONG_HEAD)}">{inline(head)}</th>' if head else "<td></td>"
            for head, side in zip(table.heads, table.sides, strict=True)
        )
        yield f"<thead><tr>{''.join(heads)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        cells = (f'<td class="{side}">{inline(cell)}</td>' for cell, side in zip(row, table.sides, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _wide(content: str, label: str) -> str:
    """In a box that scrolls by itself, also by the keyboard."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">\n{content}\n</div>'


def _origin(figure: Figure) -> Iterator[str]:
    yield "<figcaption>\n<dl>"
    yield f"<dt>machine</dt><dd class='machine'>{escape(figure.machine)}</dd>"
    yield f"<dt>date</dt><dd class='date'>{escape(figure.dates)}</dd>"
    commands = "".join(f"<code>{escape(command)}</code>" for command in figure.commands)
    yield f"<dt>again</dt><dd class='command'>{commands}</dd>"
    yield "</dl>\n</figcaption>"


def _note(index: int, note: Remarks) -> Iterator[str]:
    yield f'<section id="note-{index}" class="note">\n<h2>{escape(note.title)}</h2>'
    yield from (*_list(note.lines), "</section>")
