# SPDX-License-Identifier: MIT
"""A process that was forked while another thread of its parent is inside `multiply` multiplies as well."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.commands import ROOT

PROGRAM = """
import os, signal, sys, threading, time
import numpy, hybrid
from hybrid.core.forks import one_at_a_time

large = 600 if os.environ["HYBRID_DEVICE"] == "cpu" else 200  # of which a product gives work to a pool, whose lock a fork takes
# Before there are threads: NumPy's own products do not wait for a fork, and OpenBLAS does not bear one.
matrices = {size: numpy.random.default_rng(size).random((size, size)) for size in (60, large)}
products = {size: a @ a for size, a in matrices.items()}

def right(size=60):
    return numpy.allclose(hybrid.multiply(matrices[size], matrices[size]), products[size])

assert right()  # the parent has all that is made at a first call
going = True
def work():
    while going:
        assert right(large)
worker = threading.Thread(target=work, daemon=True)
worker.start()
for _ in range(10):
    while one_at_a_time.acquire(blocking=False):  # until the other thread is inside
        one_at_a_time.release()
        time.sleep(1e-4)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # kills it if it waits for ever
        os._exit(0 if right() and right() else 9)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0, ended
going = False
worker.join()  # Python's end under a thread that is inside a library is another matter
print("right")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("device", ["cpu", pytest.param("emulate", marks=pytest.mark.needs("compiler"))])
def test_a_child_forked_in_the_middle_of_a_product_multiplies(device):
    environment = {**os.environ, "HYBRID_DEVICE": device, "HYBRID_THREADS": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


LOADING = """
import os, signal, threading, time
import numpy, hybrid

a = numpy.random.default_rng(1).random((60, 60))
product = a @ a
workers = [threading.Thread(target=lambda: hybrid.multiply(a, a), daemon=True) for _ in range(2)]
for worker in workers:
    worker.start()
time.sleep({delay})
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if numpy.allclose(hybrid.multiply(a, a), product) else 9)
_, ended = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(ended) == 0, ended
for worker in workers:
    worker.join()
print("right")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.1])
def test_a_child_forked_while_another_thread_loads_the_modules_of_its_first_product_multiplies(delay):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADING.format(delay=delay)],
        env={**os.environ, "HYBRID_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
