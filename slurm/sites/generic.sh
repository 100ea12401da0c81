# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Any cluster, as it is: its default partition, no modules, Python from the environment that was active at submission or
# from the checkout's. A site of your own is a copy of this file, and HYBRID_SITE its name.
#
# Sourced before sbatch it may set what sbatch asks for, which wins over the scripts' own lines:
#   export SBATCH_PARTITION=gpu SBATCH_GRES=gpu:a100:1 SBATCH_ACCOUNT=abc123
# Sourced again in the job, `prepare` is called there:
#   prepare() { module load python/3.12 openmpi; }
export HYBRID_SITE=generic
