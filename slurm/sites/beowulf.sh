# shellcheck shell=bash
# The lecture's Beowulf cluster: one partition, a K40c a node, nothing to load. CUDA 12 and 13 no longer know that GPU,
# so the kernels run on the CPU unless HYBRID_DEVICE says otherwise.
export HYBRID_SITE=beowulf
export HYBRID_DEVICE=${HYBRID_DEVICE:-emulate}
