# SPDX-License-Identifier: MIT
"""What the doctor's probes have in common: programs that run as child processes, since what they try may end or block them.

Each reports what it has found as soon as it has found it, so that nothing is lost when the next attempt ends the process.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def report(**found: Any) -> None:
    """Write a line of JSON to standard output. Of several values of the same key the last counts."""
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # a library may have printed a line without its end
    sys.stdout.flush()
