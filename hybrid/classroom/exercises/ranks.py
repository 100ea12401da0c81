# SPDX-License-Identifier: MIT
# Rows over ranks.
# In Python, with mpi4py: rank 0 has A and B as NumPy arrays, the others have None. Give every rank rows of A and all of B, let
# it multiply them with product(rows, b), which stands for its GPU, and return C at rank 0. n need not be a multiple of the
# number of ranks.
# ? comm.bcast gives everybody what rank 0 has; comm.scatter gives each rank one part of a list; comm.gather collects.
# ? numpy.array_split cuts rows into as equal parts as can be, also where there are fewer rows than ranks.


def multiply(comm, a, b, product):
    if comm.rank == 0:
        return product(a, b)
    return None
