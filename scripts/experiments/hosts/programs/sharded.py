# SPDX-License-Identifier: MIT
"""Host array → sharded over the GPUs → matmul → host array by another library, in one process: for the picture.

jax    A and B go to the GPUs by rows, so that every link carries each row once; the rest is left to JAX
torch  A goes to the GPUs by rows; B goes to the first GPU, from there to the others: their links carry it only once
"""

import os
from importlib import import_module
from typing import Any

import numpy as np

from experiments.common.product_check import refuse_wrong
from experiments.common.records import seconds_of
from experiments.hosts.programs.common import parse, record, uniform


class Jax:
    """Products on so many GPUs."""

    def __init__(self, device: str, gpus: int, n: int) -> None:
        jax = import_module("jax")
        jax.config.update("jax_enable_x64", True)
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


class Torch:
    """Products on so many GPUs, into an array made before."""

    def __init__(self, device: str, gpus: int, n: int) -> None:
        self._torch = torch = import_module("torch")
        on_gpus = device == "cuda"
        if on_gpus and torch.cuda.device_count() < gpus:
            raise SystemExit(f"PyTorch finds {torch.cuda.device_count()} of {gpus} GPUs")
        self._devices = [torch.device("cuda", index) if on_gpus else torch.device("cpu") for index in range(gpus)]
        self._finish: Any = torch.cuda.synchronize if on_gpus else lambda device: None
        self.c = np.full((n, n), np.nan)

    def multiply(self, a: np.ndarray, b: np.ndarray) -> None:
        torch = self._torch
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
    libraries: dict[str, tuple[str, type[Any]]] = {"jax": ("JAX", Jax), "torch": ("PyTorch", Torch)}
    options = parse(__doc__, list(libraries))
    if options.part == "jax" and options.device != "cuda":  # a CPU that pretends to be so many; read when JAX is loaded
        os.environ["JAX_PLATFORMS"] = "cpu"
        flags = os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={max(options.gpus)}"
        os.environ["XLA_FLAGS"] = " ".join(flags).strip()
    name, sharded = libraries[options.part]
    library: Any = import_module(options.part)
    for n in options.sizes:
        a, b = uniform(n), uniform(n)
        for gpus in options.gpus:
            product = sharded(options.device, gpus, n)
            setup = seconds_of(product.multiply, a, b)
            if product.c.flags.writeable:  # JAX gives a new C each time
                product.c.fill(np.nan)  # so that elements nobody writes are found
            times = [seconds_of(product.multiply, a, b) for _ in range(options.repeat)]
            error, version = refuse_wrong("the product", a, b, product.c), f"{name} {library.__version__}"
            record(options.json, options.part, gpus, n, times, setup=setup, error=error, library=version)


if __name__ == "__main__":
    main()
