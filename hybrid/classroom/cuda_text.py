# SPDX-License-Identifier: MIT
"""Reads and rewrites the text of C and CUDA files. What is rewritten keeps its lines.

Comments and what is in quotes are blanked before a text is read; a text that is blanked is called `plain`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    r"|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?(?:int|unsigned|size_t)\s+(?P<name>\w+)\s*=\s*(?P<value>[^;,]+);)",
    re.MULTILINE,
)
_INTEGER = r"(?:unsigned|signed|short|long|int|size_t|u?int(?:32|64)_t)"
_BASIC = rf"float|double|{_INTEGER}(?:[ \t]+{_INTEGER})*"
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
_NAMED = re.compile(  # as #define KERNEL(name) __global__ void name
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)\((\w+)\)[ \t]+((?:\b(?:__\w+__|inline|static|void|extern)\b[ \t]*)+)\2[ \t]*$", re.MULTILINE
)
_DIRECTIVE_OR_WORD = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*|\b\w+\b", re.MULTILINE)
_OF_DEVICE = re.compile(r"\b__(?:global|device)__\b")
INCLUDE = re.compile(r"^([ \t]*#[ \t]*include[ \t]*)(<[^>\n]*>|\"([^\"\n]*)\")", re.MULTILINE)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_HEADERS_OF_DEVICE = frozenset(
    {"cooperative_groups.h", "cuda_fp16.h", "cuda_bf16.h", "mma.h", "cuda_pipeline.h"}
)  # as NVRTC has them
_OF_OURS = {"cuda_fp16.h": "half.h", "cooperative_groups.h": "cooperative_groups.h"}  # what stands in place of CUDA's headers
# Lines outside of functions: with types of host code, and declarations of its functions.
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
_ALSO_OF_DEVICE = {"abs", "max", "min", "swap"}  # which CUDA has, too
_FOR_NVRTC = {  # what stands in place of headers of C
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
# A kernel's name before <<<, with namespaces and a template's arguments.
_NAME = re.compile(r"(?:::\s*)?(?:\w+\s*::\s*)*\w+\s*(?:<(?:\([^()]*\)|<[^<>;]*>|[^;<>()])*>\s*)?$")


def blanked(text: str) -> str:
    """The text with spaces in place of comments and of what is in quotes. Every position keeps its place."""
    return _COMMENT_OR_TEXT.sub(lambda found: found[0] if found["number"] else spaces(found[0]), text)


def spaces(text: str) -> str:
    """As many spaces as the text has characters, with its line ends."""
    return re.sub(r"[^\n]", " ", text)


def after_bracket(plain: str, opening: int) -> int:
    """The position after the bracket that closes the one at `opening`; the end of the text where there is none."""
    begins, ends, depth = plain[opening], {"(": ")", "[": "]", "{": "}"}[plain[opening]], 0
    for place in range(opening, len(plain)):
        depth += (plain[place] == begins) - (plain[place] == ends)
        if not depth:
            return place + 1
    return len(plain)


def split(plain: str, brackets: str = "([{)]}") -> list[str]:
    """The parts between the commas that are in no brackets."""
    parts, depth, opening = [""], 0, brackets[: len(brackets) // 2]
    for letter in plain:
        depth += (letter in opening) - (letter in brackets and letter not in opening)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """The text with others in place of its parts from a position to another."""
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
    opening: int  # the body's brace
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
    def name(self) -> str:
        called = _CALLED.search(_ALIGNED.sub("", self.head))
        return called[1] if called else ""


def functions_in(text: str) -> Iterator[Function]:
    """The functions, also in namespaces and types. Directives before a function are no part of it."""
    plain, place, end_of_type = _DIRECTIVE.sub(lambda found: spaces(found[0]), blanked(text)), 0, 0
    while (opening := plain.find("{", place)) >= 0:
        head = plain[max(place, *(plain.rfind(mark, place, opening) + 1 for mark in ";{}")) : opening].lstrip()
        is_type = _CLASS.search(head) is not None
        end = after_bracket(plain, opening)
        place = opening + 1 if is_type or _NAMESPACE.match(head) else end
        end_of_type = max(end_of_type, end) if is_type else end_of_type
        if place == end and "(" in _ALIGNED.sub("", head):
            yield Function(head, opening - len(head), opening, end, opening < end_of_type)


def origin(text: str, place: int, name: str) -> tuple[str, int]:
    """The file and the line of a position, by the last #line before it. `name`: of the file in which the text begins."""
    before, line = 0, 1
    for found in _LINE.finditer(text, 0, place):
        before, line, name = found.end() + 1, int(found[1]), found[2]
    return name, line + text.count("\n", before, place)


def where(text: str, place: int, name: str) -> str:
    """The same, as the beginning of a message."""
    return "{}, line {}".format(*origin(text, place, name))


