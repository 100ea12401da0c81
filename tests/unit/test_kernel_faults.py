# SPDX-License-Identifier: MIT
"""Every planted fault is noticed, in the mode that is said to find it soonest."""

from dataclasses import replace

import pytest
from support.selection import exhaustive

from experiments.kernel_checks import faults, remainder_checks, remainder_faults
from experiments.kernel_checks.mutants import FAULTS, plant, table, tried
from hybrid.emulation.checked import Verdict

pytestmark = pytest.mark.needs("compiler")

# By default one of a kernel that multiplies, and one for each check of products from remainders. Those that need a sanitizer take
# seconds.
CHOSEN = [
    faults.FAULTS[0],
    *{fault.kernel: fault for fault in reversed(remainder_faults.FAULTS)}.values(),
]


@pytest.mark.parametrize(
    "fault",
    exhaustive(CHOSEN, FAULTS),
    ids=lambda fault: f"{fault.kernel}: {fault.name}",
)
def test_a_planted_fault_is_found(fault):
    (verdict,) = tried(fault, [fault.found_by])
    assert verdict.kind == fault.kind, verdict


@pytest.mark.parametrize("mode", exhaustive(["forward"], sorted({fault.found_by for fault in FAULTS})))
def test_a_fault_that_changes_nothing_is_not_found(mode):
    harmless = replace(FAULTS[0], new=FAULTS[0].old)
    assert [verdict.kind for verdict in tried(harmless, [mode])] == ["ok"]


@pytest.mark.parametrize("mode", exhaustive([], ["forward", "reverse", "shuffled", "undefined", "address", "threads"]))
@pytest.mark.parametrize("name", remainder_checks.CHECKS)
def test_the_kernels_for_products_from_remainders_pass_their_checks(name, mode):
    fault = next(fault for fault in remainder_faults.FAULTS if fault.kernel == name)
    assert tried(replace(fault, new=fault.old), [mode])[0].kind == "ok"


def test_a_fault_whose_place_is_gone_is_said(tmp_path):
    with pytest.raises(LookupError, match=r"naive.cu no longer has 'nothing like it'"):
        plant(replace(FAULTS[0], old="nothing like it"), tmp_path)


def test_the_table_has_a_dash_where_nothing_was_noticed():
    row = table([(FAULTS[0], [Verdict("ok"), Verdict("race"), *[Verdict("ok")] * 4])]).splitlines()[-1]
    assert row == f"| naive | {FAULTS[0].name} | – | race | – | – | – | – |"
