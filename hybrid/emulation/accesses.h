// SPDX-License-Identifier: MIT
// What code compiled with -fsanitize=thread calls at each access to memory, instead of ThreadSanitizer's own functions. The file
// that includes this defines what happens then, in an anonymous namespace:
//     void accessed(void* address, int bytes, bool writes, void* instruction, bool is_aligned)
// is_aligned: the address must be a multiple of `bytes`.
#pragma once

extern "C" {

#define HERE __builtin_return_address(0)
#define ACCESSES(bytes)                                                                                \
    void __tsan_read##bytes(void* address) { accessed(address, bytes, false, HERE, true); }            \
    void __tsan_write##bytes(void* address) { accessed(address, bytes, true, HERE, true); }            \
    void __tsan_unaligned_read##bytes(void* address) { accessed(address, bytes, false, HERE, false); } \
    void __tsan_unaligned_write##bytes(void* address) { accessed(address, bytes, true, HERE, false); } \
    void __tsan_volatile_read##bytes(void* address) { accessed(address, bytes, false, HERE, false); }  \
    void __tsan_volatile_write##bytes(void* address) { accessed(address, bytes, true, HERE, false); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* address, unsigned long bytes) { accessed(address, static_cast<int>(bytes), false, HERE, false); }
void __tsan_write_range(void* address, unsigned long bytes) { accessed(address, static_cast<int>(bytes), true, HERE, false); }
#undef ACCESSES
#undef HERE

// Other functions that instrumented code calls.
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
}
