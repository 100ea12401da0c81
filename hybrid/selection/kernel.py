# SPDX-License-Identifier: MIT
"""Which kernel multiplies: the one asked for, or the fastest."""

from __future__ import annotations

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings, one_of
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import CATALOGUE, Choice, Kernel, fastest, named, refusal


def multiplies_short(asked_for: Kernel | None, device: str, problem: Problem, capability: int) -> bool:
    """Whether operands of 16 bits can be multiplied as they are: by the kernel asked for, or, for auto, by any."""
    if asked_for is not None:
        return not refusal(asked_for, problem.operand_dtype, problem.m, capability)
    try:
        return bool(fastest(device, problem.operand_dtype, problem.m, capability))
    except LookupError:
        return False


def choose_kernel(asked_for: Kernel | None, device: str, problem: Problem, capability: int) -> Choice:
    """The kernel asked for, or the fastest. UsageError if it cannot do what is asked of it."""
    if asked_for is None:
        try:
            return fastest(device, problem.operand_dtype, problem.m, capability)
        except LookupError as none:
            raise UsageError(str(none), code="kernel-unfit") from None
    refused = refusal(asked_for, problem.operand_dtype, problem.m, capability)
    if refused:
        raise UsageError(refused, code="kernel-unfit")
    return Choice(asked_for, "asked for")


def kernel_asked_for(settings: Settings) -> Kernel | None:
    """The kernel asked for; None for auto. UsageError for unknown names and for kernels of another device."""
    if settings.kernel == "auto":
        return None
    one_of("kernel", settings.kernel, [kernel.name for kernel in CATALOGUE])
    kernel = named(settings.kernel)
    assert kernel is not None
    if settings.device != "auto" and not kernel.runs_on(settings.device):
        raise UsageError(
            f"kernel {kernel.name} runs on {kernel.device}, but the device asked for is {settings.device}", code="kernel-device"
        )
    return kernel
