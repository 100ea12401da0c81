#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a machine with GPUs runs, since CI has none: the tests that need one, and the measurements that docs/measured records.
set -euo pipefail
ROOT=$(cd "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
unset PYTHONDONTWRITEBYTECODE # what starts is timed: bytecode is kept, as it is for users

usage() {
    cat <<'END_OF_USAGE'
usage: bash scripts/on_gpu.sh [--into FOLDER] [--python PYTHON] [STEP...]

Runs the steps in this order, whatever becomes of those before, and ends with 1 if one failed:
END_OF_USAGE
    list_steps
    cat <<'END_OF_USAGE'

FOLDER (on-gpu) gets the JSON lines of each measurement, and each step's output. PYTHON (python3) is an environment with the test
extra and CuPy, whose mpirun stands on PATH; a launcher with options of its own is named by MPIRUN="mpirun --bind-to none".
END_OF_USAGE
}

# A step says what it does in the line that begins it, and a measurement how many seconds it may take.
list_steps() {
    sed -nE 's/^([a-z0-9_]+)\(\) \{ # (.*)/  \1 \2/p' "${BASH_SOURCE[0]}" | while read -r step does; do printf '  %-13s%s\n' "$step" "$does"; done
}

tests() { # the tests of one process that need a GPU
    within 560 "$PYTHON" -m pytest -q -p no:cacheprovider --color=no -m "gpu and not mpi" -n 6
}

ranks() { # those of two ranks, which share a GPU where there is one
    within 300 "${LAUNCHER[@]}" -n 2 "$PYTHON" -m pytest -q -p no:cacheprovider --color=no --with-mpi -m "gpu and mpi"
}

check() { # the price of the check: bench.py check
    measure 200 scripts/bench.py check --sizes 4000 8000 12000 --rounds 7
}

wall() { # the time of the whole command, beside its imports alone, and what it consists of: bench.py hosts, hybrid.matmul
    measure 120 scripts/bench.py hosts --gpus "${GPUS[@]}" --sizes 8000 --rounds 5 --only wall --total 100 &&
        product 8000 8000 8000 && product 8000 8000 8000
}

lab() { # the lectures' kernels, compiled and timed: hybrid.lab
    lab_run multShare.cu MatMulKernel && lab_run matmul2.cu multiply
}

bytes() { # int8 beside cuBLAS: hybrid.lectures ladder
    measure 200 -m hybrid.lectures ladder --dtype int8 --sizes 4096 8192 1000x8000x8000 --rounds 5
}

types() { # complex numbers and integers beside CuPy: bench.py types
    measure 300 scripts/bench.py types --sizes 4096 --rounds 3
}

precision() { # whole products from remainders beside cuBLAS: bench.py precision
    measure 300 scripts/bench.py precision --sizes 4096 8192 1000x8000x8000 --rounds 5
}

hosts() { # from host memory to host memory, beside the program that one writes by hand, and cuBLASXt: bench.py hosts
    measure 560 scripts/bench.py hosts --gpus "${GPUS[@]}" --sizes 4000 8000 16000 --rounds 3 --total 520
}

kernels() { # every kernel beside cuBLAS: hybrid.lectures ladder
    measure 560 -m hybrid.lectures ladder --rounds 5 --longest 2
}

STEPS=(tests ranks check wall lab bytes types precision hosts kernels)

measure() {
    within "$1" "$PYTHON" "${@:2}" --json "$INTO/$STEP.jsonl"
}

product() {
    within 120 "${LAUNCHER[@]}" -n 1 "$PYTHON" -m hybrid.matmul "$@" --device cuda --json "$INTO/$STEP.jsonl"
}

lab_run() {
    within 120 "$PYTHON" -m hybrid.lab run "docs/programs/$1" --kernel "$2" --device cuda --json "$INTO/$STEP.jsonl"
}

# So many seconds; the command is shown as a reader can repeat it.
within() {
    printf '+ %s\n' "$(printf '%q ' "${@:2}")"
    timeout --kill-after=10 "$@"
}

main() {
    local chosen=() failed=() began code
    INTO=on-gpu PYTHON=python3
    while (($#)); do
        case $1 in
            -h | --help) usage || true; exit ;;
            --into) INTO=${2:?} && shift 2 ;;
            --python) PYTHON=${2:?} && shift 2 ;;
            *) [[ " ${STEPS[*]} " == *" $1 "* ]] || { echo "on_gpu: unknown step $1: one of ${STEPS[*]}" >&2 && exit 2; } && chosen+=("$1") && shift ;;
        esac
    done
    read -ra LAUNCHER <<<"${MPIRUN:-mpirun}"
    mkdir -p "$INTO" && INTO=$(cd "$INTO" && pwd)
    cd "$ROOT"
    mapfile -t GPUS < <("$PYTHON" -c 'from cupy.cuda.runtime import getDeviceCount
print(*range(1, getDeviceCount() + 1), sep="\n")' 2>/dev/null)
    ((${#GPUS[@]})) || { echo "on_gpu: CuPy finds no GPU: python -m hybrid.doctor tells why" >&2 && exit 1; }
    for STEP in "${chosen[@]:-${STEPS[@]}}"; do
        began=$SECONDS code=0
        printf '\n######## %s\n' "$STEP"
        "$STEP" 2>&1 | tee "$INTO/$STEP.txt" || code=$?
        printf '######## %s ended with %d after %d s\n' "$STEP" "$code" $((SECONDS - began))
        ((code == 0)) || failed+=("$STEP")
    done
    ((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" && exit 1; }
}

main "$@"
