"""Host array → sharded over the GPUs → matmul → host array by PyTorch, in one process.

A goes to the GPUs by rows. B goes to the first GPU, from there to the others: their links carry it only once.
`scripts/bench_hosts.py` starts it: python scripts/hosts_torch.py --gpus 1 2 --sizes 8000 --json FILE
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hosts_common import options_of, refuse_wrong, say, seconds_of, uniform


class Sharded:
    """Products on so many GPUs, into an array made before."""

    def __init__(self, device: str, gpus: int, n: int) -> None:
        on_gpus = device == "cuda"
        if on_gpus and torch.cuda.device_count() < gpus:
            raise SystemExit(f"PyTorch finds {torch.cuda.device_count()} of {gpus} GPUs")
        self._devices = [torch.device("cuda", index) if on_gpus else torch.device("cpu") for index in range(gpus)]
        self._finish: Any = torch.cuda.synchronize if on_gpus else lambda device: None
        self.c = np.full((n, n), np.nan)

    def multiply(self, a: np.ndarray, b: np.ndarray) -> None:
        parts = torch.from_numpy(a).chunk(len(self._devices))
        of_a = [part.to(device, non_blocking=True) for part, device in zip(parts, self._devices, strict=True)]
        first = torch.from_numpy(b).to(self._devices[0], non_blocking=True)
        of_b = [first.to(device, non_blocking=True) for device in self._devices]
        products = [rows @ whole for rows, whole in zip(of_a, of_b, strict=True)]
        for into, product in zip(torch.from_numpy(self.c).chunk(len(self._devices)), products, strict=True):
            into.copy_(product, non_blocking=True)
        for device in self._devices:
            self._finish(device)


def main() -> None:
    options = options_of(__doc__)
    for n in options.sizes:
        a, b = uniform(n), uniform(n)
        for gpus in options.gpus:
            sharded = Sharded(options.device, gpus, n)
            setup = seconds_of(sharded.multiply, a, b)
            sharded.c.fill(np.nan)  # what the timed products do not write shall show
            times = [seconds_of(sharded.multiply, a, b) for _ in range(options.repeat)]
            error = refuse_wrong(a, b, sharded.c)
            say(options.json, "torch", gpus, n, times, setup=setup, error=error, library=f"PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
