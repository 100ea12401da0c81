# SPDX-License-Identifier: MIT
"""hybrid.doctor on a machine with a GPU a rank, for each of which a CPU stands."""

from __future__ import annotations

import sys

from proxies_on_cpu import send_cpu

from hybrid.commands import doctor
from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics import bandwidth, cuda_aware_mpi, gpus

GPUS = tuple(Gpu(index, f"GPU-{index}", "CPU") for index in range(2))

gpus.inspect = lambda: gpus.VisibleGpus(GPUS, None, about="a driver")
gpus.try_out = lambda gpu: gpus.Trial(True, "", 256 << 20)
cuda_aware_mpi.inspect = lambda index: "yes"
bandwidth.run_proxies = send_cpu
sys.exit(doctor.main())
