# SPDX-License-Identifier: MIT
"""Copies of the checkout in which mutants are planted, and the tests run there."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LIMIT = 900  # seconds of one start of pytest: what takes longer hangs
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)
_ALL_PASSED = re.compile(r"^\d+ passed[^\n]* in [\d.]+s", re.MULTILINE)
_PASSED, _USAGE, _NO_TESTS = 0, 4, 5


class Tree:
    """A copy of all files that git knows or would add. What is imported there as `hybrid` is the copy."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(git, cwd=root, capture_output=True, check=True).stdout
        for name in listed.decode().split("\0"):
            if name and (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        if (root / "tests").is_dir():
            (root / ".test_cache").mkdir(exist_ok=True)
            (folder / ".test_cache").symlink_to(root / ".test_cache")  # compiled kernels, named after what they are made from
        self.paths = os.pathsep.join(str(folder / name) for name in ("", "scripts", "tests"))
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HYBRID_"))}
        self._environment = {**outside, "PYTHONPATH": self.paths, "PYTHONDONTWRITEBYTECODE": "1"}

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """A context in which the file has another text."""
        path = self.folder / file
        before = path.read_bytes()
        try:
            path.write_text(text, encoding="utf-8")
            yield
        finally:
            path.write_bytes(before)

    def tested(self, arguments: Sequence[str], ranks: int = 0, **environment: str) -> tuple[str, str]:
        """What pytest finds, to the first failure: "passed", "found" or "no tests"; and the test that failed."""
        how = ["--with-mpi", "-m", "mpi"] if ranks else ["-m", "not mpi"]
        from hybrid.testing import mpirun

        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", "--color=no", *how, *arguments]
        code, output = self.run([*(mpirun(ranks) if ranks else []), *command], **environment)
        failed = _FAILED.search(output)
        if code == _PASSED or (not failed and _ALL_PASSED.search(output)):  # others may leave files behind meanwhile
            return "passed", ""
        if code == _NO_TESTS or (code == _USAGE and not failed and "not found: " in output):
            return "no tests", ""
        return "found", failed[1] if failed else "took too long" if code is None else output.strip().rpartition("\n")[2][:200]

    def run(self, command: Sequence[str], **environment: str) -> tuple[int | None, str]:
        """Run a command in the copy; its exit code, None after LIMIT seconds, and what it printed."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment | environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):  # what a mutant may have left running
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            return code, output.read()
