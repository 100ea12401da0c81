# SPDX-License-Identifier: MIT
"""Parses a student's .cu file (kernels, structs, constants, the text to compile), and refuses what the CPU runtime or nvcc cannot
compile."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from pathlib import Path

from hybrid.classroom import cuda_text
from hybrid.classroom.cuda_text import INCLUDE, after_bracket, blanked, functions_in, joined, launches_in, split, where
from hybrid.core.problem import record
from hybrid.emulation.build import HERE
from hybrid.errors import HybridError, UsageError

_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?(?:(?:static|inline|extern\s+\"C\")\s+)*"
    r"(?:__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(?:static\s+)?void|void\s+__global__)\s+"
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)\s*\{"
)
_PARAMETER = re.compile(r"(?P<type>\w+(?:\s+\w+)*?)(?:\s*(?P<pointer>\*)\s*|\s+)(?P<name>\w+)\s*(?P<array>\[\s*\])?$")
_NOT_A_TYPE = {"const", "volatile", "__restrict__", "__restrict", "restrict"}
ELEMENTS = {
    "float": "float32", "double": "float64", "int": "int32", "half": "float16", "__half": "float16",
    "int32_t": "int32", "int8_t": "int8", "signed char": "int8",
}  # fmt: skip
REALS = ("float", "double")
SCALES = ("alpha", "beta")
_NUMBERS = {  # words in the names of integer types
    *("unsigned", "signed", "short", "long", "int", "size_t", "uint", "ulong"),
    *("int32_t", "uint32_t", "int64_t", "uint64_t"),
}
_MOST_BYTES = 1 << 20
# C++ headers that the compiled text keeps.
_STANDARD = frozenset({
    "algorithm", "array", "assert.h",
    "cassert", "chrono", "climits", "cmath", "complex", "cstdint", "cstdio", "cstdlib", "cstring",
    "ctime", "fstream", "functional", "iomanip", "iostream", "limits", "limits.h", "map", "math.h", "memory", "numeric", "random",
    "sstream", "stdexcept", "stdint.h", "stdio.h", "stdlib.h", "string", "string.h", "time.h", "tuple", "utility", "vector",
})  # fmt: skip


@record
class Parameter:
    name: str
    type: str  # of a number, of an array's elements, or a struct's name: without const and *
    is_pointer: bool
    is_const: bool = False

    @property
    def is_number(self) -> bool:
        return not self.is_pointer and set(self.type.split()) <= _NUMBERS

    @property
    def is_scale(self) -> bool:
        """Whether it is alpha or beta of C = alpha·A·B + beta·C."""
        return not self.is_pointer and self.type in REALS and self.name.lower() in SCALES

    def __str__(self) -> str:
        return f"{self.type}{'*' if self.is_pointer else ''} {self.name}".strip()


@record
class StudentKernel:
    name: str
    parameters: tuple[Parameter, ...]
    line: int
    body: str  # without comments
    template: tuple[str, ...] = ()  # names of template parameters
    whole: str = field(default="", repr=False)  # the file's text with its headers

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"

    @property
    def indices(self) -> str:
        """The body with threadIdx and the like in place of other names for them, and with what it calls. Of a batch, only the
        indices within a product."""
        body = cuda_text.with_indices(self.body, self.whole)
        return body.replace(f"blockIdx.{self.batch}", "0") if self.batch else body

    @property
    def batch(self) -> str:
        """The axis of blockIdx that numbers the products of a batch: multiples of it are in the indices of all three matrices,
        and it is multiplied by sizes alone. "" for one product."""
        arrays, sizes = ([each.name for each in self.parameters if each.is_pointer == which] for which in (True, False))
        body = cuda_text.with_arrays(cuda_text.with_indices(self.body, self.whole), arrays)
        for axis in "zxy" if len(arrays) == 3 else "":
            own = rf"blockIdx\.{axis}\b"
            if re.search(rf"{own}\s*(?:[/%]|\*(?!\s*(?:{'|'.join(sizes)})\b))|[\w)]\s*[*/%]\s*{own}", body):
                continue
            for _ in range(2):
                own = "|".join([own, *(rf"\b{name}\b" for name in re.findall(rf"(\w+)\s*=(?!=)[^;]*(?:{own})", body))])
            moved = {name: re.findall(rf"(?<![\w.]){name}\s*\+=([^;]*)", body) for name in arrays}  # pointers into a product
            if all(re.search(own, " ".join([*cuda_text.indices_of(name, body), *moved[name]])) for name in arrays):
                return axis
        return ""

    @property
    def accesses(self) -> str:
        """The body with the parameters' elements in place of those of pointers into them."""
        return cuda_text.with_arrays(self.body, [each.name for each in self.parameters if each.is_pointer])

    def instance(self, arguments: Sequence[str]) -> StudentKernel:
        """The instance with these template arguments."""
        values = dict(zip(self.template, arguments, strict=True))
        parameters = tuple(replace(each, type=values.get(each.type, each.type)) for each in self.parameters)
        return replace(self, parameters=parameters)


