# SPDX-License-Identifier: MIT
"""Runs a probe: python -m hybrid.diagnostics.probes MODULE.FUNCTION LIMIT ARGUMENT…

A function of a module of this package is called with the arguments, and reports what it finds. The process ends after LIMIT
seconds, also when nobody waits for it any more, and leaves no core file.
"""

import sys
from importlib import import_module

from hybrid.diagnostics.probes.protocol import limit_process

if __name__ == "__main__":
    name, seconds, *arguments = sys.argv[1:]
    limit_process(int(seconds))
    module, _, function = name.partition(".")
    getattr(import_module(f"hybrid.diagnostics.probes.{module}"), function)(*arguments)
