# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Sourced by the batch scripts, on the job's first node. Afterwards `python` and `mpirun` are the project's, and
#   SIZE        rows and columns of the matrices, from HYBRID_SIZE
#   SRUN_MPI    how srun has to start ranks of this MPI
#   launch      starts a command on all ranks of the job

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

fail() {
    printf '%s: %s\n' "${SLURM_JOB_NAME:-slurm}" "$1" >&2
    exit 2
}

prepare() { :; } # a site's own, for modules

source_site() {
    local site=${HYBRID_SITE:-generic}
    [[ $site =~ ^[A-Za-z0-9_-]+$ && -r $ROOT/slurm/sites/$site.sh ]] || fail "HYBRID_SITE=$site: slurm/sites has no such file"
    # shellcheck source=slurm/sites/generic.sh
    source "$ROOT/slurm/sites/$site.sh"
    set +u # the functions of some module systems use variables that are not set
    prepare
    set -u
}

# The environment that was active at the submission, else the one that scripts/run.sh made, else the python of a module.
find_python() {
    local environment conda=${CONDA_PREFIX-}
    if [[ ${CONDA_DEFAULT_ENV-base} == base ]]; then conda=''; fi # it is active in every shell of many users
    for environment in "${VIRTUAL_ENV-}" "$conda" "$ROOT/.venv" "$ROOT/.venv-openmpi" "$ROOT/.venv-system" "${CONDA_PREFIX-}"; do
        if [[ -n $environment && -x $environment/bin/python ]]; then
            export PATH=$environment/bin:$PATH
            break
        fi
    done
    python -c 'import hybrid, mpi4py, numpy' || fail "$(type -P python || echo 'no python') cannot run the project: see slurm/README.md"
}

# MPICH over UCX sends addresses to other nodes in PMI-1 requests that may be longer than 1024 characters. Slurm's pmi2 plugin
# takes the first 1024 for the whole request, and MPI_Init fails (https://github.com/pmodels/mpich/issues/6924). Hydra, the
# mpirun of MPICH, reads all of it.
needs_hydra() {
    [[ $1 == "MPICH Version"* ]] && ((${SLURM_JOB_NUM_NODES:-1} > 1)) && is_hydra
}

is_hydra() { [[ $(mpirun --version 2>&1) == *HYDRA* ]]; }

# The job's nodes, each with its number of ranks, as Hydra takes them. Its own reading of SLURM_NODELIST puts all ranks on the
# first node where some names end with a letter and others with a digit.
nodes_for_hydra() { paste -d : <(scontrol show hostnames "$SLURM_JOB_NODELIST") <(ranks_of_nodes) | paste -sd ,; }

# start_by_hydra NODES RANKS COMMAND…: as srun would deal the ranks to the nodes, which Hydra does not ask. With --distribution=cyclic
# or plane it puts some on a node, then some on the next one, where all nodes have as many.
start_by_hydra() {
    local nodes=$1 ranks=$2 turn='' dealt=()
    shift 2
    ranks_of_nodes >/dev/null # below it is asked in other shells, which would fail alone
    case ${SLURM_DISTRIBUTION-} in
        cyclic*) turn=1 ;;
        plane*) turn=${SLURM_DIST_PLANESIZE:-1} ;;
    esac
    if [[ -n $turn && $(ranks_of_nodes | head -n "$nodes" | sort -u | wc -l) == 1 ]]; then
        dealt=(-ppn "$turn" -hosts "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd , | cut -d , -f "1-$nodes")")
    else
        dealt=(-hosts "$(nodes_for_hydra | cut -d , -f "1-$nodes")")
    fi
    mpirun -np "$ranks" "${dealt[@]}" "$@"
}

# How many ranks each of the job's nodes has, a line for each.
ranks_of_nodes() {
    local part node
    for part in ${SLURM_TASKS_PER_NODE//,/ }; do # such as 2(x3),1
        [[ $part =~ ^([0-9]+)(\(x([0-9]+)\))?$ ]] || fail "SLURM_TASKS_PER_NODE=$SLURM_TASKS_PER_NODE is not understood"
        for ((node = 0; node < ${BASH_REMATCH[3]:-1}; node++)); do echo "${BASH_REMATCH[1]}"; done
    done
}

# An MPI and srun find each other through one protocol only; with another one every rank takes itself for rank 0 of 1.
choose_protocol() {
    local library offered
    library=$(python -c 'import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())')
    if [[ -z ${SRUN_MPI-} ]]; then # a site may know better
        case $library in *"Open MPI"*) SRUN_MPI=pmix ;; *) SRUN_MPI=pmi2 ;; esac
        if needs_hydra "$library"; then SRUN_MPI=none; fi
    fi
    offered=$(srun --mpi=list 2>&1) || offered=''
    [[ $offered =~ (^|[[:space:]])$SRUN_MPI($|[[:space:]]) ]] || SRUN_MPI=none
    # Open MPI's mpirun would bind a rank with all its threads to one core.
    export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
}

# launch COMMAND…: on all nodes.
launch() { launch_on "${SLURM_JOB_NUM_NODES:-1}" "$@"; }

# launch_on N COMMAND…: on the first N nodes, with srun if it knows the MPI, else with the MPI's own mpirun, which asks Slurm for
# the nodes.
launch_on() {
    local nodes=$1 ranks=$SLURM_NTASKS part=() count
    shift
    if ((nodes < ${SLURM_JOB_NUM_NODES:-1})); then
        ranks=0
        ranks_of_nodes >/dev/null
        for count in $(ranks_of_nodes | head -n "$nodes"); do ranks=$((ranks + count)); done
        part=(--nodes="$nodes" --ntasks="$ranks")
    fi
    if [[ $SRUN_MPI != none ]]; then
        # Some versions of srun do not take --cpus-per-task over from the job.
        srun --unbuffered --kill-on-bad-exit=1 --mpi="$SRUN_MPI" ${SLURM_CPUS_PER_TASK:+-c "$SLURM_CPUS_PER_TASK"} "${part[@]}" "$@"
    elif is_hydra; then
        start_by_hydra "$nodes" "$ranks" "$@"
    else
        mpirun -np "$ranks" "$@"
    fi
}

has_kernel() {
    local catalogue
    catalogue=$(python -m hybrid.matmul --kernel list)
    [[ $'\n'$catalogue == *$'\n'"$1 "* ]]
}

source_site
SIZE=${HYBRID_SIZE:-8000}
[[ $SIZE =~ ^[1-9][0-9]*$ ]] || fail "HYBRID_SIZE=$SIZE is no size"
find_python
choose_protocol
