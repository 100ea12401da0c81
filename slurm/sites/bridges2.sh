# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Bridges-2: nodes of eight V100 with 32 GB and 40 cores; GPU-shared gives up to four of the GPUs.
# Other GPUs it has are asked for by their names, such as h100-80 or l40s-48.
export HYBRID_SITE=bridges2
export SBATCH_PARTITION=GPU-shared
export SBATCH_GRES=gpu:v100-32:2
