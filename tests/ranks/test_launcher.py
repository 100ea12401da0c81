# SPDX-License-Identifier: MIT
"""What the environment says of the launcher."""

from __future__ import annotations

import os

import pytest

from hybrid.ranks.launcher import Launch, launched, rank_by_launcher

MPICH = {"PMI_RANK": "2", "PMI_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "5"}
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "6"}


@pytest.fixture
def alone(monkeypatch):
    for name in (*MPICH, *OPEN_MPI, *SLURM):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("environment", "rank", "size", "name"),
    [
        (MPICH, 2, 4, "MPICH"),
        (OPEN_MPI, 3, 5, "Open MPI"),
        (SLURM, 1, 6, "srun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, 0, 1, "MPICH"),
    ],
)
def test_each_launcher_is_known_by_its_variables(environment, rank, size, name):
    launch = launched(environment)
    assert (launch.rank, launch.size) == (rank, size)
    assert name in launch.name


@pytest.mark.parametrize("helper", [MPICH, OPEN_MPI])
def test_helpers_within_a_step_of_srun_come_first(helper):
    assert launched({**SLURM, **helper}) == launched(helper)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PMI_RANK": "0"},
        {"PMI_SIZE": "2"},
        {"PMI_RANK": "", "PMI_SIZE": ""},
        {"PMI_RANK": "x", "PMI_SIZE": "2"},
        {"PMI_RANK": "-1", "PMI_SIZE": "2"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script, not a step
    ],
)
def test_a_process_started_alone_has_no_launcher(environment):
    assert launched(environment) is None


@pytest.mark.parametrize(
    ("launcher", "variable"),
    [(MPICH, "MPI_LOCALRANKID"), (OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK"), (SLURM, "SLURM_LOCALID")],
)
def test_the_local_rank_is_known_where_the_launcher_says_it(launcher, variable):
    assert launched({**launcher, variable: "1"}).local_rank == 1
    assert launched(launcher).local_rank is None
    assert launched({**launcher, variable: "one"}).local_rank is None


@pytest.mark.parametrize("helper", [MPICH, OPEN_MPI])
def test_mpiruns_local_rank_is_not_sruns(helper):
    assert launched({**SLURM, "SLURM_LOCALID": "0", **helper}).local_rank is None


def test_half_a_launchers_variables_do_not_hide_another():
    assert launched({"PMI_RANK": "7", **SLURM}) == Launch("srun", 1, 6, ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def test_the_rank_is_the_launchers_or_zero(alone):
    assert rank_by_launcher() == 0
    alone.setitem(os.environ, "PMI_RANK", "2")
    alone.setitem(os.environ, "PMI_SIZE", "4")
    assert rank_by_launcher() == 2
    assert launched() == launched(MPICH)
