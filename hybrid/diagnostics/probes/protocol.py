"""Programs that the doctor runs as processes of their own, since what they try may kill or hang them.

Each says what it has come to know as soon as it knows it, so that its end does not take that away.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any


def begin(limit: int) -> None:
    """End this process after `limit` seconds, also when nobody waits for it any more; and leave no core file behind."""
    signal.alarm(limit)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def say(**known: Any) -> None:
    """One line of JSON a call."""
    sys.stdout.write(f"\n{json.dumps(known)}\n")  # what libraries print may not end with its line
    sys.stdout.flush()
