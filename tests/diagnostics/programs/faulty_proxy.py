# SPDX-License-Identifier: MIT
"""hybrid.diagnostics.probes.all_ranks with a fault of the device's: faulty_proxy.py LIMIT TASK FAULT"""

from __future__ import annotations

import os
import signal
import sys
import time

from hybrid.devices.cpu import CpuDevice
from hybrid.diagnostics.probes import all_ranks
from hybrid.diagnostics.probes.protocol import limit_process
from hybrid.errors import DeviceUnavailable

fault = sys.argv[3]
exchange, open_memory, copy_in = CpuDevice.exchange, CpuDevice.open, CpuDevice.copy_in


def faulty_exchange(self, into, source, after):
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "sleep":
        time.sleep(60)
    exchange(self, into, source, after)
    if fault == ("wrong data" if len(into) == 64 else "wrong fetch"):
        into[-1, -1] += 1


def faulty_open(self, handle):
    if fault == "refuse":
        raise DeviceUnavailable("planted")
    return open_memory(self, handle)


def faulty_copy_in(self, into, source, after):
    if fault == "link":
        raise ValueError("planted")
    copy_in(self, into, source, after)


CpuDevice.exchange, CpuDevice.open, CpuDevice.copy_in = faulty_exchange, faulty_open, faulty_copy_in
limit_process(int(sys.argv[1]))
all_ranks.main(sys.argv[2])