def kernels_of(text: str, whole: str = "") -> tuple[StudentKernel, ...]:
    """The kernels in a text. `whole`: the text with its own headers, which may define type aliases."""
    plain, aliases, kernels = blanked(text), cuda_text.aliases_in(blanked(whole or text)), []
    for found in _KERNEL.finditer(plain):
        line = plain.count("\n", 0, found.start("name")) + 1
        parameters = tuple(_parameter(text, aliases) for text in found["parameters"].split(",") if text.strip())
        body = plain[found.end() : after_bracket(plain, found.end() - 1)]
        template = tuple(text.partition("=")[0].split()[-1] for text in (found["template"] or "").split(",") if text.strip())
        kernels.append(StudentKernel(found["name"], parameters, line, body, template, whole or text))
    return tuple(kernels)


def _parameter(text: str, aliases: dict[str, str]) -> Parameter:
    """A parameter. One that cannot be parsed gets its text as type, which only matters if the kernel is launched."""
    words = " ".join(word for word in re.sub(r"([*\[])", r" \1 ", text).split() if word not in _NOT_A_TYPE)
    found = _PARAMETER.match(words)
    if found is None:
        whole = re.sub(r"\s*([\[\]])\s*", r"\1", words)
        return Parameter("", whole, is_pointer=False)
    kind = found["type"].removeprefix("struct ")
    return Parameter(
        found["name"], aliases.get(kind, kind), bool(found["pointer"] or found["array"]), bool(re.match(r"[^*]*\bconst\b", text))
    )


@record
class StudentFile:
    path: Path
    text: str
    texts: Mapping[Path, str]  # of the file and its own headers
    compiled: str  # for the CPU: the same lines without what only nvcc compiles
    for_gpu: str  # for NVRTC
    kernels: tuple[StudentKernel, ...]
    constants: dict[str, int] = field(default_factory=dict)
    structs: dict[str, dict[str, str]] = field(default_factory=dict)  # for each its fields' types
    headers: tuple[str, ...] = ()  # of the C++ library
    launch_comment: str = ""  # the text after "// lab:"
    has_main: bool = False

    @property
    def lines(self) -> Sequence[str]:
        return self.text.split("\n")


def read(path: str) -> StudentFile:
    """Read and parse a file. UsageError if it cannot be read."""
    return parsed(texts_of(path))


def texts_of(path: str) -> dict[Path, str]:
    """The texts of a file and, recursively, of its own headers."""
    texts: dict[Path, str] = {}

    def collect(file: Path) -> None:
        texts[file] = text_of(str(file))
        for _, _, quoted in INCLUDE.findall(texts[file]):
            header = (file.parent / quoted).resolve()
            if quoted and header.is_file() and header not in texts:
                collect(header)

    collect(Path(path))
    return texts


def parsed(texts: Mapping[Path, str]) -> StudentFile:
    """Parse the first of these files; the others are its own headers."""
    file, text = next(iter(texts.items()))
    whole = joined(texts)
    plain = blanked(whole)
    comment, included = re.search(r"//\s*lab:(.*)", text), re.findall(r"#[ \t]*include[ \t]*<(\w+(?:\.h)?)>", whole)
    return StudentFile(
        path=file,
        text=text,
        texts=texts,
        compiled=cuda_text.for_cpu(whole),
        for_gpu=cuda_text.for_gpu(whole, file.name),
        kernels=kernels_of(cuda_text.with_qualifiers(text, whole), whole),
        constants=cuda_text.constants_in(plain),
        structs=cuda_text.structs_in(plain),
        headers=tuple(name for name in dict.fromkeys(included) if name in _STANDARD),
        launch_comment=comment[1].strip() if comment else "",
        has_main=re.search(r"\bmain\s*\(", blanked(text)) is not None,
    )


def text_of(path: str) -> str:
    """The text of a file. UsageError if it cannot be read or is no text."""
    file = Path(path)
    try:
        if file.exists() and not file.is_file():
            what = "a folder" if file.is_dir() else "a pipe, a device or a socket"
            raise UsageError(f"{path} cannot be read: it is {what}, and no file", code="file-unreadable")
        content = file.read_bytes()
    except OSError as error:
        code = "file-missing" if isinstance(error, FileNotFoundError) else "file-unreadable"
        raise UsageError(f"{path} cannot be read: {error.strerror}", code=code) from None
    if len(content) > _MOST_BYTES or b"\0" in content:
        has = f"{len(content)} bytes, and a zero among them or more than {_MOST_BYTES}"
        raise UsageError(f"{path} is no source file: it has {has}", code="file-format")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n")


