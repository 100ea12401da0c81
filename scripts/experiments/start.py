# SPDX-License-Identifier: MIT
"""Starts an experiment from a checkout, installed or not, or from an installed package."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
INSTALLED = (SCRIPTS.parent / "__init__.py").exists()  # inside the package, whatever a checkout's folder is called
ROOT = SCRIPTS.parents[1] if INSTALLED else SCRIPTS.parent  # the folder of the package


def use_checkout() -> None:
    """Let this process and its children import `hybrid` and `experiments` from this checkout."""
    ours = [str(ROOT), str(SCRIPTS)]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in ours]
    os.environ["PYTHONPATH"] = os.pathsep.join([*ours, *others])
    sys.path[:] = [*ours, *(path for path in sys.path if path not in ours)]


def main_of(module: str) -> Callable[[], int]:
    """`main` of a module of `experiments`, or MODULE:NAME; SystemExit that says which package is missing."""
    use_checkout()
    try:
        name, _, what = module.partition(":")
        main: Callable[[], int] = attrgetter(what or "main")(import_module(f"experiments.{name}"))
        return main
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in ("experiments", "hybrid"):
            raise
        sys.exit(f"{missing.name} is not installed: pip install {missing.name if INSTALLED else f'-e {ROOT}'}")


def run(module: str) -> None:
    sys.exit(main_of(module)())
