# SPDX-License-Identifier: MIT
"""python -m hybrid.lab run: a kernel judged, or a whole program run, on the emulated GPU or on this machine's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybrid.commands import lab_cuda, lab_gpus
from hybrid.commands.parser import at_least, file_name
from hybrid.commands.streams import text_stream
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.classroom.case import Examination
    from hybrid.classroom.examination import Trials
    from hybrid.classroom.first_kernel import FirstKernel
    from hybrid.classroom.gpu_models import GpuModel
    from hybrid.classroom.on_gpu import OnGpu
    from hybrid.classroom.student_file import StudentFile

_PROGRAM_STALL = 60  # seconds
_MOST = 512  # of a size: a thread of the kernel takes microseconds on a CPU
_MOST_ON_GPU = 8192

_MORE = """\
The kernel multiplies A (n×l) by B (l×m) into C (n×m), in float, double, half or int. It takes three pointers, or structs with
width, height and elements, called A, B, C or M, N, P, else A before B, and C is what is written; and sizes by any usual name:
Width alone for square matrices, n l m, m n k as BLAS has them, wA, numBRows and the like; and BLAS's alpha and beta.

A kernel of arrays, one or two sizes and numbers that multiplies no matrices, as vectorAdd(a, b, c, n), is looked at for races,
bounds and values. Its result is compared where its name tells what it should be, as add, saxpy, sum, dot, transpose or histogram.

A file with main() and launches is run as a whole program on the CPU runtime, with the arguments after --, if none of the options
about a kernel is given. After its output come what is wrong with its kernels and with its use of memory, each with its line, and
the first CUDA call that failed. With --kernel NAME its host code is left out, and that kernel is judged as any other.

A line of the file may say how it is launched: // lab: grid((m + 15) / 16, (n + 15) / 16) block(16, 16) shared(0)
with x before y before z as in dim3, the kernel's own sizes or n, l and m, and the file's constants. Otherwise that is guessed,
and said. kernel(NAME) in that line chooses the kernel, as kernel(tiled<float, 16>), where --kernel does not.

With --device cuda the kernel is compiled by NVRTC and launched on this machine's GPU: C is compared, and its launches are timed.
What only the emulated GPU shows, races and accesses out of bounds, is not looked for then.

examples:
  python -m hybrid.lab run mine.cu
  python -m hybrid.lab run program.cu -- 10 15 8
  python -m hybrid.lab run mine.cu --kernel MatMulKernel --sizes 40 50 60
  python -m hybrid.lab run mine.cu --gpu K40c
  python -m hybrid.lab run mine.cu --device cuda --sizes 2048 2048 2048
  python -m hybrid.lab run mine.cu --kernel 'tiled<16>' --block 16,16 --let rowsOfA=n --json -

exit codes: 0 the kernel is right, or the program ends with 0 and no error was found; 1 it is wrong, or a failure; 2 wrong usage
"""


def add_to(
    commands: Any, add_launch: Callable[[argparse.ArgumentParser], None], add_json: Callable[[argparse.ArgumentParser], None]
) -> None:
    """The command's own parser."""
    run = commands.add_parser(
        "run", help="is a kernel, or a whole program, right?", description="Is this kernel, or this program, right?", epilog=_MORE
    )
    run.add_argument("file", type=file_name, metavar="FILE.cu", help="or element, tiled or multiply, the lectures' own")
    add_launch(run)
    add_json(run)
    run.add_argument(
        "--sizes",
        nargs=3,
        type=_size,
        metavar=("n", "l", "m"),
        help="on this shape alone (five: whole tiles, edges, tiny, long, wide)",
    )
    run.add_argument(
        "--device",
        choices=("emulate", "cuda"),
        default="emulate",
        help="cuda: launch the kernel on this machine's GPU, compare C, time it (emulate: look for its errors)",
    )
    run.add_argument("--ranks", type=at_least(1), metavar="N", help="processes of a whole program that includes mpi.h (2)")
    run.add_argument("--cuda", type=at_least(1), default=13, metavar="N", help="12: a program may call what CUDA 13 removed (13)")
    run.add_argument("--gpu", type=lab_gpus.model, metavar="NAME", help="occupancy and roofline on this GPU: K40c, P100, H200, …")
    run.add_argument("--picture", type=file_name, metavar="FILE.svg", help="draw where C is wrong, or with --gpu the roofline")
    run.add_argument("--html", type=file_name, metavar="FILE", help="write a page: source with counters, maps, steps, roofline")


def _size(text: str) -> int:
    size = at_least(1)(text)
    if size > _MOST_ON_GPU:
        raise UsageError(f"{size} is too large: at most {_MOST_ON_GPU}", code="sizes")
    return size


