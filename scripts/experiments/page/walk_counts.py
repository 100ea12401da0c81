# SPDX-License-Identifier: MIT
"""Paths of a length, counted exactly: python -m hybrid.paths, of whose recorded lines a report shows the newest.

How many walks of a length lead from where to where? The entries of the adjacency matrix's power, whole numbers of any size; of
long ones the first and the last digits are shown.
"""

import shlex
from collections.abc import Iterator, Sequence

from experiments.common import records, results, schema, tables
from hybrid.core.text import counted


class Results(results.Results):
    """Of each command the newest line: a figure of its own."""

    command = "paths"
    schemas = {
        "": {
            **schema.RECORDED, "graph": schema.text, "length": schema.whole, "ranks": schema.count, "arithmetic": schema.text,
            "products": schema.whole, "seconds": schema.positive, "rows": schema.several(schema.text),
            "columns": schema.several(schema.text), "numbers": schema.several(schema.several(schema.text)),
        },
    }  # fmt: skip

    @staticmethod
    def kind_of(line: records.Line) -> str:
        return ""

    @classmethod
    def fault(cls, line: records.Line) -> str:
        if reason := super().fault(line):
            return reason
        sizes = [len(row) for row in line["numbers"]]
        return "" if sizes == [len(line["columns"])] * len(line["rows"]) else "it has not a number for each row and column"

    @classmethod
    def not_shown(cls, lines: Sequence[records.Line]) -> Iterator[str]:
        return iter(())

    @classmethod
    def each(cls, lines: Sequence[records.Line]) -> Iterator[results.Results]:
        yield from (cls([line]) for line in {cls.started_by(line): line for line in lines}.values())

    @staticmethod
    def started_by(line: records.Line) -> str:
        launcher = ["mpirun", "-n", str(line["ranks"])] if line["ranks"] > 1 else []
        return shlex.join([*launcher, "python", "-m", "hybrid.paths", *line["arguments"]])

    def has_picture(self) -> bool:
        return False

    def blocks(self) -> Iterator[tables.Block]:
        (line,) = self.lines
        rows = [[name, *numbers] for name, numbers in zip(line["rows"], line["numbers"], strict=True)]
        heads = ["from\\to", *line["columns"]]
        yield tables.Table(heads, "l" + "r" * len(line["columns"]), rows, f"{line['graph']}, length {line['length']}")
        yield tables.Remarks([line["arithmetic"], f"{counted(line['products'], 'matrix product')}"])
