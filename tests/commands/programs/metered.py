# SPDX-License-Identifier: MIT
"""FOLDER LEAST ARGUMENTS…: python -m hybrid.matmul where RAPL's counters are in FOLDER, and tell something after LEAST seconds.

Each product that rank 0 multiplies takes 4 J more of the first processor than the one before."""

import sys
from pathlib import Path

from support.fake_rapl import add

from hybrid.commands.matmul import main
from hybrid.core import energy
from hybrid.host import rapl
from hybrid.ranks.team import Team

folder, least = sys.argv[1:3]
del sys.argv[1:3]
begin_phase, products = Team._begin_phase, []


def begin(team: Team, name: str) -> None:
    begin_phase(team, name)
    if name == "multiply" and team.rank == 0:
        products.append(name)
        add(rapl.POWERCAP / "intel-rapl:0" / "energy_uj", 4_000_000 * len(products))


rapl.POWERCAP, Team._begin_phase = Path(folder), begin
energy.LEAST_SECONDS = dict.fromkeys(energy.KINDS, float(least))
sys.exit(main())
