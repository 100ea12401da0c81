#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage() {
    cat <<'EOF'
usage: bash scripts/run.sh [-n RANKS] [--] ARGUMENT...

Sets up what is missing, then runs `mpirun -n RANKS python -m hybrid.matmul ARGUMENT...` (RANKS: 2 unless given).
The program's own help: bash scripts/run.sh -- --help
HYBRID_MPI=mpich, openmpi or system chooses the MPI, HYBRID_PYTHON=/path/to/python3 the interpreter.
EOF
}

RANKS=2
while (($#)); do
    case $1 in
        -h | --help) usage && exit ;;
        -n) RANKS=${2-} && shift $(($# > 1 ? 2 : 1)) ;;
        --) shift && break ;;
        *) break ;;
    esac
done
[[ $RANKS =~ ^[1-9][0-9]*$ ]] || fail "-n wants a number of ranks, not '$RANKS'" 2

# shellcheck disable=SC2119
set_up
COMMAND=("${MPIRUN[@]}" -n "$RANKS" "$PYTHON" -m hybrid.matmul "$@")
{ printf '%q ' "${COMMAND[@]}" && echo; } >&2
exec "${COMMAND[@]}"
