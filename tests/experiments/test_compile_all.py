# SPDX-License-Identifier: MIT
"""What scripts/compile_kernels.py makes of the compiler's log; CI runs the compiler itself."""

from __future__ import annotations

import pytest

from experiments.common.tables import printed
from experiments.kernel_checks import compile_all, nvrtc, remainder_instances
from hybrid.errors import HybridError, UsageError
from hybrid.kernels.catalogue import CATALOGUE, ELEMENTS, Form, Kernel, Launch

LOG = """\
nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release
ptxas info    : 2 bytes gmem, 16 bytes cmem[4]
ptxas info    : Compiling entry function '_Z5tiledIfLi32EE' for 'sm_75'
ptxas info    : Function properties for _Z5tiledIfLi32EE
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 53 registers, used 1 barriers, 8192 bytes smem, 448 bytes cmem[0]
ptxas info    : Compile time = 11.914 ms
ptxas info    : Compiling entry function '_Z4wide' for 'sm_75'
ptxas info    : Function properties for _Z4wide
ptxas         .     40 bytes stack frame, 48 bytes spill stores, 52 bytes spill loads
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size
"""
PTX = """\
.weak .entry _Z5tiledIfLi32EE(
    .param .align 8 .b8 _Z5tiledIfLi32EE_param_0[32]
)
{
.weak .entry _Z4wide(
    .param .align 8 .b8 _Z4wide_param_0[32]
)
.maxntid 16, 16, 1
.minnctapersm 1
"""
ERRORS = """\
__nv_name_map(2): error: identifier "nosuch" is undefined
  #pragma nv_mangled_name nosuch<float>
                          ^
1 error detected in the compilation of "tiled.cu".
"""
FROM_REMAINDERS = {"norms.cu", "guard.cu", "remainders.cu", "products.cu", "products_mma.cu", "reconstruct.cu"}


def instance(target="sm_90", *, shared=0, threads=256, launched=True, expression="tiled<float, 32>"):
    launch = Launch("tiled.cu", expression, (1, 1), (threads, 1), shared)
    return compile_all.Instance("tiled32", "float32", target, launch, launched)


def test_the_log_says_what_each_kernel_takes():
    assert nvrtc.resources_in(LOG, PTX) == {
        "_Z5tiledIfLi32EE": nvrtc.Resources(registers=53, shared=8192),
        "_Z4wide": nvrtc.Resources(255, 0, stack=48, spill_stores=52, spill_loads=56, most_threads=256),
    }


def test_a_log_without_registers_is_no_all_clear():
    with pytest.raises(HybridError, match="registers of _Z4wide"):
        nvrtc.resources_in(LOG[: LOG.rindex("ptxas info")])


def test_of_an_error_the_first_line_is_kept():
    assert nvrtc.first_error(ERRORS) == '__nv_name_map(2): error: identifier "nosuch" is undefined'
    assert nvrtc.first_error(LOG) == ""


def test_old_targets_are_no_news():
    assert nvrtc.warnings_in(LOG) == frozenset()
    assert nvrtc.warnings_in('a.cu(3): warning #177-D: variable "x" was declared\n')


@pytest.mark.parametrize(("target", "capability"), [("sm_60", 60), ("sm_90a", 90), ("sm_120", 120), ("sm_100f", 100)])
def test_targets_have_capabilities(target, capability):
    assert compile_all.capability_of(target) == capability


@pytest.mark.parametrize("target", ["sm_20", "90", "sm_", "compute_90", "sm_90b"])
def test_unknown_targets_are_refused(target):
    with pytest.raises(UsageError, match=target):
        compile_all.capability_of(target)


