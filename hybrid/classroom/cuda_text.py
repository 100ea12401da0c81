# SPDX-License-Identifier: MIT
"""Searches and rewrites the text of C and CUDA files. Rewriting keeps line numbers.

Texts are searched with comments and quoted text blanked; such a text is called `plain`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from hybrid.core.problem import record
from hybrid.emulation.build import HERE
from hybrid.emulation.child import own_headers
from hybrid.errors import UsageError

_COMMENT_OR_TEXT = re.compile(
    r"//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)|\bR\"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)\""
    r"|(?P<number>\b\d(?:'?\w)*)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)  # 1'000 is a number
_CONSTANT = re.compile(
    r"^[ \t]*(?:#[ \t]*define[ \t]+(?P<macro>\w+)[ \t]+(?P<text>[^\n]+)"
    r"|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?(?:int|unsigned|size_t)\s+(?P<listed>\w+\s*=[^;]+);)",
    re.MULTILINE,
)
_ENUM = re.compile(r"\benum\b[^{};]*\{([^{}]*)\}")
_INTEGER = r"(?:unsigned|signed|short|long|int|size_t|u?int(?:32|64)_t)"
_BASIC = rf"float|double|(?:(?:un)?signed[ \t]+)?char|u?int8_t|half|__half|{_INTEGER}(?:[ \t]+{_INTEGER})*"
_ALIAS = re.compile(
    rf"(?m)\btypedef\s+({_BASIC})\s+(\w+)\s*;|\busing\s+(\w+)\s*=\s*({_BASIC})\s*;"
    rf"|#[ \t]*define[ \t]+(\w+)[ \t]+({_BASIC})[ \t]*$"
)
_STRUCT = re.compile(r"\b(?:struct|class)\s*(?:__align__\s*\([^)]*\)\s*)?(\w*)\s*\{")
_FIELD = re.compile(r"([\w ]+?)\s*(\**)\s*(?:__restrict__\s+)?(\w+)\s*(?:,|$)")
_SHARED = re.compile(r"(?<!extern )\b__shared__\b([^;{}()]*);")
_ARRAY = re.compile(r"(\w+)\s*((?:\[[^\]]*\]\s*)+)")
_DYNAMIC_SHARED = re.compile(
    r"\bextern\s+(?:volatile\s+)?__shared__\s+(?:__align__\s*\([^)]*\)\s*)?(?:volatile\s+)?([\w: ]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_WORD = re.compile(r"\w+")
_VARIABLE = re.compile(r"\b__device__(?=[^(){};=]*[;=\[])")
_LINE = re.compile(r'^#line (\d+) "([^"\n]*)"$', re.MULTILINE)
_READ_ONLY = re.compile(r"\b__constant__(?=\s+(?:const|constexpr)\b)|(?<=\bconst)\s+__constant__\b")
_QUALIFIERS = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+((?:\b(?:__\w+__|inline|static|void|extern)\b[ \t]*)+)$", re.MULTILINE
)
_DIRECTIVE_OR_WORD = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*|\b\w+\b", re.MULTILINE)
_OF_DEVICE = re.compile(r"\b__(?:global|device)__\b")
INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_HEADERS_OF_DEVICE = {"cooperative_groups.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h"}  # NVRTC has them
_OF_OURS = {"cuda_fp16.h": "half.h", "cooperative_groups.h": "cooperative_groups.h", "mpi.h": "mpi_calls.h"}  # replacements
_OF_CUDA = {  # headers whose contents the CPU runtime has, or that it looks into
    *("cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_launch_parameters.h", "driver_types.h", "vector_types.h"),
    *("device_functions.h", "math_functions.h", "builtin_types.h", "math_constants.h", "vector_functions.h"),
    *("cuda_fp16.h", "cooperative_groups.h", "cooperative_groups/reduce.h"),
    *("cuda_pipeline.h", "cuda_pipeline_primitives.h", "mpi.h"),
}
# Lines outside of functions with host types, or with declarations of host functions.
_OF_HOST = re.compile(
    r"^[^\n{}#]*\b(?:std\b|cuda(?:Error|Event|Stream)_t|cudaDeviceProp|FILE)[^\n{}#]*;[ \t]*$"
    r"|^(?!.*\b__(?:device|global)__)[ \t]*\w[\w:<>,&* \t]*\([^{};()=\n]*\);[ \t]*$",
    re.MULTILINE,
)
_OF_THE_DEVICE = re.compile(r"__global__|__device__|\bconstexpr\b")
_NAMESPACE = re.compile(r"(?:namespace|extern)\b[^(]*$")
_CLASS = re.compile(r"\b(?:class|struct|union)\b[^()]*$")
_ALIGNED = re.compile(r"\b(?:__align__|alignas|__launch_bounds__)\s*\([^()]*\)|\b__attribute__\s*\(\(.*?\)\)", re.DOTALL)
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_HOST_ONLY = re.compile(r"<<<|\bcuda[A-Z]|\bstd\s*::")
_ALSO_OF_DEVICE = {"abs", "max", "min", "swap"}  # CUDA has these, too
_FOR_NVRTC = {  # replacements for C headers
    r"c?stdint(?:\.h)?": (
        "typedef int int32_t; typedef unsigned uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;\n"
    ),
    r"c?assert(?:\.h)?": "#ifndef assert\n#define assert(...) ((__VA_ARGS__) ? (void)0 : __trap())\n#endif\n",
}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of positive numbers
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIZE_OF, _BYTES = re.compile(r"sizeof\s*\(\s*(float|double|int)\s*\)"), {"float": 4, "double": 8, "int": 4}
# A kernel's name before <<<, with namespaces and template arguments.
_NAME = re.compile(r"(?:::\s*)?(?:\w+\s*::\s*)*\w+\s*(?:<(?:\([^()]*\)|<[^<>;]*>|[^;<>()])*>\s*)?$")


def blanked(text: str) -> str:
    """The text with comments and quoted text replaced by spaces, so that positions stay the same."""
    return _COMMENT_OR_TEXT.sub(lambda found: found[0] if found["number"] else spaces(found[0]), text)


def spaces(text: str) -> str:
    """The text with each character but newlines replaced by a space."""
    return re.sub(r"[^\n]", " ", text)


def after_bracket(plain: str, opening: int) -> int:
    """The position after the bracket that closes the one at `opening`; the end of the text if it is not closed."""
    begins, ends, depth = plain[opening], {"(": ")", "[": "]", "{": "}"}[plain[opening]], 0
    for place in range(opening, len(plain)):
        depth += (plain[place] == begins) - (plain[place] == ends)
        if not depth:
            return place + 1
    return len(plain)


def split(plain: str, brackets: str = "([{)]}") -> list[str]:
    """The parts between commas outside of brackets."""
    parts, depth, opening = [""], 0, brackets[: len(brackets) // 2]
    for letter in plain:
        depth += (letter in opening) - (letter in brackets and letter not in opening)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """The text after edits (begin, end, replacement)."""
    parts, place = [], 0
    for begin, end, instead in sorted(edits):
        parts += [text[place:begin], instead]
        place = end
    return "".join([*parts, text[place:]])


@record
class Function:
    """A function with a body, by positions in the text."""

    head: str  # the text before the body
    begin: int
    opening: int  # of the body's brace
    end: int
    is_member: bool

    @property
    def is_kernel_or_of_device(self) -> bool:
        return _OF_DEVICE.search(self.head) is not None

    @property
    def is_of_host(self) -> bool:
        """Whether only the host may call it."""
        return not _OF_THE_DEVICE.search(self.head)

    @property
    def is_of_device(self) -> bool:
        """Whether the host may not call it, and it is no kernel."""
        return "__device__" in self.head and not re.search(r"\b(?:__host__|__global__|constexpr)\b", self.head)

    @property
    def name(self) -> str:
        called = _CALLED.search(_ALIGNED.sub("", self.head))
        return called[1] if called else ""


def functions_in(text: str) -> Iterator[Function]:
    """The functions, also those in namespaces and types. Preprocessor directives before a function are not part of it."""
    plain, place, end_of_type = _DIRECTIVE.sub(lambda found: spaces(found[0]), blanked(text)), 0, 0
    while (opening := plain.find("{", place)) >= 0:
        head = plain[max(place, *(plain.rfind(mark, place, opening) + 1 for mark in ";{}")) : opening].lstrip()
        is_type = _CLASS.search(head) is not None
        end = after_bracket(plain, opening)
        place = opening + 1 if is_type or _NAMESPACE.match(head) else end
        end_of_type = max(end_of_type, end) if is_type else end_of_type
        if place == end and "(" in _ALIGNED.sub("", head):
            yield Function(head, opening - len(head), opening, end, opening < end_of_type)


def after_statement(plain: str, place: int) -> int:
    """The position after the statement that begins here, also after pragmas."""
    nested = re.compile(r"(?:\s*#[^\n]*\n)*\s*(?:(?:for|while|if)\s*\(|\{)").match(plain, place)
    if nested is None:
        return (plain.find(";", place) + 1) or len(plain)
    end = after_bracket(plain, nested.end() - 1)
    return end if plain[nested.end() - 1] == "{" else after_statement(plain, end)


def loops_in(text: str, name: str = "", words: str = "for|while") -> tuple[tuple[int, int], ...]:
    """The first and the last line of each loop in the function of this name, or in all. `words`: that begin one."""
    plain = blanked(text)
    return tuple(
        (plain.count("\n", 0, loop.start()) + 1, plain.count("\n", 0, after_statement(plain, loop.start())) + 1)
        for function in functions_in(text)
        if name in ("", function.name)
        for loop in re.compile(rf"\b(?:{words})\s*\(").finditer(plain, function.opening, function.end)
    )


def origin(text: str, place: int, name: str) -> tuple[str, int]:
    """The file and the line of a position, from the last #line before it. `name`: of the file in which the text begins."""
    before, line = 0, 1
    for found in _LINE.finditer(text, 0, place):
        before, line, name = found.end() + 1, int(found[1]), found[2]
    return name, line + text.count("\n", before, place)


