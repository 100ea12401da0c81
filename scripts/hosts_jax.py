"""Host array → sharded over the GPUs → matmul → host array by JAX, in one process.

A and B go to the GPUs by rows, so that every link carries each row once; the rest is left to JAX.
`scripts/bench_hosts.py` starts it: python scripts/hosts_jax.py --gpus 1 2 --sizes 8000 --json FILE
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hosts_common import options_of, refuse_wrong, say, seconds_of, uniform


def started(device: str, gpus: int) -> Any:
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
        self.c = np.empty((0, 0))

    def multiply(self, a: np.ndarray, b: np.ndarray) -> None:
        self.c = np.empty((0, 0))  # its memory goes before a new one is needed
        self.c = np.asarray(self._multiply(self._put(a, self._rows), self._put(b, self._rows)))


def main() -> None:
    options = options_of(__doc__)
    jax = started(options.device, max(options.gpus))
    for n in options.sizes:
        a, b = uniform(n), uniform(n)
        for gpus in options.gpus:
            sharded = Sharded(jax, options.device, gpus)
            setup = seconds_of(sharded.multiply, a, b)
            times = [seconds_of(sharded.multiply, a, b) for _ in range(options.repeat)]
            error = refuse_wrong(a, b, sharded.c)
            say(options.json, "jax", gpus, n, times, setup=setup, error=error, library=f"JAX {jax.__version__}")


if __name__ == "__main__":
    main()
