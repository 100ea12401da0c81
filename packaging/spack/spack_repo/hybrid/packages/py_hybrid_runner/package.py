# SPDX-License-Identifier: MIT
"""For Spack 1.0 or newer. Built from a checkout, since no archive has an address yet; from its root, in an environment of Spack:

spack repo add packaging/spack/spack_repo/hybrid
spack add py-hybrid-runner@0.1.0 ^mpich        # on GPUs: py-hybrid-runner@0.1.0 +cuda cuda_arch=90
spack develop --no-clone --path "$PWD" py-hybrid-runner@0.1.0
spack install
"""

from spack.package import conflicts, depends_on, license, version
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHybridRunner(PythonPackage, CudaPackage):
    """Multiply big matrices with MPI ranks, CPU threads and CUDA GPUs."""

    import_modules = ["hybrid", "hybrid.api", "hybrid.commands"]

    license("MIT")
    version("0.1.0")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-numpy@2.0:2", type=("build", "run"))
    depends_on("py-mpi4py@4.1:4", type=("build", "run"))
    depends_on("py-threadpoolctl@3.5:3", type=("build", "run"))

    depends_on("py-cupy@14:14", when="+cuda", type=("build", "run"))
    depends_on("cuda@12:13", when="+cuda", type=("build", "run"))
    conflicts("cuda_arch=none", when="+cuda", msg="CuPy is compiled for given GPUs: cuda_arch=80,90")
    for _arch in CudaPackage.cuda_arch_values:
        depends_on(f"py-cupy+cuda cuda_arch={_arch}", when=f"+cuda cuda_arch={_arch}")
