"""Host array → sharded over the GPUs → matmul → host array by PyTorch, in one process.

A goes to the GPUs by rows. B goes to the first GPU, from there to the others: their links carry it only once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from experiments.hosts.programs.common import measure_sharded, parse


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

    def forget(self) -> None:
        self.c.fill(np.nan)


def main() -> None:
    options = parse(__doc__)
    measure_sharded("torch", options, f"PyTorch {torch.__version__}", lambda gpus, n: Sharded(options.device, gpus, n))


if __name__ == "__main__":
    main()