def where(text: str, place: int, name: str) -> str:
    """The `origin` of a position, to begin a message."""
    return "{}, line {}".format(*origin(text, place, name))


def constants_in(plain: str) -> dict[str, int]:
    """Macros and constants with integer values from 0, also those computed from others, such as #define BLOCK (2 * TILE)."""
    found: dict[str, int] = {}
    texts = {each["macro"]: each["text"] for each in _CONSTANT.finditer(plain) if each["macro"]}
    for listed in [*(each["listed"] or "" for each in _CONSTANT.finditer(plain)), *_ENUM.findall(plain)]:
        texts |= dict(re.findall(r"(\w+)\s*=\s*([^,]+)", listed))
    plain_texts = {name: re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text) for name, text in texts.items()}
    while new := {
        name: value for name, text in plain_texts.items() if name not in found and (value := value_of(text, found)) is not None
    }:
        found |= new
    return {name: value for name, value in found.items() if value >= 0}


def aliases_in(plain: str) -> dict[str, str]:
    """Aliases for float, double and integer types."""
    found = {}
    for typedef, of_typedef, of_using, using, of_define, define in _ALIAS.findall(plain):
        found[of_typedef or of_using or of_define] = typedef or using or define
    return found


def structs_in(plain: str) -> dict[str, dict[str, str]]:
    """The types of the fields of each struct, without member functions."""
    structs, aliases = dict[str, dict[str, str]](), aliases_in(plain)
    for found in _STRUCT.finditer(plain):
        end = after_bracket(plain, found.end() - 1)
        also = re.match(r"\s*(\w+)\s*;", plain[end:])  # a typedef's name
        inner = plain[found.end() : end - 1]
        while (opening := inner.find("{")) >= 0:
            inner = f"{inner[:opening]}();{inner[after_bracket(inner, opening) :]}"
        fields: dict[str, str] = {}  # int and float* for int width, height; float* elements;
        for declaration in re.sub(r"\b(public|private|protected)\s*:", "", inner).split(";"):
            first = None if "(" in declaration else _FIELD.match(declaration.strip())
            if first is not None:
                kind = _WORD.sub(lambda word: aliases.get(word[0], word[0]), first[1].strip())
                for pointer, name in re.findall(r"(\*?)\s*(?:__restrict__\s+)?(\w+)\s*(?:,|$)", first.string[first.end(1) :]):
                    fields[name] = kind + pointer
        structs |= dict.fromkeys({found[1], also[1] if also else ""} - {""}, fields)
    return structs


