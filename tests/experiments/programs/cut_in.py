# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul of which one node waits, when it enters a phase, until its link is cut.

python cut_in.py NODE PHASE FILE ARGUMENTS …: the node makes FILE when it waits. PHASE "start": before MPI starts; "meet": when
its supervisor knows its neighbours; "lost": after that, and the first datagrams that this node sends are lost.
"""

from __future__ import annotations

import sys
import time
from itertools import chain, repeat
from pathlib import Path

from hybrid.commands.matmul import main
from hybrid.ranks.pulse import Pulse
from hybrid.ranks.team import Team

LOST = 0.2  # seconds


def await_cut(file: Path) -> None:
    file.touch()
    while Path("/sys/class/net/eth0/carrier").read_text().strip() == "1":
        time.sleep(0.01)


if __name__ == "__main__":
    node, phase, made = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    del sys.argv[1:4]
    lost = phase == "lost"
    phase = "agree" if lost else phase
    begin, starts = Team._begin_phase, chain(("first", "meet"), repeat("again"))

    def begin_and_wait(team: Team, name: str) -> None:
        begin(team, name)
        if team.host == node and phase == (next(starts) if name == "start" else name):
            await_cut(made)

    Team._begin_phase = begin_and_wait  # type: ignore[method-assign]
    if lost and Path("/proc/sys/kernel/hostname").read_text().strip() == node:
        send, sent = Pulse._send, list[float]()

        def lose_first(pulse: Pulse, sign: bytes) -> None:
            sent.append(time.monotonic())
            if sent[-1] - sent[0] > LOST:
                send(pulse, sign)

        Pulse._send = lose_first  # type: ignore[method-assign]
    if phase == "start" and Path("/proc/sys/kernel/hostname").read_text().strip() == node:
        await_cut(made)
    sys.exit(main())
