# SPDX-License-Identifier: MIT
"""The sections of a report: which experiments' lines make which, by their own tables and pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import experiments.hosts.cli
import experiments.ladder.cli
from experiments.common import plots
from experiments.common.records import Line
from experiments.common.results import Results
from experiments.lectures import hochberg, largest, pascal, pmpp, siegel, two_dimensions
from experiments.page import walk_counts
from experiments.page.html import Figure, Section
from experiments.page.inline_svg import drawn


@dataclass(frozen=True)
class Source:
    """An experiment, and what is made of its lines. `adds`: the command that records them."""

    title: str
    about: str
    results: type[Results]
    adds: str

    @property
    def name(self) -> str:
        return self.results.command

    def section(self, lines: Sequence[Line]) -> Section:
        return Section(self.name, self.title, self.about, list(self._figures(lines)))

    def _figures(self, lines: Sequence[Line]) -> Iterator[Figure]:
        for results in self.results.each(lines):
            picture = narrow = ""
            if results.has_picture():
                picture = drawn(results.draw, self.name, self.title)
                with plots.below_each_other():
                    narrow = drawn(results.draw, f"{self.name}-narrow", self.title)
            yield Figure(list(results.blocks()), results.machine(), results.dates(), results.started(), picture, narrow)


def _source(module: ModuleType, adds: str = "") -> Source:
    """Title and introduction are those of the script's help."""
    heading, about, *_ = (module.__doc__ or "").split("\n\n")
    results = module.Results
    adds = adds or f"python scripts/{results.command}.py{results.more_arguments} --json lines.jsonl"
    return Source(heading.partition(" python ")[0].rstrip(":"), about, results, adds)


SOURCES = (
    *map(_source, (pmpp, two_dimensions, hochberg, siegel, largest, pascal)),
    _source(walk_counts, "python -m hybrid.paths ten --length 4 --json lines.jsonl"),
    *map(_source, (experiments.ladder.cli, experiments.hosts.cli)),
)
