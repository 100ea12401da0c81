#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# For a machine with GPUs, since CI has none: the tests that need one, and the measurements recorded in docs/measured.
set -euo pipefail
ROOT=$(cd "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
unset PYTHONDONTWRITEBYTECODE # what starts is timed: bytecode is kept, as it is for users
STEPS=(tests ranks check wall lab bytes types precision hosts kernels)

usage() {
    cat <<'END_OF_USAGE'
usage: bash scripts/on_gpu.sh [--into FOLDER] [--python PYTHON] [STEP...]

Runs the steps in this order, whatever becomes of those before, and ends with 1 if one failed:
  tests        the tests of one process that need a GPU
  ranks        those of two ranks, which share a GPU where there is one
  check        the price of the check: bench.py check
  wall         the time of the whole command, and what it consists of: hybrid.matmul
  lab          the lectures' kernels, compiled and timed: hybrid.lab
  bytes        int8 beside cuBLAS: hybrid.lectures ladder
  types        complex numbers and integers beside CuPy: bench.py types
  precision    whole products from remainders beside cuBLAS: bench.py precision
  hosts        from host memory to host memory, beside the program one writes by hand, and cuBLASXt: bench.py hosts
  kernels      every kernel beside cuBLAS: hybrid.lectures ladder

FOLDER (on-gpu) gets the JSON lines of each measurement, and each step's output. PYTHON (python3) is an environment with the test
extra and CuPy, whose mpirun stands on PATH; a launcher with options of its own is named by MPIRUN="mpirun --bind-to none".
END_OF_USAGE
}

run_step() {
    local tests=("$PYTHON" -m pytest -q -p no:cacheprovider --color=no) shapes=(4096 8192 1000x8000x8000)
    case $1 in
        tests) within 560 "${tests[@]}" -m "gpu and not mpi" -n 6 ;;
        ranks) within 300 "${LAUNCHER[@]}" -n 2 "${tests[@]}" --with-mpi -m "gpu and mpi" ;;
        check) measure 200 scripts/bench.py check --sizes 4000 8000 12000 --rounds 7 ;;
        wall) measure 120 -m hybrid.matmul 8000 8000 8000 --device cuda ;;
        lab) lab_run multShare.cu MatMulKernel && lab_run matmul2.cu multiply ;;
        bytes) measure 200 -m hybrid.lectures ladder --dtype int8 --sizes "${shapes[@]}" --rounds 5 ;;
        types) measure 300 scripts/bench.py types --sizes 4096 --rounds 3 ;;
        precision) measure 300 scripts/bench.py precision --sizes "${shapes[@]}" --rounds 5 ;;
        hosts) measure 560 scripts/bench.py hosts --gpus "${GPUS[@]}" --sizes 4000 8000 16000 --rounds 2 --total 520 ;;
        kernels) measure 560 -m hybrid.lectures ladder --rounds 5 --longest 2 ;;
    esac
}

measure() { within "$1" "$PYTHON" "${@:2}" --json "$INTO/$STEP.jsonl"; }

lab_run() { measure 120 -m hybrid.lab run "docs/programs/$1" --kernel "$2" --device cuda; }

# within SECONDS COMMAND…: prints the command so that a reader can repeat it.
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
        run_step "$STEP" 2>&1 | tee "$INTO/$STEP.txt" || code=$?
        printf '######## %s ended with %d after %d s\n' "$STEP" "$code" $((SECONDS - began))
        ((code == 0)) || failed+=("$STEP")
    done
    ((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" && exit 1; }
}

main "$@"
