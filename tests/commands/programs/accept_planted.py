# SPDX-License-Identifier: MIT
"""KIND RANK ARGUMENTS…: python -m hybrid.accept, in which the multiplications of one rank's CPU are wrong, slow, or fail."""

import sys
import time

import hybrid.commands.accept
import hybrid.devices.cpu as cpu
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
sys.exit(hybrid.commands.accept.main())
