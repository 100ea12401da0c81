# SPDX-License-Identifier: MIT
"""Products by the emulated GPU, interrupted at three moments: the next one is right, and begins when the kernel has stopped."""

import os
import signal
import threading

import numpy as np

import hybrid

signal.signal(signal.SIGINT, signal.default_int_handler)
a, b = np.random.default_rng(1).standard_normal((2, 300, 300))
hybrid.multiply(a, b, device="emulate")
for seconds in (0.01, 0.04, 0.07):
    try:
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()  # on a busy machine it ends before this returns
        while True:
            hybrid.multiply(a.copy(), b.copy(), device="emulate")
    except KeyboardInterrupt:
        pass
    assert np.allclose(hybrid.multiply(a, b, device="emulate"), a @ b)
print("right")
