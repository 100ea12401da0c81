# SPDX-License-Identifier: MIT
"""All settings, none of which changes the product. A flag overrides the environment variable HYBRID_<NAME>, which overrides the
default."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from numbers import Integral, Real
from typing import Any

from hybrid.core.problem import record
from hybrid.errors import UsageError

MiB = 1 << 20


def _option(default: Any, text: str, **more: Any) -> Any:
    """A field that is an option of commands, too. `text`: its help, which ends with the default. `more`: `metavar`; `allowed`
    values, or `choices` that the help shows; the `least` number."""
    return field(default=default, metadata={"help": text, **more})


@record
class Settings:
    """How a product is computed. Each field is also the environment variable HYBRID_<FIELD>. Help lists options in this order."""

    device: str = _option(
        "auto",
        "auto, cpu, cuda, or emulate: the GPU's kernels on the CPU, slowly (auto)",
        allowed=("auto", "cpu", "cuda", "emulate"),
    )
    kernel: str = _option("auto", "auto, a name, or list for the catalogue (auto)")
    precision: str = _option(
        "auto",
        "on GPUs: native; auto: also from 8-bit remainders, if as accurate and faster; fast: from fewer remainders (auto)",
        allowed=("auto", "native", "fast"),
    )
    transport: str = _option(
        "auto", "how operands reach the GPUs: auto, host, peers or nccl (auto)", allowed=("auto", "host", "peers", "nccl")
    )
    grid: str = _option("auto", "grid of nodes: auto, rows (every node gets all of B), RxC or RxCxL (auto)", metavar="RxC")
    threads: int = _option(0, "CPU threads per rank (SLURM_CPUS_PER_TASK, OMP_NUM_THREADS, or the available cores)", metavar="T")
    stall: float = _option(60.0, "end the job when a rank shows no progress for S seconds (60; 0: never)", metavar="S")
    check: str = _option(
        "on",
        "verify every product: on (on the device), full (and all copies), host (in host memory alone), off (on)",
        choices=("on", "full", "host", "off"),
    )
    on_fault: str = _option(
        "raise", "if a product fails its check: raise an error, or repair: compute it again (raise)", allowed=("raise", "repair")
    )
    host_memory: int = _option(0, "memory that each node may use (available memory)", metavar="BYTES")
    gpu_memory: int = _option(0, "memory that each GPU may use (free memory)", metavar="BYTES")
    resume_rows: int = _option(0, "rows of a part (a 50th of C, at least 256 MiB)", metavar="R", least=1)
    message_bytes: int = field(default=256 * MiB, metadata={"least": 1})  # largest message between nodes
    panel_rows: int = 0  # rows of A in a row panel; 0: the plan chooses
    panel_columns: int = 0  # columns of B in a column panel; 0: the plan chooses
    slab_rows: int = 0  # rows of B in a k-slab, if B is divided so; 0: the plan chooses
    staged: bool = False  # on a CPU, copy panels into buffers as for a GPU
    poison: bool = False  # fill the devices' buffers with NaN before each product, to find elements that nobody wrote
    ranks_per_node: int = 0  # pretend that each node has this number of ranks; 0: the real nodes
    machine: str = ""  # file with the machine model, as `hybrid.doctor --json` writes it; "": an NVIDIA H200's model

    @classmethod
    def gather(cls, flags: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Settings:
        """The settings from flags that are not None, else the environment, else the defaults. UsageError for an invalid value."""
        chosen: dict[str, Any] = {}
        for variable, setting in _VARIABLES:
            if flags.get(setting.name) is not None:
                chosen[setting.name] = _validated(setting, _plain(flags[setting.name]))
            elif text := environment.get(variable, ""):
                chosen[setting.name] = _from_text(variable, text, setting)
        return cls(**chosen)

    def as_dict(self) -> dict[str, object]:
        return dict(vars(self))


_VARIABLES = tuple((f"HYBRID_{setting.name.upper()}", setting) for setting in fields(Settings))
OPTIONS = {setting.name: setting for _, setting in _VARIABLES if "help" in setting.metadata}  # of commands
OF_CALLS = OPTIONS.keys() - {"grid", "resume_rows"}  # keywords of `hybrid.multiply` and `hybrid.use`, too
_OF_SCRIPTS = ("MPI", "PYTHON", "SITE", "ROOT", "SIZE", "KERNELS")  # in scripts/ and slurm/
_PREFIX = "HYBRID_"
_IN_BYTES = ("_bytes", "_memory")  # ends of settings whose values may be texts such as 4G
SWITCHES = {"HYBRID_DEBUG": False, "HYBRID_GUARD": True}  # of the commands, with their defaults
_OTHER_VARIABLES = (*SWITCHES, *(f"HYBRID_{name}" for name in ("CACHE", "LAB_READ", *_OF_SCRIPTS)))
ALLOWED = {setting.name: setting.metadata["allowed"] for _, setting in _VARIABLES if "allowed" in setting.metadata}
_MEANT = {"gpu": "cuda", "nvidia": "cuda", "double": "float64", "single": "float32", "float": "float32"}
_BOOL_NAMES = ("bool", "bool_")
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_TYPE_NAMES = {str: "a name", bool: "true or false", int: "a whole number", float: "a number"}


def as_int(value: Any) -> Any:
    """A whole number of any library, such as NumPy, as an int. Anything else, and True and False, is returned unchanged."""
    if type(value).__name__ in _BOOL_NAMES:  # also NumPy's, which some of its versions accept as an index
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _plain(value: Any) -> Any:
    """Texts and numbers of other classes, such as NumPy's, as a str, int or float."""
    if isinstance(value, str):
        return str.__str__(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, Integral) else as_int(value)


