# SPDX-License-Identifier: MIT
"""Starts what a public script does, from a checkout, also where the package is not installed, or from an installed package."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
INSTALLED = (SCRIPTS.parent / "__init__.py").exists()  # in the package, not beside it: a checkout may be called hybrid, too
ROOT = SCRIPTS.parents[1] if INSTALLED else SCRIPTS.parent  # the folder of the package


def use_checkout() -> None:
    """This process, and those that it starts, import `hybrid` and `experiments` from this checkout."""
    ours = [str(ROOT), str(SCRIPTS)]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in ours]
    os.environ["PYTHONPATH"] = os.pathsep.join([*ours, *others])
    sys.path[:] = [*ours, *(path for path in sys.path if path not in ours)]


def main_of(module: str) -> Callable[[], int]:
    """`main` of a module of `experiments`, or MODULE:FUNCTION; SystemExit that says which package is missing."""
    use_checkout()
    try:
        name, _, function = module.partition(":")
        return getattr(import_module(f"experiments.{name}"), function or "main")  # type: ignore[no-any-return]
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] in ("experiments", "hybrid"):
            raise
        sys.exit(f"{missing.name} is not installed: pip install {missing.name if INSTALLED else f'-e {ROOT}'}")


def run(module: str) -> None:
    """Do it, to the end of this process."""
    sys.exit(main_of(module)())
