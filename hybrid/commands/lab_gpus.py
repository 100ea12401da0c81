# SPDX-License-Identifier: MIT
"""The command python -m hybrid.lab gpus: what GPUs have, and which of them are here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import dotted

if TYPE_CHECKING:
    from hybrid.classroom.gpu_models import GpuModel


def add_to(commands: Any) -> None:
    """The command's own parser."""
    gpus = commands.add_parser("gpus", help="what GPUs have: cores, memory, limits", description="What do GPUs have, by name?")
    gpus.add_argument("name", nargs="?", type=model, metavar="NAME", help="more about one (all of them, a line each)")


def model(name: str) -> GpuModel:
    """For argparse: the GPU model of this name. UsageError where there is none."""
    from hybrid.classroom.gpu_models import named

    return named(name)


def work(options: argparse.Namespace) -> int:
    """Print what GPUs have; returns the exit code."""
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
        about = f"here: {gpu.name}, compute capability {dotted(gpu.capability)}"
        print(about if models[gpu.uuid] else f"{about}: not in this table")
    if missing:
        print(missing)
    return 0
