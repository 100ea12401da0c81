# SPDX-License-Identifier: MIT
"""What a fork of the process waits for, since the child has only the thread that forks."""

from __future__ import annotations

import os
import threading

# Held by a thread while it computes a product, or loads what that takes: else the child would have its locks, which nobody opens
# there; and OpenBLAS, which stops its threads before a fork, may not return from it. The number of BLAS threads belongs to the
# whole process: so calls from several Python threads take turns.
one_at_a_time = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=one_at_a_time.acquire, after_in_parent=one_at_a_time.release, after_in_child=one_at_a_time.release)