def shared_arrays(plain: str) -> dict[str, tuple[str, ...]]:
    """The expressions of the extents of each __shared__ array."""
    found = {}
    for declaration in _SHARED.findall(plain):
        for name, extents in _ARRAY.findall(declaration):
            texts = tuple(text.strip() for text in re.findall(r"\[([^\]]*)\]", extents))
            if all(texts):
                found[name] = texts
    return found


_CAST_ARRAY = re.compile(  # ((float4*)A)[…]
    r"\(\s*(?:\([^()]*\*\s*\)|reinterpret_cast\s*<[^<>]*>)\s*\(?\s*(\w+)\s*\)+\s*(?=\[)"
)
_POINTER = re.compile(r"\*\s*(?:(?:const|__restrict__|__restrict)\s+)*(\w+)\s*=(?!=)\s*(?=([^;]*);)")
_BUILT_IN = r"(?:threadIdx|blockIdx|blockDim)\b"
_OF_GROUP = re.compile(r"(?:[\w:]+\s*(?:\(\s*\))?\s*\.\s*)(thread|group)_index\s*\(\s*\)")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)\n]*\))?[ \t]+(.+)$", re.MULTILINE)


@lru_cache(maxsize=8)
def with_indices(body: str, text: str) -> str:
    """A kernel's body with threadIdx, blockIdx and blockDim in place of macros, functions without parameters, and variables that
    stand for them, followed by the other macros and device functions that it uses. `text`: of the whole file."""
    plain = blanked(text)
    named: dict[str, str] = {}  # patterns and what replaces them
    called: dict[str, str] = {}
    for name, parameters, value in _MACRO.findall(plain):
        (called if parameters else named)[name if parameters else rf"\b{name}\b"] = value
    for each in functions_in(text):
        if each.is_of_host or "__global__" in each.head or not each.name:
            continue
        inner = plain[each.opening + 1 : each.end - 1]
        returned = re.fullmatch(r"\s*return\b([^;]*);\s*", inner)
        if returned and re.search(rf"\b{each.name}\s*\(\s*\)\s*(?:const\s*)?$", each.head):
            named[rf"\b{each.name}\s*\(\s*\)"] = f"({returned[1].strip()})"
        else:
            called[each.name] = inner
    while new := [name for name in called if re.search(rf"\b{name}\s*\(", body)]:
        body = "\n;".join([body, *(called.pop(name) for name in new)])
    for _ in range(3):  # a name may stand for another one
        body = _OF_GROUP.sub(lambda found: "threadIdx" if found[1] == "thread" else "blockIdx", body)
        for pattern, value in named.items():
            if re.search(_BUILT_IN, value) or _OF_GROUP.search(value) or any(re.search(each, value) for each in named):
                body = re.sub(pattern, lambda _, value=value: value, body)  # type: ignore[misc]
        of_variables = re.findall(rf"(?<![\w.])(\w+)\s*=\s*({_BUILT_IN}(?:\.[xyz])?)\s*(?=[,;])", body)
        for name, value in of_variables:
            body = re.sub(rf"(?<![\w.]){name}\b(?!\s*=(?!=))" + r"(?=\s*\.)" * ("." not in value), value, body)
    return body