def exchanged(text: str, kernel: str) -> str:
    """The arguments that, by their names, the kernel's only launch exchanges, as "dB for a and dA for b"; "" for none."""
    name = kernel.partition("<")[0].strip()
    launches = [each for each in launches_in(text, "") if each.kernel.partition("<")[0].strip() == name]
    parameters = [[each.name for each in found.parameters] for found in kernels_of(text) if found.name == name]
    if len(launches) != 1 or len(parameters) != 1:
        return ""
    given = split(blanked(launches[0].arguments))
    # Names without their mark for the device: a for dA, d_a and a_d, m for Md.
    mark = re.compile(r"^(d|dev|device|gpu)(_|(?=[A-Z]))|(?<=\w)_?(d|dev|device|gpu)$")
    of_given, wanted = ([mark.sub("", each).lower() for each in names] for names in (given, parameters[0]))
    for one, other in combinations(range(len(wanted)), 2) if len(given) == len(wanted) else ():
        if of_given[one] == wanted[other] != wanted[one] == of_given[other]:
            return f"{given[one]} for {parameters[0][one]} and {given[other]} for {parameters[0][other]}"
    return ""


_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE)
_HEADERS = {
    r"cublas": "cuBLAS",
    r"GL/|glut": "OpenGL",
    r"cusparse|cusolver|cufft|cudnn|nccl": "a library of CUDA's",
    r"curand": "cuRAND",
    r"thrust/|cub/|cuda/": "Thrust, CUB and libcu++",
    r"cuda_bf16|cuda_fp8|mma\.h": "bfloat16, 8-bit numbers and matrix units",
    r"cooperative_groups/(?:memcpy_async|scan)": "copies and scans of cooperative groups",
}
_WORDS = {
    r"\btexture\s*<|\btex[123]D\w*\s*[(<]|\bcudaTextureObject_t\b|\bsurf[123]D": "textures",
    r"\bcublas[A-Z]\w*\s*\(": "cuBLAS",
    r"\bcurand\w*\s*\(": "cuRAND",
    r"\bcudaGraph(?!ics)\w+": "CUDA graphs",
    r"\bcudaGraphics\w+|\bcudaGL\w+": "OpenGL",
    r"\bthis_(?:multi_)?grid\b|\bgrid_group\b|\b(?:this_cluster|cluster_group)\b": "groups of several blocks",
}
_DEVICE_WORDS = {  # in functions that run on the device
    r"\b(?:malloc|free)\s*\(|\bnew\b|\bdelete\b": "{} within a kernel",
    r"\b__nv_bfloat162?\b": "{}",
    r"\b(?:nvcuda|wmma)\b": "matrix units (wmma)",
    r"\b(?:asm|__asm__)\b": "PTX instructions (asm)",
    r"\bstd::(?:vector|string|map|cout|cerr|endl)\b": "{} within a kernel",
    r"\bcudaGridDependencySynchronize\b|\bcudaDeviceSynchronize\b": "{} within a kernel",
}
_CONSTANT_WITHOUT_VALUE = re.compile(r"\b__constant__\s+[\w\s]+?\b(\w+)\s*(?:\[[^\]]*\]\s*)*;")
_CALL = re.compile(r"\b(cuda[A-Z]\w*)\s*\(")
_REMOVED = {  # by CUDA 13, with replacements
    "cudaThreadSynchronize": "cudaDeviceSynchronize",
    "cudaThreadExit": "cudaDeviceReset",
    "cudaThreadSetCacheConfig": "cudaDeviceSetCacheConfig",
    "cudaThreadSetLimit": "cudaDeviceSetLimit",
}
_REMOVED_IN = 13
_GLOBAL = re.compile(r"\b__global__\b(?:\s*__launch_bounds__\s*\([^()]*\))?([^();{}]*)\(")
_NOT_A_DEFINITION = {"return", "else", "case", "do"}


