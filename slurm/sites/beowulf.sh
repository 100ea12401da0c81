# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# The lecture's Beowulf cluster: one partition, a K40c a node, nothing to load. CUDA 12 and 13 no longer know that GPU,
# so the kernels run on the CPU unless HYBRID_DEVICE says otherwise; there 8000 would take hours.
export HYBRID_SITE=beowulf
export HYBRID_DEVICE=${HYBRID_DEVICE:-emulate}
if [[ $HYBRID_DEVICE == emulate ]]; then export HYBRID_SIZE=${HYBRID_SIZE:-1000}; fi
