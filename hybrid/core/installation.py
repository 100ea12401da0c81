# SPDX-License-Identifier: MIT
"""How this package is installed: the commands that add what is missing, and another package of the same name. It is asked only
where an error is put into words."""

from __future__ import annotations

from pathlib import Path

DISTRIBUTION, NAMESAKE = "hybrid-runner", "dwave-hybrid"
_PACKAGE = Path(__file__).resolve().parents[1]


def install(extra: str) -> str:
    """The command that installs an extra of setup.cfg: from the checkout, or where there is none the packages that the extra
    names."""
    import shlex

    checkout = _PACKAGE.parent
    if (checkout / "setup.cfg").exists() and (checkout / "kernels").is_dir():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    from importlib.metadata import PackageNotFoundError, requires

    try:
        wanted = [line.partition(";") for line in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:  # copied there
        wanted = []
    ends = f'extra == "{extra}"'  # after what else there may be, of Python's version
    packages = [name.strip() for name, _, condition in wanted if condition.replace("'", '"').strip().endswith(ends)]
    return f"pip install {shlex.join(packages)}" if packages else f"pip install what the extra {extra} of setup.cfg names"


def namesake() -> str:
    """What to say where D-Wave's package, whose modules have the same name as ours, is installed, too; empty where it is not."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        theirs = version(NAMESAKE)
    except PackageNotFoundError:
        return ""
    return f"{NAMESAKE} {theirs} is installed here, too, also as the package hybrid: each needs an environment of its own"


def mixed() -> bool:
    """Whether D-Wave's modules lie in the same folder as ours."""
    return (_PACKAGE / "flow.py").exists()


def missing(package: str, name: str) -> Exception:
    """The error for a name that this package lacks; it mentions D-Wave's package where that is installed, too.

    Then it is an ImportError, since Python does not show the text of an AttributeError where a name is imported. It is none for
    the names of modules: Python asks for these before it looks for their files.
    """
    folder = _PACKAGE.parent / package.replace(".", "/")
    is_module = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    if not name.startswith("_") and not is_module and (why := namesake()):
        return ImportError(f"{package} of {DISTRIBUTION} has no {name}: {why}")
    return AttributeError(f"module {package!r} has no attribute {name!r}")
