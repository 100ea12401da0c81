"""Host array → sharded over the GPUs → matmul → host array by JAX, in one process.

A and B go to the GPUs by rows, so that every link carries each row once; the rest is left to JAX.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from experiments.hosts.programs.common import measure_sharded, parse


def loaded(device: str, gpus: int) -> Any:
    """JAX, able to compute in float64; on a CPU that pretends to be so many."""
    if device != "cuda":
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={gpus}".strip()
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax


class Sharded:
    """Products on so many GPUs."""

    def __init__(self, jax: Any, device: str, gpus: int) -> None:
        devices = jax.devices("gpu" if device == "cuda" else "cpu")[:gpus]
        if len(devices) < gpus:
            raise SystemExit(f"JAX finds {len(devices)} of {gpus} devices")
        self._put = jax.device_put
        mesh = jax.sharding.Mesh(np.array(devices), ("rows",))
        self._rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
        self._multiply = jax.jit(jax.numpy.matmul, out_shardings=self._rows)
        self.forget()

    def multiply(self, a: np.ndarray, b: np.ndarray) -> None:
        self.forget()  # its memory goes before a new one is needed
        self.c = np.asarray(self._multiply(self._put(a, self._rows), self._put(b, self._rows)))

    def forget(self) -> None:
        self.c = np.empty((0, 0))


def main() -> None:
    options = parse(__doc__)
    jax = loaded(options.device, max(options.gpus))
    measure_sharded("jax", options, f"JAX {jax.__version__}", lambda gpus, _: Sharded(jax, options.device, gpus))


if __name__ == "__main__":
    main()