def constants_in(plain: str) -> dict[str, int]:
    """Macros and constants that are whole numbers, also those made of others, as #define BLOCK (2 * TILE)."""
    found: dict[str, int] = {}
    texts = {each["macro"] or each["name"]: each["text"] or each["value"] for each in _CONSTANT.finditer(plain)}
    plain_texts = {name: re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text) for name, text in texts.items()}
    while new := {
        name: value for name, text in plain_texts.items() if name not in found and (value := value_of(text, found)) is not None
    }:
        found |= new
    return {name: value for name, value in found.items() if value >= 0}


def aliases_in(plain: str) -> dict[str, str]:
    """Other names that the text gives to float, double and types of whole numbers."""
    found = {}
    for typedef, of_typedef, of_using, using, of_define, define in _ALIAS.findall(plain):
        found[of_typedef or of_using or of_define] = typedef or using or define
    return found


def structs_in(plain: str) -> dict[str, dict[str, str]]:
    """By the names of structs, the types of their fields; member functions are left out."""
    structs, aliases = {}, aliases_in(plain)
    for found in _STRUCT.finditer(plain):
        end = after_bracket(plain, found.end() - 1)
        also = re.match(r"\s*(\w+)\s*;", plain[end:])  # of a typedef
        inner = plain[found.end() : end - 1]
        while (opening := inner.find("{")) >= 0:
            inner = f"{inner[:opening]}();{inner[after_bracket(inner, opening) :]}"
        for name in {found[1], also[1] if also else ""} - {""}:
            fields = _fields(re.sub(r"\b(public|private|protected)\s*:", "", inner))
            structs[name] = {field: _WORD.sub(lambda word: aliases.get(word[0], word[0]), kind) for field, kind in fields.items()}
    return structs


def _fields(text: str) -> dict[str, str]:
    """The types of fields: {"width": "int", "height": "int", "elements": "float*"} for int width, height; float* elements;"""
    fields = {}
    for declaration in (each.strip() for each in text.split(";")):
        first = None if "(" in declaration else _FIELD.match(declaration)
        if first is not None:
            for pointer, name in re.findall(r"(\*?)\s*(?:__restrict__\s+)?(\w+)\s*(?:,|$)", declaration[len(first[1]) :]):
                fields[name] = first[1].strip() + pointer
    return fields


def shared_arrays(plain: str) -> dict[str, tuple[str, ...]]:
    """The texts of the extents of each __shared__ array, by its name."""
    found = {}
    for declaration in _SHARED.findall(plain):
        for name, extents in _ARRAY.findall(declaration):
            texts = tuple(text.strip() for text in re.findall(r"\[([^\]]*)\]", extents))
            if all(texts):
                found[name] = texts
    return found


def arrays_of_threads(text: str, first: int, body: str) -> list[tuple[str, int]]:
    """The name and line of each array without __shared__, from line `first` on, that a kernel with barriers writes at an index of
    its thread, as if others could read it there."""
    if not re.search(r"\b__syncthreads\b|\bsync\s*\(", body):
        return []
    of_thread = "|".join(["threadIdx", *re.findall(r"(\w+)\s*=(?!=)[^;,]*\bthreadIdx\b", body)])
    found = []
    for number, line in enumerate(blanked(text).split("\n")[first - 1 :], first):
        declared = re.match(
            r"\s*(?:volatile\s+)?(?:float|double|int|half|__half)\s+((?:\w+\s*(?:\[[^\]]*\]\s*)+[,;]\s*)+)$", line
        )
        for name in re.findall(r"(\w+)\s*\[[^;]*?\]\s*[,;]", declared[1]) if declared else ():
            if re.search(rf"\b{name}\s*(?:\[[^\]=;]*\])*\[[^\]=;]*\b(?:{of_thread})\b[^;=]*\]\s*=(?!=)", body):
                found.append((name, number))
    return found


