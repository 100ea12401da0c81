# SPDX-License-Identifier: MIT
"""What is in a page that a command has written; what is opened in it must be closed, and nothing runs by an attribute."""

from html.parser import HTMLParser

_VOID = ("meta", "br", "img", "link", "input")


class Page(HTMLParser):
    """`tags` with their attributes; `cells`: texts of a table's; `rows`: texts of those that have an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.rows: dict[str, str] = {}
        self._open: list[str] = []
        self._row = ""
        self.feed(text)
        self.close()
        assert not self._open

    @property
    def names(self) -> list[str]:
        return [tag for tag, _ in self.tags]

    def attributes(self, *names: str) -> list[str]:
        """The values of these attributes of all tags."""
        return [value or "" for _, attributes in self.tags for name, value in attributes.items() if name in names]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        assert len(attributes) == len(dict(attributes)), attributes
        assert not any(name.startswith("on") for name, _ in attributes)
        self.tags.append((tag, dict(attributes)))
        self._row = dict(attributes).get("id") or "" if tag == "tr" else self._row
        self.cells += [""] if tag in ("td", "th") else []
        self._open += [tag] if tag not in _VOID else []

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._row = "" if tag == "tr" else self._row

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & {*self._open}:
            self.cells[-1] += data
        if self._row:
            self.rows[self._row] = self.rows.get(self._row, "") + data
