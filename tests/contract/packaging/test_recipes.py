# SPDX-License-Identifier: MIT
"""The recipes of packaging/ say what setup.cfg says: name, version, licence, Pythons, dependencies with their ranges."""

import ast
import importlib.util
import re
from configparser import ConfigParser

import pytest
from packaging.specifiers import SpecifierSet
from support.commands import ROOT

import hybrid

MARKS = re.compile("TOD[O]|FIXM[E]")  # in brackets, so that a search for the marks does not find this line
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg", encoding="utf-8")
NAME, LICENCE, SUMMARY = (SETUP["metadata"][key] for key in ("name", "license", "description"))
PYTHON = SETUP["options"]["python_requires"]
NEEDED = dict(re.findall(r"^([\w-]+)(\S+)$", SETUP["options"]["install_requires"], re.MULTILINE))
EXTRAS = SETUP["options.extras_require"]
CUPY = re.findall(r"^cupy-\w+?(>=\S+)$", EXTRAS["cuda13"], re.MULTILINE)[0]
SETUPTOOLS = re.findall(r'"setuptools(>=\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[0]
COMMANDS = dict(re.findall(r"^([\w-]+) = ([\w.]+):main$", SETUP["options.entry_points"]["console_scripts"], re.MULTILINE))
RECIPES = ROOT / "packaging"
EASYCONFIG = next((RECIPES / "easybuild").glob("*.eb"))


def read(name):
    return (RECIPES / name).read_text(encoding="utf-8")


def test_setup_is_read():
    assert {"numpy", "mpi4py", "threadpoolctl"} <= set(NEEDED)
    assert all(re.fullmatch(r">=[\d.]+(,<\d+)?", allowed) for allowed in [*NEEDED.values(), CUPY, PYTHON, SETUPTOOLS])
    assert {"hybrid-accept", "hybrid-matmul"} <= set(COMMANDS)


FILES = [path for path in sorted(RECIPES.rglob("*")) if path.is_file() and path.suffix != ".pyc"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_says_where_it_is_used_and_names_no_address(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any("SPDX-License-Identifier: MIT" in line for line in lines[:2])
    text = "\n".join(lines)
    assert re.findall(r"https?://|pip install hybrid-runner", text) + MARKS.findall(text) == []


# --- containers


def container_sections():
    parts = re.split(r"^%(\w+)\n", read("hybrid.def"), flags=re.MULTILINE)
    return parts[0], dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture
def copied():
    """What either image is made of."""
    files = [line.split() for line in container_sections()[1]["files"].splitlines() if line.strip()]
    assert all(there == f"/source/{here}" for here, there in files)
    instructions = re.findall(r"^COPY (?!--from)(.+) \S+$", read("Containerfile"), re.MULTILINE)
    words = {word for line in instructions for word in line.split()}
    assert words == {here for here, _ in files}
    return words


def test_images_have_all_that_a_wheel_is_made_of(copied):
    assert [name for name in copied if not (ROOT / name).exists()] == []
    folders = {line.partition(" = ")[2] for line in SETUP["options"]["package_dir"].strip().splitlines()}
    assert folders <= copied
    assert {"pyproject.toml", "setup.cfg", "README.md", "LICENSE", ".ci/build_backend.py", "constraints.txt"} <= copied


def test_both_images_are_made_the_same_way():
    _, sections = container_sections()
    texts = read("Containerfile"), read("hybrid.def")
    packages = [re.findall(r"--no-install-recommends (.+?)(?: \\)?$", text, re.MULTILINE) for text in texts]
    assert packages[0] == packages[1]
    assert len(packages[0]) == 1
    bases = re.findall(r"^ARG BASE=docker.io/library/(.+)$", texts[0], re.MULTILINE)
    assert bases == re.findall(r"^Bootstrap: docker\nFrom: (.+)$", texts[1], re.MULTILINE)
    extras = re.findall(r"^ARG EXTRAS=(\S+)$", read("Containerfile"), re.MULTILINE)
    assert extras == re.findall(r"extras=(\S+)", sections["arguments"])
    named = re.findall(r"(?:EXTRAS|extras)=([\w,]+)", "".join(texts))
    assert {extra for each in named for extra in each.split(",")} - set(EXTRAS) == set()


@pytest.mark.parametrize("name", ["Containerfile", "hybrid.def"])
def test_labels_of_images(name):
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)[= ]"?([\w.-]+)', read(name)))
    assert labels == {"title": NAME, "version": hybrid.__version__, "licenses": LICENCE}


# --- packages


def as_spack(name, allowed):
    """>=2.0,<3 is @2.0:2 there: the end of a range includes all versions that begin so."""
    least, below = re.fullmatch(r">=([\d.]+)(?:,<(\d+))?", allowed).groups()
    return f"{name}@{least}:{int(below) - 1 if below else ''}"


def test_spack():
    text = read("spack/spack_repo/hybrid/packages/py_hybrid_runner/package.py")
    assert f'"""{SUMMARY}."""' in text
    assert re.findall(r'^    version\("([^"]+)"', text, re.MULTILINE) == [hybrid.__version__]
    assert re.findall(r'^    license\("([^"]+)"', text, re.MULTILINE) == [LICENCE]
    always = dict(re.findall(r'^    depends_on\("([^"]+)", type=(.+)\)$', text, re.MULTILINE))
    expected = {as_spack(f"py-{name}", allowed): '("build", "run")' for name, allowed in NEEDED.items()}
    expected |= {as_spack("python", PYTHON): '("build", "run")', as_spack("py-setuptools", SETUPTOOLS): '"build"'}
    assert always == expected
    assert f'depends_on("{as_spack("py-cupy", CUPY)}", when="+cuda", type=("build", "run"))' in text
    assert set(re.findall(r"py-hybrid-runner@([\d.]+)", text)) == {hybrid.__version__}
    (modules,) = re.findall(r"import_modules = (\[.*?\])", text, re.DOTALL)
    assert all(map(importlib.util.find_spec, ast.literal_eval(modules)))
    assert "namespace: hybrid\n" in read("spack/spack_repo/hybrid/repo.yaml")


def test_conda():
    text = read("conda/recipe.yaml")
    requirements = dict(re.findall(r"^  (host|run|run_constraints):\n((?:    - .+\n)+)", text, re.MULTILINE))
    python = f"python {PYTHON}"
    expected = {"host": [python, "pip", f"setuptools {SETUPTOOLS}"], "run_constraints": [f"cupy {CUPY}"]}
    expected["run"] = [python, *(f"{name} {allowed}" for name, allowed in NEEDED.items())]
    assert {name: re.findall("- (.+)", lines) for name, lines in requirements.items()} == expected
    said = dict(re.findall(r'^  (name|version|license|summary|license_file): "?(.+?)"?$', text, re.MULTILINE))
    files = SETUP["metadata"]["license_files"]
    told = {"name": NAME, "version": "${{ version }}", "license": LICENCE, "summary": SUMMARY, "license_file": files}
    assert said == told
    assert re.findall(r'^context:\n  version: "(.*)"$', text, re.MULTILINE) == [hybrid.__version__]
    assert (RECIPES / "conda" / re.findall(r"^source:\n  path: (.*)$", text, re.MULTILINE)[0]).resolve() == ROOT


def easyconfig():
    """An easyconfig is Python: assignments of literals, but for the one of commands."""
    known = {"__builtins__": {}}
    exec(compile(ast.parse(EASYCONFIG.read_text(encoding="utf-8")), EASYCONFIG.name, "exec"), known)
    return known


def test_easybuild():
    told = easyconfig()
    toolchain = told["toolchain"]
    assert (told["name"], told["version"], told["description"]) == (NAME, hybrid.__version__, SUMMARY)
    assert EASYCONFIG.name == f"{NAME}-{hybrid.__version__}-{toolchain['name']}-{toolchain['version']}.eb"
    assert told["sources"] == [f"{NAME.replace('-', '_')}-%(version)s.tar.gz"]
    assert told["sanity_check_paths"]["files"] == [f"bin/{command}" for command in COMMANDS]
    named = re.findall(r"hybrid-runner[-/](\d[\d.]*\d)", EASYCONFIG.read_text(encoding="utf-8"))
    assert set(named) == {hybrid.__version__}
    # Some come in a bundle; the comment beside it says which version.
    versions = {name.lower(): version for name, version in told["dependencies"]}
    versions |= dict(re.findall(r"# (\w+) ([\d.]+)$", EASYCONFIG.read_text(encoding="utf-8"), re.MULTILINE))
    for name, allowed in [*NEEDED.items(), ("python", PYTHON)]:
        assert SpecifierSet(allowed).contains(versions[name]), name
