"""hybrid.multiply of small host arrays on one GPU, in turns with the same copies and cuBLAS by CuPy. Without a GPU: NumPy.

`scripts/bench_hosts.py` starts it: python scripts/hosts_small.py --sizes 128 256 512 --json FILE
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hosts_common import options_of, refuse_wrong, say, seconds_of, uniform

import hybrid

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def plain(device: str) -> Product:
    if device != "cuda":
        return lambda a, b: a @ b
    import cupy

    return lambda a, b: cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b))


def main() -> None:
    options = options_of(__doc__)
    ways: dict[str, Product] = {
        "small": lambda a, b: hybrid.multiply(a, b, check=False, device=options.device),
        "small, plain": plain(options.device),
    }
    for n in options.sizes:
        a, b = uniform(n), uniform(n)
        setup: dict[str, float] = {}
        times: dict[str, list[float]] = {}
        for way, product in ways.items():
            setup[way] = seconds_of(product, a, b)
            refuse_wrong(a, b, product(a, b))
            times[way] = []
        for repeat in range(options.repeat + 1):
            for way in list(ways) if repeat % 2 else list(ways)[::-1]:
                seconds = seconds_of(ways[way], a, b)
                if repeat:  # the first one warms up
                    times[way].append(seconds)
        for way in ways:
            say(options.json, way, 1, n, times[way], setup=setup[way])


if __name__ == "__main__":
    main()