def _from_text(variable: str, text: str, setting: Field[Any]) -> Any:
    """The value of a setting from an environment variable. UsageError, with the variable's name, for an invalid text."""
    kind: Any = type(setting.default)
    if kind is bool:
        return _truth(variable, text)
    try:
        return _validated(setting, parse_bytes(text) if setting.name.endswith(_IN_BYTES) else kind(text))
    except ValueError as error:
        why = error if isinstance(error, UsageError) else "it is not a number"
        raise UsageError(f"{variable}={text!r}: {why}", code="environment") from None


def _validated(setting: Field[Any], value: Any) -> Any:
    """The value of this setting. UsageError, with the allowed values, if it is invalid."""
    if setting.name == "check":  # may be True or False, too
        if not isinstance(value, (str, bool, int)) and type(value).__name__ not in _BOOL_NAMES:
            raise UsageError(f"check must be on, full, host, off, True or False, not {value!r}", code="setting")
        text = str(value).strip().lower()
        return one_of("check", "on" if text in _YES else "off" if text in _NO else text, setting.metadata["choices"])
    kind = type(setting.default)
    if setting.name.endswith(_IN_BYTES) and isinstance(value, str):
        value = parse_bytes(value)
    accepted = (float, int) if kind is float else (kind,)
    if type(value) not in accepted:
        raise UsageError(f"{setting.name} must be {_TYPE_NAMES[kind]}, not {value!r}", code="setting")
    if kind in (int, float) and value != setting.default and value < (least := setting.metadata.get("least", 0)):
        raise UsageError(f"{setting.name} must be at least {least}, not {value}", code="setting")
    if kind is float and not math.isfinite(value):
        raise UsageError(f"{setting.name} must be finite, not {value}; 0 means never", code="setting")
    if setting.name in ALLOWED:
        one_of(setting.name, value, ALLOWED[setting.name])
    return value


def one_of(what: str, value: str, allowed: Iterable[str]) -> str:
    """The value if it is allowed; else a UsageError that names the nearest allowed one."""
    allowed = list(allowed)
    if value in allowed:
        return value
    if _MEANT.get(value) in allowed:
        raise UsageError(f"unknown {what} {value!r}: did you mean {_MEANT[value]!r}?", code="setting")
    near = nearest(value, allowed)
    suggestion = f"did you mean {near!r}?" if near else f"one of {', '.join(allowed)}"
    raise UsageError(f"unknown {what} {value!r}: {suggestion}", code="setting")


def foreign_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables HYBRID_... in the environment that nothing here reads: another program's. UsageError for one that looks like
    a misspelt variable of this package."""
    known = {variable for variable, _ in _VARIABLES}.union(_OTHER_VARIABLES)
    unknown = sorted(name for name in environment if name.startswith(_PREFIX) and name not in known)
    for name in unknown:
        if meant := nearest(name, known, _PREFIX, 0.75):
            raise UsageError(f"the environment variable {name} is unknown: did you mean {meant}?", code="environment")
    return unknown


def switched_on(variable: str) -> bool:
    """The state of one of SWITCHES. UsageError if it is neither on nor off."""
    text = os.environ.get(variable, "")
    return _truth(variable, text) if text else SWITCHES[variable]


def _truth(variable: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _YES + _NO:
        return lowered in _YES
    raise UsageError(f"{variable}={text!r} is neither 1 nor 0 (nor true, yes, on, false, no, off)", code="environment")


def nearest(name: str, known: Iterable[str], prefix: str = "", likeness: float = 0.6) -> str | None:
    """The known name that was probably meant, or None. `prefix`: begins all names, and does not count as likeness."""
    import difflib  # only for error messages: commands start faster without it

    near = difflib.get_close_matches(name.removeprefix(prefix), [each.removeprefix(prefix) for each in known], 1, likeness)
    return prefix + near[0] if near else None


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """The number of bytes in `65536`, `64k`, `141G` or `141GiB`; units are powers of 1024. UsageError for any other text."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?) ?([kmgt]?)(?:(?<=[kmgt])i)?b?", text.strip().lower(), re.ASCII)
    if found is None:
        raise UsageError(f"{text!r} is not a number of bytes (such as 65536, 64k or 141G)", code="number")
    return int(float(found[1]) * _UNITS[found[2]])
