// SPDX-License-Identifier: MIT
// What instrumented code calls besides the functions for its accesses (memory_check.cpp): for atomic variables of host code, and
// for an index beyond an array whose size the compiler knows.
#include <set>

#include "findings.h"

namespace {

constexpr size_t MOST_FINDINGS = 60;
std::set<unsigned>& told = *new std::set<unsigned>;  // lines

}  // namespace

namespace cuda_on_cpu {

void undefined_shuffle(const char* file, int line)
{
    static auto& shuffles = *new std::set<int>;  // lines
    if (shuffles.insert(line).second) tell("{\"event\": \"undefined\", \"file\": %s, \"line\": %d}", quoted(file).c_str(), line);
}

}  // namespace cuda_on_cpu

extern "C" {

// Host code's atomic variables among them.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes); }
void* __tsan_memmove(void* to, const void* from, size_t bytes) { return memmove(to, from, bytes); }
void* __tsan_memset(void* to, int value, size_t bytes) { return memset(to, value, bytes); }
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

#define ATOMICS(bits)                                                                                                              \
    uint##bits##_t __tsan_atomic##bits##_load(const volatile uint##bits##_t* at, int)                                              \
    {                                                                                                                              \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                                              \
    }                                                                                                                              \
    void __tsan_atomic##bits##_store(volatile uint##bits##_t* at, uint##bits##_t value, int)                                       \
    {                                                                                                                              \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                                             \
    }                                                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile uint##bits##_t* at, uint##bits##_t* expected, uint##bits##_t value, \
                                                      int, int)                                                                    \
    {                                                                                                                              \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                        \
    }                                                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile uint##bits##_t* at, uint##bits##_t* expected, uint##bits##_t value,   \
                                                    int, int)                                                                      \
    {                                                                                                                              \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                        \
    }                                                                                                                              \
    uint##bits##_t __tsan_atomic##bits##_exchange(volatile uint##bits##_t* at, uint##bits##_t value, int)                          \
    {                                                                                                                              \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                              \
    FETCH(bits, add) FETCH(bits, sub) FETCH(bits, and) FETCH(bits, or) FETCH(bits, xor)
#define FETCH(bits, operation)                                                                                     \
    uint##bits##_t __tsan_atomic##bits##_fetch_##operation(volatile uint##bits##_t* at, uint##bits##_t value, int) \
    {                                                                                                              \
        return __atomic_fetch_##operation(at, value, __ATOMIC_SEQ_CST);                                            \
    }
ATOMICS(8)
ATOMICS(16)
ATOMICS(32)
ATOMICS(64)

// With -fsanitize=bounds: an index beyond an array whose size the compiler knows.
struct BoundsType {
    uint16_t kind, info;  // info: of an integer, 1 where it is signed, and twice the logarithm of its bits
    char name[1];
};
struct OutOfBounds {
    const char* file;
    unsigned line, column;
    const BoundsType *array, *index;
};

void __ubsan_handle_out_of_bounds(OutOfBounds* what, unsigned long index)
{
    unsigned bits = 1u << (what->index->info >> 1);
    long long value = static_cast<long long>(index);
    if (bits < 64) value = what->index->info & 1 ? value << (64 - bits) >> (64 - bits) : value & ((1ll << bits) - 1);
    if (told.size() < MOST_FINDINGS && told.insert(what->line).second)
        cuda_on_cpu::tell(
            "{\"event\": \"finding\", \"kind\": \"index\", \"file\": %s, \"line\": %u, \"column\": %u, \"index\": %lld, "
            "\"type\": %s, %s}",
            cuda_on_cpu::quoted(what->file).c_str(), what->line, what->column, value,
            cuda_on_cpu::quoted(what->array->name).c_str(), cuda_on_cpu::where().c_str());
    if (cuda_on_cpu::current) cuda_on_cpu::stop_thread("illegal", "index");
}
void __ubsan_handle_out_of_bounds_abort(OutOfBounds* what, unsigned long index) { __ubsan_handle_out_of_bounds(what, index); }
}