def test_every_form_that_fits_is_compiled_with_every_width_and_the_first_is_launched():
    forms = (
        Form((64, 64), (128, 1), "64", 100, 80, by_width=True),
        Form((16, 16), (16, 16), "16"),
        Form((8, 8), (8, 8), "8", 0, 90),
    )
    kernel = Kernel("k", "cuda", "", "k.cu", {"float32": forms, "float64": forms[1:2]})
    assert [(i.launch.expression, i.launched) for i in compile_all.instances("sm_75", [kernel])] == [
        ("k<float, 16>", True),
        ("k<double, 16>", True),
    ]
    assert [(i.launch.expression, i.launched) for i in compile_all.instances("sm_86", [kernel])] == [
        ("k<float, 64, 1>", True),
        ("k<float, 64, 2>", True),
        ("k<float, 64, 4>", True),
        ("k<float, 16>", False),
        ("k<double, 16>", True),
    ]
    assert [i.launch.expression for i in compile_all.instances("sm_86", [kernel], widest=True)] == [
        "k<float, 64, 4>",
        "k<float, 16>",
        "k<double, 16>",
    ]


def test_the_catalogue_has_instances_for_all_targets_and_their_sources_exist():
    for target in compile_all.TARGETS:
        found = list(compile_all.instances(target))
        assert {i.kernel for i in found} <= {kernel.name for kernel in CATALOGUE if kernel.source}
        assert all((compile_all.KERNELS / i.launch.source).is_file() for i in found)
        assert any(i.kernel == "naive" for i in found)


def test_every_source_of_the_folder_is_compiled_for_every_target_that_it_supports():
    for target in compile_all.TARGETS:
        compiled = {i.launch.source for i in (*compile_all.instances(target), *compile_all.others(target))}
        too_new = {
            kernel.source
            for kernel in CATALOGUE
            if kernel.source and min(form.capability for forms in kernel.forms.values() for form in forms)
            > compile_all.capability_of(target)
        }  # fmt: skip
        too_new |= FROM_REMAINDERS if compile_all.capability_of(target) < 75 else set()
        too_new |= {"products.cu"} if target != "sm_90a" else set()
        assert compiled | too_new == {path.name for path in compile_all.KERNELS.glob("*.cu")}
        assert all((compile_all.KERNELS / i.launch.source).is_file() for i in compile_all.others(target))


def test_a_source_that_nothing_compiles_is_a_fault(tmp_path):
    assert compile_all.left_out() == []
    for name in ("naive.cu", "greeting.cu", "new.cu", "matrix.cuh"):
        (tmp_path / name).write_text("")
    (fault,) = compile_all.left_out(tmp_path)
    assert fault.startswith("new.cu: compiled for no GPU")


def test_the_greeting_is_judged_as_its_program_launches_it():
    (greeting,) = compile_all.others("sm_60", ["greeting"])
    assert (greeting.launch.expression, greeting.threads, greeting.launched) == ("greeting", 1024, True)
    assert compile_all.faults_of(greeting, nvrtc.Resources(registers=64)) == []
    assert compile_all.faults_of(greeting, nvrtc.Resources(registers=65)) == [
        "65 registers × 1024 threads, an SM has 65536 registers"
    ]


def test_the_check_is_compiled_for_all_types_and_all_groups_of_columns():
    checks = compile_all.others("sm_90", ["check"])
    templates = [f"row_sums<{{}}, {group}>" for group in (64, 512, 0)] + [
        f"subtract_product<{{}}, {aligned}>" for aligned in ("true", "false")
    ]
    wanted = {each.format(element): dtype for each in templates for dtype, element in ELEMENTS.items()}
    wanted |= {"column_totals": "", "compare_sums": "", "total_pieces": ""}
    assert {one.launch.expression: one.dtype for one in checks} == wanted
    assert len(checks) == len(wanted)
    assert all(one.launched and one.launch.source == "check.cu" for one in checks)
    assert {one.threads for one in checks if one.launch.expression.startswith("row_sums")} == {128}


