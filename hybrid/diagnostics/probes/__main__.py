# SPDX-License-Identifier: MIT
"""Runs a probe: python -m hybrid.diagnostics.probes MODULE.FUNCTION LIMIT ARGUMENT…

A function of a module of this package is called with the arguments, and reports what it finds. The process ends after LIMIT
seconds, also when nobody waits for it any more, and leaves no core file.
"""

import resource
import signal
import sys
from importlib import import_module

if __name__ == "__main__":
    name, seconds, *arguments = sys.argv[1:]
    signal.alarm(int(seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, _, function = name.partition(".")
    getattr(import_module(f"hybrid.diagnostics.probes.{module}"), function)(*arguments)
