"""Everything that can be chosen without changing the product. Flag, then HYBRID_<NAME>, then default."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from hybrid.errors import UsageError

MiB = 1 << 20


_NAMES = {"device": ("auto", "cpu", "cuda", "emulate"), "transport": ("auto", "host", "peers", "nccl")}


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """How a product is carried out. Each field is also the environment variable HYBRID_<FIELD>."""

    device: str = _setting("auto", "auto, cpu, cuda or emulate (the GPU's kernels on the CPU)")
    kernel: str = _setting("auto", "a name of the kernel catalogue, or auto")
    check: bool = _setting(True, "verify the product with random vectors (or exactly, for integers)")
    threads: int = _setting(0, "CPU threads a rank; 0: what Slurm, OpenMP or the cores at hand say")
    transport: str = _setting(
        "auto", "auto, host, peers (ranks of a node fetch B from each other) or nccl (ranks of all nodes do)"
    )
    stall: float = _setting(60.0, "seconds without progress after which a rank counts as stuck; 0: never")
    message_bytes: int = _setting(256 * MiB, "largest message between nodes")
    panel_rows: int = _setting(0, "rows of A that arrive at once; 0: chosen by the plan")
    panel_columns: int = _setting(0, "columns of B that arrive at once; 0: chosen by the plan")
    slab_rows: int = _setting(
        0, "rows of B that arrive at once where it comes so, whatever panel_columns says; 0: chosen by the plan"
    )
    staged: bool = _setting(False, "on a CPU, copy chunks and panels into buffers as on a GPU")
    poison: bool = _setting(False, "fill the devices' buffers with NaN before each product")
    ranks_per_node: int = _setting(0, "pretend that every so many ranks are a node of their own; 0: real nodes")
    host_memory: int = _setting(0, "bytes of host memory a node may use; 0: what the system has available")
    gpu_memory: int = _setting(0, "bytes of each GPU that may be used; 0: what is free")

    @classmethod
    def gather(cls, flags: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> Settings:
        """Flags that are not None win over the environment, which wins over the defaults."""
        chosen: dict[str, Any] = {}
        for variable, known in _VARIABLES:
            text = environment.get(variable, "")
            if text:
                chosen[known.name] = _parse(variable, text, type(known.default))
            if flags.get(known.name) is not None:
                chosen[known.name] = flags[known.name]
            if known.name in chosen:
                _refuse_wrong(known, chosen[known.name])
        return cls(**chosen)

    def as_dict(self) -> dict[str, object]:
        return dict(vars(self))


_VARIABLES = tuple((f"HYBRID_{known.name.upper()}", known) for known in fields(Settings))


def _refuse_wrong(known: Field[Any], value: Any) -> None:
    kind = type(known.default)
    accepted = (float, int) if kind is float else (kind,)
    if type(value) not in accepted:
        raise UsageError(f"{known.name} must be {_KINDS[kind]}, not {value!r}")
    if kind in (int, float) and not value >= 0:
        raise UsageError(f"{known.name} must not be negative, not {value}")
    if known.name in _NAMES:
        one_of(known.name, value, _NAMES[known.name])
    if known.name == "message_bytes" and value == 0:
        raise UsageError("message_bytes must be at least 1")


def one_of(what: str, value: str, allowed: Iterable[str]) -> str:
    """`value` if it is allowed, else a UsageError that names the nearest allowed one."""
    allowed = list(allowed)
    if value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, 1, 0.5)
    suggestion = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(allowed)}"
    raise UsageError(f"unknown {what} {value!r}: {suggestion}")


_KINDS = {str: "a name", bool: "true or false", int: "a whole number", float: "a number"}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str) -> int:
    """`65536`, `64k`, `141G`, `141GiB`: units are powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d{1,2})?) ?([kmgt]?)(?:(?<=[kmgt])i)?b?", text.strip().lower(), re.ASCII)
    if found is None:
        raise UsageError(f"{text!r} is not a number of bytes (such as 65536, 64k or 141G)")
    return int(float(found[1]) * _UNITS[found[2]])


def _parse(name: str, text: str, kind: type) -> object:
    lowered = text.strip().lower()
    if kind is bool:
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise UsageError(f"{name}={text!r} is neither 1 nor 0")
    try:
        return parse_bytes(text) if name.endswith(("_BYTES", "_MEMORY")) else kind(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} is not a number") from None