def extents_of(plain: str, constants: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The extents of each __shared__ array, by its name; arrays whose extents are not known are left out."""
    values = {name: [value_of(text, constants) for text in texts] for name, texts in shared_arrays(plain).items()}
    known = {name: tuple(each for each in extents if each is not None) for name, extents in values.items()}
    return {name: extents for name, extents in known.items() if len(extents) == len(values[name])}


def element_text(name: str, number: int, extents: tuple[int, ...]) -> str:
    """The name of an array's element, as Ms[2][3]. Elements are numbered row by row."""
    indices = []
    for extent in reversed(extents[1:]):
        indices.append(number % extent)
        number //= extent
    return name + "".join(f"[{index}]" for index in (number, *reversed(indices)))


def dynamic_arrays(plain: str) -> list[str]:
    """The names by which the file calls dynamic shared memory."""
    return list(dict.fromkeys(name for _, name in _DYNAMIC_SHARED.findall(plain)))


def value_of(text: str, names: Mapping[str, int]) -> int | None:
    """The value of sums, differences, products, quotients and remainders of numbers and these names; None of anything else."""

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
    """The first file's text, in which each of its own headers stands where it is first included.

    `texts`: those of the file and of its headers. `elsewhere`: whether headers outside of the file's folder are included, too,
    which may be somebody else's.
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
                return f'{found[1]}"{own}"'  # which the compiler may not read, and says so
            if own in seen:
                return ""
            after = text.count("\n", 0, found.start()) + 2
            return f'\n#line 1 "{own.name}"\n{of(own)}\n#line {after} "{file.name}"'

        return INCLUDE.sub(included, text)

    return with_qualifiers(of(main))


def for_cpu(text: str) -> str:
    """The text for the emulated GPU, without includes of CUDA's and C's headers, which are there already. `text`: what `joined`
    returns."""
    return INCLUDE.sub(_not_own, with_dynamic_shared(with_device_variables(_without_host(text))))


def for_gpu(text: str, name: str) -> str:
    """The text for NVRTC. Includes of CUDA's headers stay; C's headers, which NVRTC does not have, are replaced by what they
    declare for kernels. `name`: of the file."""

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
    """The text with __device__ and __global__ in place of macros that stand for them. `whole`: the text with its own headers,
    which may define some."""
    for macro, _, value in _NAMED.findall(blanked(whole or text)):
        text = re.sub(rf"^([ \t]*[^\s#\n][^\n]*?|[ \t]*)\b{macro}\s*\(\s*(\w+)\s*\)", rf"\1{value}\2", text, flags=re.MULTILINE)
    defined = {name: value.strip() for name, value in _QUALIFIERS.findall(blanked(whole or text)) if _OF_DEVICE.search(value)}
    words = _DIRECTIVE_OR_WORD.finditer(blanked(text)) if defined else ()
    return edited(text, ((*found.span(), defined[found[0]]) for found in words if found[0] in defined))


def with_dynamic_shared(text: str) -> str:
    """The text in which each extern __shared__ T name[]; is a pointer to that memory. If it is declared outside of functions,
    each function that uses it gets its own pointer."""
    plain = blanked(text)
    functions = [(each.head, each.opening + 1, each.end) for each in functions_in(text) if each.is_kernel_or_of_device]
    inserted: list[tuple[int, int, str]] = []  # begin, end, and what stands there instead
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
    """The text in which variables with __device__ are placed where kernels may use them. Functions keep their __device__, and
    constants need none. Without __noinline__, which as a macro would be one in the C++ library's headers, too, and without a
    second `static` at shared variables."""
    text = re.sub(r"\b__noinline__\b|\bstatic\s+(?=__shared__)|(?<=__shared__)\s+static\b", lambda word: spaces(word[0]), text)
    plain, edits = blanked(text), []
    for each in (*_VARIABLE.finditer(plain), *_READ_ONLY.finditer(plain)):
        declaration = plain[each.start() :].split(";", 1)[0].split("=", 1)[0]
        is_constant = each.re is _READ_ONLY or re.search(r"\bconst(expr)?\b", declaration)
        edits.append((*each.span(), " " if is_constant else "__device_variable__"))
    return edited(text, edits)


def host_functions(text: str) -> set[str]:
    """The names of functions that only the host may call. `text`: what `joined` returns."""
    functions = [each for each in functions_in(text) if not each.is_member]
    of_device = {each.name for each in functions if not each.is_of_host}
    return {each.name for each in functions if each.is_of_host} - of_device - _ALSO_OF_DEVICE - {""}


def device_functions(text: str) -> set[str]:
    """The names of functions that the host may not call, but for kernels."""
    only = re.compile(r"^(?!.*\b(?:__host__|__global__|constexpr)\b).*\b__device__\b", re.DOTALL)
    functions = [(each.name, only.search(each.head)) for each in functions_in(text) if not each.is_member]
    return {name for name, is_only in functions if is_only} - {name for name, is_only in functions if not is_only} - {""}


def _without_host(text: str) -> str:
    """The text without host functions, whose launches <<<…>>> no C++ compiler takes, and without what only the host can do in
    member functions. Every line keeps its place."""
    plain = blanked(text)
    left_out = [
        (each.opening + 1, each.end - 1) if each.is_member else (each.begin, each.end)
        for each in functions_in(text)
        if each.is_of_host and (not each.is_member or _HOST_ONLY.search(plain, each.opening, each.end))
    ]
    return edited(text, ((begin, end, spaces(text[begin:end])) for begin, end in left_out))


def _not_own(found: re.Match[str]) -> str:
    """What an include becomes that is still there after `joined`: a header of the student's, which may not be read, stays."""
    return found[0] if (found[3] or "").startswith("/") else ours(found)


def ours(found: re.Match[str]) -> str:
    """The include of our header in place of CUDA's; "" for one whose content is always there."""
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
    """The launches, in the order of the text. UsageError where one is not complete. `name`: of the file."""
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
    """The position of the >>> that ends a configuration; -1 where there is none."""
    while place < len(plain) and plain[place] not in ";)]}":
        if plain.startswith(">>>", place):
            return place
        place = after_bracket(plain, place) if plain[place] in "([{" else place + 1
    return -1


def rewritten(text: str, name: str, templates: Mapping[str, int]) -> str:
    """The text for a C++ compiler. `name`: of the file; `templates`: how many parameters each kernel has that is a template."""
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
    return with_device_variables(edited(text, edits))
