# SPDX-License-Identifier: MIT
"""What stands for a GPU's array."""

from __future__ import annotations


class Address:
    """Bytes at an address, described as a GPU's arrays are."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
