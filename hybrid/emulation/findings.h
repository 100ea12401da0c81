// SPDX-License-Identifier: MIT
// What a whole program tells the process that has started it: a line of JSON for each finding, in the file that the environment
// variable HYBRID_LAB_FINDINGS names, followed by a dot and the rank. Each begins with the secret mark of HYBRID_LAB_MARK and a
// space, which the program's own code does not get to see: what it writes there itself is no finding.
#pragma once
#include "cuda_on_cpu.h"

#include <string>

namespace cuda_on_cpu {

struct UnderWay {  // the launch whose kernel runs, or the last one
    const char *kernel, *file;
    int line;
};
extern UnderWay under_way;

void tell(const char* format, ...) __attribute__((format(printf, 1, 2)));
void tell_note(const char* kind);  // once
std::string quoted(const std::string& text);  // as a string of JSON
std::string as_json(Place place);              // members "file" and "line"

constexpr size_t MOST_OF_ARRAYS = 64 << 20;  // bytes
extern char* arrays;                           // memory that is shared with that process; null for none
bool has_room(size_t bytes);                   // there
void reserve(size_t bytes);                    // at its beginning
std::string handed_over(const void* from, size_t bytes);  // there: [place, bytes], as JSON
void restart_clock();                          // by which the time is up

extern uintptr_t first_byte, last_byte;  // of the program or the library in memory
extern const char *constants, *constants_end;
std::pair<char*, char*> find_segments();  // these; and the thread-local variables of the thread that calls
inline unsigned offset_of(const void* at)  // in that file, for addr2line; 0 of what is elsewhere
{
    uintptr_t address = reinterpret_cast<uintptr_t>(at);
    return address >= first_byte && address < last_byte ? static_cast<unsigned>(address - first_byte) : 0;
}

std::string where();  // members "kernel", "launched", "block", "thread" of the thread that runs, if there is one

}  // namespace cuda_on_cpu
