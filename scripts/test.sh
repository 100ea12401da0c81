#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
set -euo pipefail
# shellcheck source=scripts/setup.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"

usage() {
    cat <<'END'
usage: bash scripts/test.sh [--all] [--ranks "0 2 4"] [pytest argument…]

Sets up what is missing and runs the tests: on all cores what needs no mpirun (0 ranks), then those marked mpi on 2 and on 4
ranks. --all: every case of the large tables, 0 to 4 ranks, and, as root where Slurm is installed, a cluster ("slurm").
Each run counts what it has skipped, by reason.
END
}

# Tests start a thousand processes: their bytecode is kept, as it is for users.
unset PYTHONDONTWRITEBYTECODE

RANKS=(0 2 4)
CHOSEN=0    # 1: the caller selects tests, so a step may have none
MARKED=''   # the caller's -m narrows each step's
ARGUMENTS=(-p no:cacheprovider --color=no -rs)
PASSED=0 FAILED=0 SKIPPED=0
SUMMARY=$(printf '%-5s %7s  %s' ranks seconds result)
OUTPUT=$(mktemp)
trap 'rm -f "$OUTPUT"' EXIT

main() {
    local ranks
    read_arguments "$@"
    set_up test
    cd "$ROOT"
    for ranks in "${RANKS[@]}"; do
        case $ranks in
            # The workers use all cores: BLAS threads in each would mostly wait.
            0) run_tests 0 3600 env OPENBLAS_NUM_THREADS=1 "$PYTHON" -m pytest -n "$(workers)" --dist worksteal -m "not mpi$MARKED" ;;
            slurm) run_cluster_tests ;;
            *) run_tests "$ranks" 600 "${MPIRUN[@]}" -n "$ranks" "$PYTHON" -m pytest --with-mpi -m "mpi$MARKED" ;;
        esac
    done
    sum_up
}

# Twice the cores that this process may use, since many tests wait; limited on large machines.
workers() {
    "$PYTHON" -c 'import sys; from hybrid.host.threads import core_quota, usable_cores
print(max(1, min(8, 2 * min(len(usable_cores()), int(core_quota() or sys.maxsize)))))'
}

run_cluster_tests() {
    local reason
    reason=$("$PYTHON" tests/slurm/cluster/cluster.py --why-not)
    if [[ -z $reason ]]; then
        run_tests slurm 400 "$PYTHON" -m pytest -m "cluster$MARKED"
    else
        SUMMARY+=$(printf '\n%-5s %7s  not run: %s' slurm - "$reason")
    fi
}

read_arguments() {
    while (($#)); do
        case $1 in
            -h | --help) usage || true; exit ;;
            --all) RANKS=(0 1 2 3 4 slurm) ARGUMENTS+=(--all) && shift ;;
            --ranks) read -ra RANKS <<<"${2-}" && shift $(($# > 1 ? 2 : 1)) ;;
            -m) CHOSEN=1 MARKED=" and (${2-})" && shift $(($# > 1 ? 2 : 1)) ;;
            *) CHOSEN=1 ARGUMENTS+=("$1") && shift ;;
        esac
    done
}

run_tests() {
    local ranks=$1 limit=$2 began=$SECONDS code=0 result passed failed skipped
    shift 2
    printf '\n== ranks: %s\n' "$ranks"
    # In the foreground, so that Ctrl-C ends the tests too.
    timeout --foreground --kill-after=10 "$limit" "$@" "${ARGUMENTS[@]}" </dev/null 2>&1 | tee "$OUTPUT" || code=$?
    result=$(sed -nE 's/^=* ?(([0-9]+ [a-z]+|no tests ran).* in [0-9.]+s( \([0-9:]+\))?) ?=*$/\1/p' "$OUTPUT" | tail -n 1)
    passed=$(count passed) failed=$(($(count failed) + $(count error))) skipped=$(count skipped)
    if ((code && !failed)) && ! caller_chose_none; then
        failed=1
        result="${result:-no result} (exit code $code)"
    fi
    ((PASSED += passed, FAILED += failed, SKIPPED += skipped, 1))
    SUMMARY+=$(printf '\n%-5s %7d  %s' "$ranks" $((SECONDS - began)) "$result")
}

caller_chose_none() { ((CHOSEN && code != 124)) && [[ $result == "no tests ran"* || $result =~ ^([0-9]+\ skipped,\ )?[0-9]+\ deselected ]]; }

count() {
    if [[ $result =~ ([0-9]+)\ $1 ]]; then echo "${BASH_REMATCH[1]}"; else echo 0; fi
}

sum_up() {
    printf '\n%s\n\n' "$SUMMARY"
    if ((PASSED + FAILED + SKIPPED == 0)); then echo "no test ran" && FAILED=1; fi
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    [[ ${ARGUMENTS[*]} == *--all* ]] || echo "Large tables of cases were tested in part: --all runs every case."
    ((FAILED == 0))
}

main "$@"
