# SPDX-License-Identifier: MIT
"""What a site runs of packaging/: the modulefile is loaded, and ReFrame's test reads what hybrid.accept writes."""

import importlib.util
import json
import operator
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from support.commands import ROOT, start

import hybrid

PACKAGING = ROOT / "packaging"


def test_the_modulefile_is_named_as_the_version():
    (path,) = (PACKAGING / "modulefiles" / "hybrid-runner").iterdir()
    assert path.name == hybrid.__version__
    assert path.read_text(encoding="utf-8").startswith("#%Module")


@pytest.fixture
def environment(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


@pytest.mark.needs("environment modules")
def test_the_module_sets_what_is_there(environment):
    set_by = module_load(environment)
    assert set_by["VIRTUAL_ENV"] == str(environment)
    assert set_by["PATH"].startswith(f"{environment}/bin:")
    assert set_by["LOADEDMODULES"] == f"hybrid-runner/{hybrid.__version__}"
    own = {name for name in set_by if not name.startswith("_")}
    assert own == {"VIRTUAL_ENV", "PATH", "LOADEDMODULES"}


@pytest.mark.needs("environment modules")
def test_a_module_without_an_environment_is_refused(tmp_path):
    done = modulecmd(tmp_path)
    assert f"hybrid-runner: {tmp_path} has no bin/python: " in done.stderr
    assert "HYBRID_RUNNER_ROOT" in done.stderr
    assert "VIRTUAL_ENV" not in done.stdout


def modulecmd(root):
    """Only modules of this folder are there, and none is loaded."""
    told = {"MODULEPATH": str(PACKAGING / "modulefiles"), "LOADEDMODULES": "", "_LMFILES_": ""}
    command = ["modulecmd", "bash", "load", "hybrid-runner"]
    return start(command, hidden=("HYBRID_", "VIRTUAL_ENV"), HYBRID_RUNNER_ROOT=str(root), **told)


def module_load(root):
    """What the shell would set."""
    return dict(re.findall(r"^(\w+)=(.*); export \1;$", modulecmd(root).stdout, re.MULTILINE))


# --- ReFrame


@pytest.fixture
def reframe_test(monkeypatch, tmp_path):
    """The test of packaging/reframe over stand-ins for the parts of ReFrame that it calls."""

    class Asserted(AssertionError):
        pass

    def assertion(holds):
        def check(*values, msg=""):
            if not holds(*values):
                raise Asserted(msg.format(*values))
            return True

        return check

    reframe, sanity, builtins = ModuleType("reframe"), ModuleType("reframe.utility.sanity"), ModuleType("reframe.core.builtins")
    reframe.simple_test = lambda kind: kind
    reframe.RunOnlyRegressionTest = object
    for name, holds in {"true": bool, "eq": operator.eq, "gt": operator.gt}.items():
        setattr(sanity, f"assert_{name}", assertion(holds))
    sanity.all, sanity.evaluate = all, lambda value: value
    builtins.variable = lambda _, value: value
    builtins.sanity_function = lambda function: function
    builtins.performance_function = builtins.run_after = lambda _: lambda function: function
    utility, core = ModuleType("reframe.utility"), ModuleType("reframe.core")
    reframe.utility, utility.sanity = utility, sanity
    for module in (reframe, utility, sanity, core, builtins):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("acceptance", PACKAGING / "reframe/acceptance.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    test = recipe.HybridAccept()
    test.stagedir, test.device = str(tmp_path), "cpu"
    test.job = SimpleNamespace(num_tasks=2)
    test.stderr = SimpleNamespace(evaluate=lambda: "rfm_job.err")
    test.ask()
    return test


@pytest.mark.launcher
def test_reframe_reads_what_the_acceptance_test_writes(reframe_test, tmp_path):
    with pytest.raises(AssertionError, match=r"no accept\.jsonl: see rfm_job\.err"):
        reframe_test.all_accepted()
    assert reframe_test.executable_opts[:2] == ["-m", "hybrid.accept"]
    done = start([sys.executable], *reframe_test.executable_opts, ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert reframe_test.all_accepted()
    record = json.loads((tmp_path / "accept.jsonl").read_text(encoding="utf-8"))
    product = record["multiply"][0]
    longest = max(rank["median"] for rank in product["ranks"])
    assert reframe_test.slowest_rank() == pytest.approx(2e-9 * product["rows"] * product["l"] * product["m"] / longest)

    wrong = {"subject": "speed", "verdict": "wrong", "text": "rank 1 takes 127 % longer", "remedy": ""}
    faults = {
        "speed: rank 1 takes 127 % longer": {"ok": False, "findings": [*record["findings"], wrong]},
        "1 ranks were started, and not 2": {"ranks": 1},
        "asked to end before every size was rotated once": {"rotations": 0},
    }
    for message, fault in faults.items():
        (tmp_path / "accept.jsonl").write_text(json.dumps(record | fault), encoding="utf-8")
        with pytest.raises(AssertionError, match=f"^{message}$"):
            reframe_test.all_accepted()
