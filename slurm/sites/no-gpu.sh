# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# A cluster without GPUs, or with pretended ones: the GPU kernels run on the CPU. Slow, so take a small HYBRID_SIZE.
export HYBRID_SITE=no-gpu
export HYBRID_DEVICE=${HYBRID_DEVICE:-emulate}
