# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Bridges (until 2021): nodes of two P100 and 32 cores. slurm/bridges.sbatch names partition and GPU itself, as in the
# lecture; this file is for the other scripts.
export HYBRID_SITE=bridges
export SBATCH_PARTITION=GPU-small
export SBATCH_GRES=gpu:p100:2
