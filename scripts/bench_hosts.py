"""How fast is the runner beside the program one writes by hand? `python scripts/bench_hosts.py --help` says how to ask."""

import sys

from experiments.start import run

sys.exit(run("hosts.cli"))
