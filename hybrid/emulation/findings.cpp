// SPDX-License-Identifier: MIT
// Writes findings, and reports where a program was when a signal or the time limit ended it.
#include "runtime.h"

#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <set>
#include <tuple>

namespace cuda_on_cpu {

UnderWay under_way{"", "", 0};
uintptr_t first_byte, last_byte;
const char *constants, *constants_end;
char* arrays;

namespace {

size_t used;  // bytes of `arrays`
int seconds;
bool is_rank;  // of an MPI program
constexpr int FRAMES = 32, TIME_IS_UP = 124;
constexpr size_t MOST_TOLD = 120;  // findings
constexpr size_t SIGNAL_STACK = 64 << 10;
int findings_file = -1;
char secret[64];  // ends with a space

int find_own(dl_phdr_info* info, size_t, void* of_thread)
{
    uintptr_t own = reinterpret_cast<uintptr_t>(&first_byte), end = info->dlpi_addr;
    const char *constant = nullptr, *end_of_constants = nullptr;
    char *first = nullptr, *last = nullptr;
    for (const ElfW(Phdr)* each = info->dlpi_phdr; each < info->dlpi_phdr + info->dlpi_phnum; ++each) {
        const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + each->p_vaddr);
        if (each->p_type == PT_TLS && info->dlpi_tls_data) {
            first = static_cast<char*>(info->dlpi_tls_data);
            last = first + each->p_memsz;
        }
        if (each->p_type != PT_LOAD) continue;
        end = info->dlpi_addr + each->p_vaddr + each->p_memsz;
        if (each->p_flags & PF_W) continue;
        constant = constant ? constant : begin;
        end_of_constants = begin + each->p_memsz;
    }
    if (own < info->dlpi_addr || own >= end) return 0;
    *static_cast<std::pair<char*, char*>*>(of_thread) = {first, last};
    first_byte = info->dlpi_addr, last_byte = end;
    constants = constant, constants_end = end_of_constants;
    return 1;
}

constexpr int ENDING[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};

// The signal handler runs on a stack of its own, since the thread may have used up its stack. After a heap corruption it may abort
// itself, which ends the process.
void ended(int signal, siginfo_t* info, void*)
{
    for (int each : ENDING) ::signal(each, SIG_DFL);
    const Region* region = signal == SIGSEGV ? region_around(static_cast<char*>(info->si_addr)) : nullptr;
    tell("ended", "signal", signal, "frames", frames(), "number", region ? region->number : 0, "freed_by",
         region ? region->freed_by : "", where());
    if (signal == SIGALRM && is_rank) sleep(2);  // other ranks are about to report, and the launcher will kill them
    if (signal == SIGALRM) _exit(TIME_IS_UP);
    raise(signal);
}

__attribute__((constructor)) void begin()
{
    const char *path = getenv("HYBRID_LAB_FINDINGS"), *limit = getenv("HYBRID_LAB_SECONDS"), *given = getenv("HYBRID_LAB_MARK");
    if (!path || !limit || !given) return;
    find_segments();
    setvbuf(stdout, nullptr, _IOLBF, 0);  // keeps the order of lines, also before a crash
    seconds = atoi(limit);
    snprintf(secret, sizeof(secret), "%s ", given);
    unsetenv("HYBRID_LAB_MARK");
    const char *variable = getenv("HYBRID_LAB_RANK"), *rank = variable ? getenv(variable) : nullptr;
    is_rank = variable;
    std::string file = std::string(path) + "." + (rank ? rank : "0");
    findings_file = open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (int shared = open((file + ".arrays").c_str(), O_RDWR | O_CLOEXEC); shared >= 0) {
        void* memory = mmap(nullptr, MOST_OF_ARRAYS, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
        if (memory != MAP_FAILED) arrays = static_cast<char*>(memory);
        close(shared);
    }
    static char stack[SIGNAL_STACK];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = sizeof(stack);
    sigaltstack(&own, nullptr);
    void* frames[1];
    backtrace(frames, 1);  // loads libgcc, which a signal handler must not do
    struct sigaction action = {};
    action.sa_sigaction = ended;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int each : ENDING) sigaction(each, &action, nullptr);
    restart_clock();
    seconds_left = seconds * 2.0 / 3;
}

}  // namespace

std::pair<char*, char*> find_segments()
{
    std::pair<char*, char*> of_thread;
    dl_iterate_phdr(find_own, &of_thread);
    return of_thread;
}

void restart_clock()
{
    itimerval time = {{0, 0}, {seconds, 0}};
    setitimer(ITIMER_REAL, &time, nullptr);
}

bool has_room(size_t bytes) { return arrays && used + bytes <= MOST_OF_ARRAYS; }

void reserve(size_t bytes) { used = std::max(used, bytes); }

std::vector<size_t> handed_over(const void* from, size_t bytes)
{
    size_t place = used, whole = (bytes + 7) / 8 * 8;
    if (!has_room(whole)) return {0, 0};
    memcpy(arrays + place, from, bytes);
    used += whole;
    return {place, bytes};
}

void write_line(const std::string& text)
{
    std::string line = secret + text + "\n";
    if (findings_file >= 0 && write(findings_file, line.data(), line.size()) < 0) findings_file = -1;
}

void tell_note(const char* kind)
{
    if (is_new(kind)) tell("note", "kind", kind);
}

bool is_new(const std::string& kind, size_t one, size_t other)
{
    static auto& told = *new std::set<std::tuple<std::string, size_t, size_t>>;
    return told.size() < MOST_TOLD && told.insert({kind, one, other}).second;
}

std::string as_json(const std::string& text)
{
    std::string line = "\"";
    for (char each : text) {
        if (each == '"' || each == '\\') line += '\\';
        line += static_cast<unsigned char>(each) < ' ' ? ' ' : each;
    }
    return line + '"';
}

std::vector<unsigned> frames()
{
    void* found[FRAMES];
    std::vector<unsigned> offsets;
    for (int i = 0, count = backtrace(found, FRAMES); i < count; ++i)
        if (unsigned offset = offset_of(found[i])) offsets.push_back(offset);
    return offsets;
}

void tell_of_host(const char* kind, const void* instruction, const Members& members)
{
    if (!is_new(kind, reinterpret_cast<size_t>(instruction))) return;
    tell("finding", "kind", kind, "at", offset_of(instruction), "frames", frames(), "space", -1, members, where());
}

Members where()
{
    if (!current) return {"kernel", ""};
    auto triple = [](const auto& of) { return std::vector<unsigned>{of.x, of.y, of.z}; };
    return {"kernel", under_way.kernel,       "launched",   under_way.line,    "block", triple(block_index),
            "thread", triple(current->index), "block_size", triple(block_size)};
}

}  // namespace cuda_on_cpu