def with_arrays(body: str, arrays: Sequence[str]) -> str:
    """A kernel's body with elements of these arrays in place of those of pointers into them: with float* a = A + i * n, a[k]
    becomes A[i * n + k]. ((float4*)A)[k], *(A + k) and an atomic operation's A + k become A[k], too."""
    place, named = 0, rf"(?<![\w.])({'|'.join(arrays) or '(?!)'})\b"
    body = _CAST_ARRAY.sub(r"\1", body)
    while found := _POINTER.search(body, place):
        name, text, place = found[1], split(found[2])[0], found.end()
        owners = re.findall(named, re.sub(r"\[[^\]]*\]", "", text))
        if len(owners) == 1 and not re.fullmatch(named, name):
            offset = re.sub(rf"\([^()]*\*\s*\)|\w+_cast\s*<[^<>]*>|[&\[\]]|{named}", " ", text)
            offset = " ".join(re.sub(r"\(\s*\)", "", offset).split()).strip(" +")
            element, first = f"{owners[0]}[{offset}{' + ' * bool(offset)}", f"{owners[0]} + {offset or 0}"
            rest = re.sub(rf"(?<![\w.]){name}\s*\[", lambda _, own=element: own, body[place:])  # type: ignore[misc]
            body = body[:place] + re.sub(rf"(?<![\w.]){name}\b", lambda _, own=first: own, rest)  # type: ignore[misc]
    inner = r"((?:[^()]|\((?:[^()]|\([^()]*\))*\))*?)"
    body = re.sub(rf"(\batomic\w+\s*\(\s*){named}\s*\+{inner}\s*(?=,)", r"\1&\2[\3]", body)
    return re.sub(rf"\*\s*(?:\(\s*{named}\s*\+{inner}\s*\)|{named}\s*\+([^;=]*)(?==))", r" \1\3[\2\4]", body)


