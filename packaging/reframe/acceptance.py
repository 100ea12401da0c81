# SPDX-License-Identifier: MIT
"""hybrid.accept as a test of ReFrame 4: is every device of a job right, and as fast as the others?

reframe -c packaging/reframe -r                                          # one rank, where nothing is configured
reframe -C site.py -c packaging/reframe -r -S level=3 -S num_tasks=16 -S num_tasks_per_node=4 -S num_gpus_per_node=4
reframe -c packaging/reframe -r -S modules=hybrid-runner                 # where a module has the commands

The launcher of the site's partition (srun, mpirun) starts the ranks, one a GPU; `python3` must be the one that has hybrid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, run_after, sanity_function, variable

RESULT = "accept.jsonl"
MINUTES = {1: 10, 2: 20, 3: 40, 4: 60}  # that a job may take


@rfm.simple_test
class HybridAccept(rfm.RunOnlyRegressionTest):
    """Fails where a product is wrong, or a rank, link or GPU is wrong or slow; reports the slowest rank's rate."""

    descr = "hybrid.accept: products of all devices, checked and compared"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "python3"
    keep_files = [RESULT]
    tags = {"acceptance", "production"}

    level = variable(int, value=1)
    device = variable(str, value="auto")

    @run_after("init")
    def ask(self) -> None:
        self.executable_opts = ["-m", "hybrid.accept", f"--level={self.level}", f"--device={self.device}", f"--json={RESULT}"]
        self.time_limit = f"{MINUTES.get(self.level, 10)}m"

    def result(self) -> dict[str, Any]:
        """The line that the test wrote; without one (wrong usage, a failure) what it said is in its standard error."""
        path = Path(self.stagedir) / RESULT
        sn.evaluate(sn.assert_true(path.is_file(), msg=f"no {RESULT}: see {self.stderr.evaluate()}"))
        return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])

    @sanity_function
    def all_accepted(self) -> Any:
        result = self.result()
        wrong = [f"{each['subject']}: {each['text']}" for each in result["findings"] if each["verdict"] == "wrong"]
        return sn.all(
            [
                sn.assert_true(result["ok"], msg="; ".join(wrong)),
                sn.assert_gt(result["rotations"], 0, msg="asked to end before every size was rotated once"),
                sn.assert_eq(result["ranks"], self.job.num_tasks, msg="{0} ranks were started, and not {1}"),
            ]
        )

    @performance_function("GFlop/s")
    def slowest_rank(self) -> float:
        """The rate of the rank that takes longest for the largest product in float64, by its median."""
        product = max(
            (each for each in self.result()["multiply"] if each["dtype"] == "float64"),
            key=lambda each: each["rows"] * each["l"] * each["m"],
        )
        longest = max(rank["median"] for rank in product["ranks"])
        return 2 * product["rows"] * product["l"] * product["m"] / longest / 1e9
