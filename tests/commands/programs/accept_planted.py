# SPDX-License-Identifier: MIT
"""KIND RANK ARGUMENTS…: python -m hybrid.accept, in which the multiplications of one rank's CPU are wrong, slow, or fail.

KIND even: all is right, and every multiplication takes a second by the clock, whatever else the machine does.
"""

import sys
import time

import hybrid.commands.accept
import hybrid.devices.cpu as cpu
import hybrid.diagnostics.acceptance as acceptance
from hybrid.ranks.launcher import rank_by_launcher

EACH = 0.05  # seconds of every rank's multiplication, where one rank is slow
kind, rank = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
blas, planted = cpu.blas, rank_by_launcher() == rank


def multiply(a, b, c):
    if kind == "slow":
        time.sleep(4 * EACH if planted else EACH)
    blas(a, b, c)
    if planted and kind == "wrong":
        c[3, 5] += 1
    if planted and kind == "fails":
        raise ValueError("planted")


cpu.blas = multiply
if kind == "even":
    own_seconds = acceptance.own_seconds
    acceptance.own_seconds = lambda timeline: [1.0 for _ in own_seconds(timeline)]
sys.exit(hybrid.commands.accept.main())