def refuse_unsupported(text: str, name: str) -> None:
    """UsageError, with the line, if the text uses unsupported CUDA. `name`: the file's."""
    plain = blanked(text)
    launches = [launch.opening for launch in launches_in(text, name)]

    def refuse(place: int, what: str) -> None:
        raise UsageError(f"{where(text, place, name)}: {what}: the CPU runtime does not have that", code="lab-unsupported")

    for found in _INCLUDED.finditer(text):
        what = next((what for pattern, what in _HEADERS.items() if re.match(pattern, found[1])), "")
        if what and plain[found.start() : found.end()].strip():
            refuse(found.start(), what)
    for pattern, what in _WORDS.items():
        if word := re.search(pattern, plain):
            refuse(word.start(), what)
    for function in filter(lambda each: each.is_kernel_or_of_device, functions_in(text)):
        if inner := [place for place in launches if function.opening < place < function.end]:
            refuse(inner[0], "a kernel that launches a kernel (dynamic parallelism)")
        for pattern, what in _DEVICE_WORDS.items():
            if word := re.compile(pattern).search(plain, function.opening + 1, function.end):
                refuse(word.start(), what.format(word[0].rstrip(" (")))
    known = set(re.findall(r"\bcuda[A-Z]\w*", (HERE / "host_api.h").read_text(encoding="utf-8")))
    for call in (each for each in _CALL.finditer(plain) if each[1] not in known):
        declared = re.findall(rf"(\w+)[\s*&]+{call[1]}\s*\([^;{{]*\)\s*[;{{]", plain)
        is_own = re.search(rf"#[ \t]*define[ \t]+{call[1]}\b", plain) or set(declared) - _NOT_A_DEFINITION
        if not is_own:
            refuse(call.start(), call[1])


def refuse_host_calls(text: str, name: str) -> None:
    """UsageError if a kernel or device function calls a host function. `text`: of the file `name`, with its own headers."""
    plain, hosts = blanked(text), cuda_text.functions_only_of("host", text)
    for function in filter(lambda each: each.is_kernel_or_of_device, functions_in(text) if hosts else ()):
        for called, place in _calls(hosts, plain, function.opening + 1, function.end):
            if not re.search(rf"\b{called}\s*=[^=]", plain[function.opening : function.end]):
                made = next(where(text, each.begin, name) for each in functions_in(text) if each.name == called)
                what = f"{called} is a function of the host: __device__ is missing before it ({made})"
                raise UsageError(f"{where(text, place, name)}: {what}", code="lab-unsupported")


def refuse_as_nvcc(text: str, name: str, cuda: int) -> None:
    """HybridError for errors that nvcc of this CUDA version reports. `text`: of the file `name`, with its own headers."""
    plain = blanked(text)

    def refuse(place: int, what: str) -> None:
        raise HybridError(f"{where(text, place, name)}: {what}", code="compile-failed")

    for found in _GLOBAL.finditer(plain):
        if not re.search(r"\bvoid\b", plain[max(plain.rfind(mark, 0, found.start()) for mark in ";}") + 1 : found.end()]):
            refuse(found.start(), "a kernel (__global__) returns void, and hands its results over in device memory")
    for name_of, place in _calls({kernel.name for kernel in kernels_of(text)}, plain, 0, len(plain)):
        refuse(place, f"{name_of} is a kernel: its launch has <<<grid, block>>> before the arguments")
    of_device = cuda_text.functions_only_of("device", text)
    for function in filter(lambda each: each.is_of_host and not each.is_member, functions_in(text)):
        for name_of, place in _calls(of_device, plain, function.opening, function.end):
            refuse(place, f"{name_of} is a function of the device: the host may call it with __host__ before it")
    for call in _CALL.finditer(plain) if cuda >= _REMOVED_IN else ():
        if instead := _REMOVED.get(call[1], ""):
            refuse(call.start(), f"CUDA 13 has no {call[1]}: {instead} takes its place (--cuda 12 takes the program as it is)")


def _calls(names: Collection[str], plain: str, begin: int, end: int) -> Iterator[tuple[str, int]]:
    """The name and position of each call of these functions, without launches and declarations."""
    pattern = re.compile(rf"(?<![\w.:>])({'|'.join(names)})\s*(?:<[^;(){{}}]*>\s*)?\(")
    for call in pattern.finditer(plain, begin, end) if names else ():
        before = re.search(r"(\w+)\s*$", plain[max(begin, call.start() - 80) : call.start()])
        if "<<<" not in call[0] and (before is None or before[1] in _NOT_A_DEFINITION):
            yield call[1], call.start()


def refuse_without_host(file: StudentFile, kernel: StudentKernel) -> None:
    """UsageError if the kernel reads constant memory without an initialiser: host code would fill it, and does not run."""
    for name in _CONSTANT_WITHOUT_VALUE.findall(blanked(file.compiled)):
        if re.search(rf"\b{name}\b", kernel.body):
            how = "run the whole program, without --kernel" if file.has_main else "give it a value where it is declared"
            what = f"{kernel.name} reads the constant memory {name}, which only host code fills: {how}"
            raise UsageError(what, code="lab-unsupported")