def work(options: argparse.Namespace, trials_of: Callable[..., Trials]) -> int:
    """Run a kernel or a program, and say what is wrong with it; returns the exit code. `trials_of`: the trials of a file's
    kernel."""
    from hybrid.classroom.compiled_text import joined
    from hybrid.classroom.examination import usual_shapes
    from hybrid.classroom.program import is_program
    from hybrid.classroom.report import as_record, told
    from hybrid.classroom.student_file import read
    from hybrid.classroom.unsupported import refuse_as_nvcc
    from hybrid.commands.lectures import example_or_file
    from hybrid.reporting import svg
    from hybrid.reporting.progress import Progress

    if options.picture:
        svg.refuse(options.picture)
    options.file = str(example_or_file(options.file))
    if options.device == "cuda":
        return lab_cuda.work(options, lambda file: trials_of(file, options, for_cpu=False))
    if options.sizes and max(options.sizes) > _MOST:
        raise UsageError(
            f"{max(options.sizes)} is too large for a CPU that runs every thread of the kernel: at most {_MOST}", code="sizes"
        )
    of_a_kernel = ("kernel", "grid", "block", "shared", "let", "sizes", "gpu", "html", "picture")
    about_a_kernel = any(getattr(options, name) for name in of_a_kernel)
    file = read(options.file)
    if file.has_main and not about_a_kernel:
        refuse_as_nvcc(joined(file.texts), file.path.name, options.cuda)
        if is_program(file):
            return _run_program(file, options)
    if options.arguments or options.ranks:
        raise UsageError(
            f"{options.file} is not run as a whole program, which has main() and launches: nothing can follow --, and no --ranks",
            code="option-combination",
        )
    if not (options.sizes or options.let or options.html or options.picture or options.gpu) and (first := _first(file, options)):
        return _run_first(first, options)
    trials = trials_of(file, options)
    kernel, meaning = trials.kernel, trials.meaning
    shapes = [tuple(options.sizes)] if options.sizes else usual_shapes(kernel, meaning, trials.launch, trials.file.constants)
    lab_cuda.refuse_impossible(trials, shapes[0])
    with Progress(part=lambda: f"run {trials.file.path.name}"):
        examination = trials.examined(shapes)
    gpu = _on_gpu(options.gpu, trials, examination) if options.gpu else None
    stream = text_stream(options.json)
    print("\n".join(told(trials.file, examination, gpu)), file=stream)
    if not examination.is_right:
        print(f"--seed {trials.seed} gives the same elements again", file=stream)
    if options.picture:
        from hybrid.classroom.lab_page import write_picture

        if not write_picture(options.picture, examination, gpu):
            print(f"{options.picture} is not written: no C is wrong, and the roofline is drawn with --gpu NAME", file=stream)
    if options.html:
        _write_page(options, trials, examination, gpu, lambda file: trials_of(file, options))
    if options.json:
        from hybrid.reporting import jsonl

        record = as_record(trials.file.path.name, examination, gpu)
        jsonl.write({"command": "lab run", "seed": trials.seed, **record}, options.json)
    return 0 if examination.is_right else 1


def _write_page(
    options: argparse.Namespace,
    trials: Trials,
    examination: Examination,
    gpu: OnGpu | None,
    anew: Callable[[StudentFile], Trials],
) -> None:
    from hybrid.classroom.lab_page import page_of
    from hybrid.classroom.steps_shown import small_steps
    from hybrid.reporting import html_page

    steps, why = small_steps(trials, anew)
    html_page.write(options.html, page_of(trials.file, examination, gpu, steps or why))


def _on_gpu(gpu: GpuModel, trials: Trials, examination: Examination) -> OnGpu:
    from hybrid.classroom.on_gpu import on_gpu
    from hybrid.classroom.registers import taken

    return on_gpu(gpu, taken(trials.file, trials.kernel, trials.instance, gpu.capability), examination)


def _first(file: StudentFile, options: argparse.Namespace) -> FirstKernel | None:
    from hybrid.classroom.examination import chosen
    from hybrid.classroom.first_kernel import first_kernel
    from hybrid.classroom.launch import within_comment

    file, kernel, instance = chosen(file, options.kernel or within_comment(file.launch_comment, "kernel"))
    return first_kernel(file, kernel, instance, {name: getattr(options, name) for name in ("grid", "block", "shared")})


def _run_first(first: FirstKernel, options: argparse.Namespace) -> int:
    from hybrid.classroom.report import told_of_first
    from hybrid.reporting import jsonl
    from hybrid.reporting.progress import Progress

    with Progress(part=lambda: f"run {first.file.path.name}"):
        cases = first.judged(options.stall or _PROGRAM_STALL)
    print("\n".join(told_of_first(first, cases)), file=text_stream(options.json))
    is_right = not any(found for _, found in cases)
    if options.json:
        records = [{"sizes": sizes, "findings": [each.as_record() for each in found]} for sizes, found in cases]
        about = {
            "command": "lab run",
            "file": first.file.path.name,
            "kernel": first.kernel.name,
            "computes": first.promised if first.is_plain else "",
        }
        jsonl.write({**about, "right": is_right, "cases": records}, options.json)
    return 0 if is_right else 1


def _run_program(file: StudentFile, options: argparse.Namespace) -> int:
    from hybrid.classroom.program import ran
    from hybrid.classroom.program_account import as_record, told
    from hybrid.reporting.progress import Progress

    stream = text_stream(options.json)
    seconds = options.stall or _PROGRAM_STALL
    with Progress(part=lambda: f"run {file.path.name}") as progress:

        def show(line: str) -> None:
            progress.close()  # what the program prints tells how far it is
            print(line, end="", file=stream, flush=True)

        account = ran(file, options.arguments, seconds, show, options.ranks)
    print("\n".join(told(account)), file=stream)
    if options.json:
        from hybrid.reporting import jsonl

        jsonl.write({"command": "lab run", **as_record(account, options.arguments)}, options.json)
    return 0 if account.is_right else 1
