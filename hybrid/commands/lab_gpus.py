# SPDX-License-Identifier: MIT
"""The command python -m hybrid.lab gpus: what GPUs have, and which of them are here."""

from __future__ import annotations

import argparse
from typing import Any

from hybrid.errors import DeviceUnavailable


def work(options: argparse.Namespace) -> int:
    """The exit code."""
    from hybrid.classroom import device_query
    from hybrid.devices.cuda_gpus import usable_gpus

    if options.name is not None:
        print(*device_query.detail(options.name), sep="\n")
        return 0
    try:
        gpus: list[Any] = usable_gpus()
        missing = ""
    except DeviceUnavailable as why:
        gpus, missing = [], f"here: no GPU ({why})"
    models = {gpu.uuid: device_query.of_name(gpu.name) for gpu in gpus}
    print(*device_query.table([model for model in models.values() if model]), sep="\n")
    for gpu in gpus:
        about = f"here: {gpu.name}, compute capability {gpu.capability // 10}.{gpu.capability % 10}"
        print(about if models[gpu.uuid] else f"{about}: not in this table")
    if missing:
        print(missing)
    return 0
