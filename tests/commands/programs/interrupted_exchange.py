# SPDX-License-Identifier: MIT
"""RANK N ARGUMENTS: python -m hybrid.paths, in which that rank (or `all`) is interrupted in the N-th wait for other ranks."""

import os
import signal
import sys

from hybrid.commands.paths import main
from hybrid.ranks.launcher import rank_by_launcher
from hybrid.ranks.messages import Messages

who, number = sys.argv[1], int(sys.argv[2])
sys.argv[1:] = sys.argv[3:]
poll = Messages._poll
waits = 0


def interrupted(self, *arguments, **options):
    global waits
    waits += 1
    if waits == number and who in ("all", str(rank_by_launcher())):
        os.kill(os.getpid(), signal.SIGINT)
    return poll(self, *arguments, **options)


Messages._poll = interrupted
sys.exit(main())