def indices_of(name: str, body: str) -> list[str]:
    """The texts of all indices into this array in a kernel's body."""
    return re.findall(rf"(?<![\w.]){name}\s*\[((?:[^\[\]]|\[[^\[\]]*\])*)\]", body)


def extents_of(plain: str, constants: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    """The extents of each __shared__ array whose extents are known. `constants`: those of the text by default."""
    constants = constants_in(plain) if constants is None else constants
    values = {name: [value_of(text, constants) for text in texts] for name, texts in shared_arrays(plain).items()}
    known = {name: tuple(each for each in extents if each is not None) for name, extents in values.items()}
    return {name: extents for name, extents in known.items() if len(extents) == len(values[name])}


def element_text(name: str, number: int, extents: tuple[int, ...]) -> str:
    """The name of element `number` of an array, row by row, such as Ms[2][3]."""
    indices = []
    for extent in reversed(extents[1:]):
        indices.append(number % extent)
        number //= extent
    return name + "".join(f"[{index}]" for index in (number, *reversed(indices)))


def dynamic_arrays(plain: str) -> list[str]:
    """The file's names for dynamic shared memory."""
    return list(dict.fromkeys(name for _, name in _DYNAMIC_SHARED.findall(plain)))


def value_of(text: str, names: Mapping[str, int]) -> int | None:
    """The value of an expression of integers, these names and + - * / %; None for any other."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        return names[node.id if isinstance(node, ast.Name) else ""]

    text = _SIZE_OF.sub(lambda found: str(_BYTES[found[1]]), text)
    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, ZeroDivisionError, KeyError):
        return None


# --- what is compiled


def joined(texts: Mapping[Path, str], *, elsewhere: bool = False) -> str:
    """The first file's text, with each of its own headers inserted where it is first included.

    `texts`: of the file and its headers. `elsewhere`: whether headers outside of the file's folder are inserted, too; these may
    be somebody else's.
    """
    main = next(iter(texts))
    allowed = texts.keys() if elsewhere else {path.resolve() for path in own_headers(main.resolve().parent)} & texts.keys()
    seen: set[Path] = set()

    def of(file: Path) -> str:
        seen.add(file)
        text = texts[file]

        def included(found: re.Match[str]) -> str:
            own = (file.parent / found[3]).resolve() if found[3] else None
            if own is None or not own.is_file():
                return found[0]
            if own not in allowed:
                return f'{found[1]}"{own}"'  # the compiler may not read it, and says so
            if own in seen:
                return ""
            after = text.count("\n", 0, found.start()) + 2
            return f'\n#line 1 "{own.name}"\n{of(own)}\n#line {after} "{file.name}"'

        return INCLUDE.sub(included, text)

    return with_qualifiers(of(main))


def for_cpu(text: str) -> str:
    """The text for the emulated GPU, without includes of CUDA and C headers, which it has already. `text`: from `joined`."""
    return INCLUDE.sub(_not_own, with_dynamic_shared(with_device_variables(_without_host(text))))


def for_gpu(text: str, name: str) -> str:
    """The text for NVRTC, which has no C headers: their declarations for kernels are inserted. `name`: of the file."""

    def included(found: re.Match[str]) -> str:
        return found[0] if found[2][1:-1] in _HEADERS_OF_DEVICE else _not_own(found)

    headers = "".join(instead for header, instead in _FOR_NVRTC.items() if re.search(rf"#[ \t]*include[ \t]*<{header}>", text))
    kept = _without_host(text)
    plain = blanked(kept)
    of_host = [found.span() for found in _OF_HOST.finditer(plain)]
    outside = [
        (*span, spaces(kept[slice(*span)])) for span in of_host if plain.count("{", 0, span[0]) == plain.count("}", 0, span[0])
    ]
    kept = edited(kept, outside)
    return f'{headers}#line 1 "{name}"\n{INCLUDE.sub(included, kept)}'


def with_qualifiers(text: str, whole: str = "") -> str:
    """The text with macros for __device__ and __global__ replaced. `whole`: the text with its own headers, which may define
    some."""
    defined = {name: value.strip() for name, value in _QUALIFIERS.findall(blanked(whole or text)) if _OF_DEVICE.search(value)}
    words = _DIRECTIVE_OR_WORD.finditer(blanked(text)) if defined else ()
    return edited(text, ((*found.span(), defined[found[0]]) for found in words if found[0] in defined))


def with_dynamic_shared(text: str) -> str:
    """The text with a pointer in place of each extern __shared__ T name[]; outside of functions, each function that uses the name
    gets a pointer."""
    plain = blanked(text)
    functions = [(each.head, each.opening + 1, each.end) for each in functions_in(text) if each.is_kernel_or_of_device]
    inserted: list[tuple[int, int, str]] = []
    for declared in _DYNAMIC_SHARED.finditer(plain):
        kind, name = declared[1], declared[2]
        pointer = f"{kind}* {name} = static_cast<{kind}*>(cuda_on_cpu::dynamic_shared_memory());"
        if any(begin <= declared.start() < end for _, begin, end in functions):
            inserted.append((declared.start(), declared.end(), pointer))
            continue
        inserted.append((declared.start(), declared.end(), " " + "\n" * declared[0].count("\n")))
        for head, begin, end in functions:
            is_used = re.search(rf"\b{name}\b", plain[begin:end]) and declared.end() <= begin
            if is_used and not re.search(rf"\b{name}\b", head):
                inserted.append((begin, begin, f" {pointer}"))
    return edited(text, inserted)


def with_device_variables(text: str) -> str:
    """The text with __device_variable__ in place of the __device__ of variables, but not of functions and constants. It also
    loses __noinline__, since a macro of this name would break the C++ library's headers, and a second `static` of shared
    variables."""
    text = re.sub(r"\b__noinline__\b|\bstatic\s+(?=__shared__)|(?<=__shared__)\s+static\b", lambda word: spaces(word[0]), text)
    plain, edits = blanked(text), []
    for each in (*_VARIABLE.finditer(plain), *_READ_ONLY.finditer(plain)):
        declaration = plain[each.start() :].split(";", 1)[0].split("=", 1)[0]
        is_constant = each.re is _READ_ONLY or re.search(r"\bconst(expr)?\b", declaration)
        edits.append((*each.span(), " " if is_constant else "__device_variable__"))
    return edited(text, edits)


def functions_only_of(side: str, text: str) -> set[str]:
    """The names of functions that only this side, "host" or "device", may call. `text`: from `joined`."""
    names: dict[bool, set[str]] = {True: set(), False: _ALSO_OF_DEVICE.copy() if side == "host" else set()}
    for each in functions_in(text):
        if each.name and not each.is_member:
            names[each.is_of_host if side == "host" else each.is_of_device].add(each.name)
    return names[True] - names[False]


def _without_host(text: str) -> str:
    """The text with host functions blanked, since no C++ compiler accepts launches <<<…>>>; of member functions only the bodies
    of those that do what only the host can."""
    plain = blanked(text)
    left_out = [
        (each.opening + 1, each.end - 1) if each.is_member else (each.begin, each.end)
        for each in functions_in(text)
        if each.is_of_host and (not each.is_member or _HOST_ONLY.search(plain, each.opening, each.end))
    ]
    return edited(text, ((begin, end, spaces(text[begin:end])) for begin, end in left_out))


def _not_own(found: re.Match[str]) -> str:
    """The replacement for an include that `joined` left: the student's header that may not be read stays."""
    return found[0] if (found[3] or "").startswith("/") else _ours(found)


def _ours(found: re.Match[str]) -> str:
    """Our header's include in place of CUDA's; "" for a header whose content is always there."""
    name = _OF_OURS.get(found[2][1:-1])
    return f'{found[1]}"{HERE / name}"' if name else ""


# --- launches


@record
class LaunchText:
    """A launch kernel<<<configuration>>>(arguments)."""

    kernel: str  # its name, with a template's arguments
    configuration: str
    arguments: str
    begin: int  # positions in the text
    opening: int  # of <<<
    end: int


def launches_in(text: str, name: str) -> Iterator[LaunchText]:
    """The launches, in order. UsageError for an incomplete one. `name`: of the file."""
    plain, place = blanked(text), 0
    while (opening := plain.find("<<<", place)) >= 0:
        place = opening + 3
        if re.search(r"\boperator\s*$", plain[:opening]):
            continue
        statement = max(plain.rfind(mark, 0, opening) for mark in ";{}") + 1
        called = _NAME.search(plain, statement, opening)
        closing = _closing(plain, place)
        found = re.compile(r"\s*\(").match(plain, closing + 3) if closing >= 0 else None
        end = after_bracket(plain, found.end() - 1) if found else 0
        if called is None or found is None or plain[end - 1] != ")":
            text = f"{where(text, opening, name)}: after <<< a launch goes on as in kernel<<<grid, block>>>(arguments)"
            raise UsageError(text, code="lab-launch")
        kernel = " ".join(text[called.start() : opening].split())
        yield LaunchText(kernel, text[place:closing], text[found.end() : end - 1], called.start(), opening, end)
        place = end


def _closing(plain: str, place: int) -> int:
    """The position of the >>> that ends a configuration; -1 for none."""
    while place < len(plain) and plain[place] not in ";)]}":
        if plain.startswith(">>>", place):
            return place
        place = after_bracket(plain, place) if plain[place] in "([{" else place + 1
    return -1


def for_program(text: str, name: str, templates: Mapping[str, int]) -> str:
    """The text of a whole program for the emulated GPU, with launches as calls. `name`: of the file. `templates`: the number of
    each kernel's template parameters."""
    edits = []
    for launch in launches_in(text, name):
        kernel, called, given = launch.kernel, *launch.kernel.partition("<")[::2]
        quoted = kernel.replace("\\", "").replace('"', "")
        comma = ", " if blanked(launch.arguments).strip() else ""
        is_deduced = templates.get(called.strip(), 0) > (len(split(given.rpartition(">")[0], "([{<)]}>")) if given else 0)
        call = f".call_template([](auto&... of_kernel) {{ {kernel}(of_kernel...); }}" if is_deduced else f".call({kernel}"
        kept = launch.configuration + launch.arguments
        lines = "\n" * (text.count("\n", launch.begin, launch.end) - kept.count("\n"))
        launched = f'cuda_on_cpu::Launched("{quoted}", {launch.configuration}){lines}{call}{comma}{launch.arguments})'
        edits.append((launch.begin, launch.end, launched))
    text = with_dynamic_shared(with_device_variables(edited(text, edits)))
    return INCLUDE.sub(lambda found: _ours(found) if found[2][1:-1] in _OF_CUDA else found[0], text)
