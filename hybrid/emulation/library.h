// SPDX-License-Identifier: MIT
#pragma once
#include <dlfcn.h>
#include <stdint.h>

namespace cuda_on_cpu {

// The offset of an instruction in the shared library that it belongs to, for addr2line; 0 where that is not known.
inline unsigned long long offset_in_library(uintptr_t address)
{
    Dl_info library;
    if (!dladdr(reinterpret_cast<void*>(address), &library)) return 0;
    return address - reinterpret_cast<uintptr_t>(library.dli_fbase);
}

}  // namespace cuda_on_cpu