@pytest.mark.parametrize("target", ["sm_70", "sm_75", "sm_80", "sm_90", "sm_90a", "sm_120"])
def test_products_from_remainders_are_compiled_where_they_can_be_launched(target):
    """A GPU of capability 9.0 launches products.cu, which is for sm_90a alone; the others are compiled for sm_90 as well."""
    found = compile_all.others(target, ["remainders"])
    launched = {one.launch.source for one in found if one.launched}
    assert launched == {
        "sm_70": set(),
        "sm_90": FROM_REMAINDERS - {"products.cu", "products_mma.cu"},
        "sm_90a": FROM_REMAINDERS - {"products_mma.cu"},
    }.get(target, FROM_REMAINDERS - {"products.cu"})
    assert {one.launch.source for one in found} - launched <= {"products_mma.cu"}
    assert len({one.launch.expression + one.launch.source for one in found}) == len(found)
    for source, moduli in (("remainders.cu", {1, 3, 5, 7, 14, 15}), ("reconstruct.cu", {3, 5, 7, 14, 15})):
        counts = {
            int(one.launch.expression[:-1].split(",")[1])
            for one in found
            if (one.launch.source, one.dtype) == (source, "float64")
        }
        assert counts == (moduli if launched else set())


def test_moduli_are_all_that_a_product_may_take():
    assert (remainder_instances.moduli_of("float64"), remainder_instances.moduli_of("float32")) == (
        [3, 5, 7, 14, 15],
        [3, 5, 7, 8],
    )


@pytest.mark.parametrize(
    ("registers", "threads", "fit"),
    [
        (255, 256, True),
        (255, 257, False),
        (128, 512, True),
        (129, 512, False),
        (64, 1024, True),
        (65, 1024, False),
        (255, 1, True),
    ],
)
def test_registers_of_a_block(registers, threads, fit):
    assert compile_all.registers_fit(registers, threads) is fit


@pytest.mark.parametrize(
    ("target", "limit"), [("sm_60", 49152), ("sm_75", 65536), ("sm_80", 166912), ("sm_86", 101376), ("sm_90a", 232448)]
)
def test_declared_and_launched_shared_memory_count_together(target, limit):
    used = nvrtc.Resources(registers=32, shared=1024)
    assert compile_all.faults_of(instance(target, shared=limit - 1024), used) == []
    assert compile_all.faults_of(instance(target, shared=limit - 1023), used) == [
        f"{limit + 1} bytes of shared memory, a block can have {limit}"
    ]


def test_spills_registers_and_threads_are_faults():
    (fault,) = compile_all.faults_of(instance(), nvrtc.Resources(registers=255, spill_loads=4))
    assert fault == "spills registers: 0 bytes stored, 4 loaded"
    (fault,) = compile_all.faults_of(instance(threads=512), nvrtc.Resources(registers=255))
    assert fault == "255 registers × 512 threads, an SM has 65536 registers"
    (fault,) = compile_all.faults_of(instance(), nvrtc.Resources(registers=32, most_threads=128))
    assert fault == "256 threads a block, its __launch_bounds__ allow 128"


def test_a_fault_of_many_instances_is_one_line_and_forms_never_launched_need_only_compile():
    wanted = [instance(expression=name) for name in ("one", "two", "three")]
    wanted.append(instance(expression="idle", launched=False))
    spilling = nvrtc.Resources(registers=255, spill_stores=4, spill_loads=4)
    compiled = nvrtc.Compiled({"three": nvrtc.Resources(registers=9), "idle": spilling}, {"one": "error: x", "two": "error: x"})
    assert compile_all.judge(wanted, {("tiled.cu", "sm_90"): compiled}) == [
        "tiled.cu, sm_90: one and 1 more: does not compile: error: x"
    ]


def test_the_table_is_aligned():
    lines = list(printed([compile_all.table([
        (instance(shared=64), nvrtc.Resources(53, 8192)),
        (instance(expression="x", launched=False), nvrtc.Resources(8)),
    ])]))  # fmt: skip
    assert lines[0].split() == ["kernel", "expression", "target", "registers", "shared", "stack", "spills"]
    assert lines[1].split() == ["tiled32", "tiled<float,", "32>", "sm_90", "53", "8192+64", "0", "0+0"]
    assert lines[2].endswith("not launched")
    assert lines[1].index("sm_90") == lines[2].index("sm_90")
