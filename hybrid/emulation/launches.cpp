// SPDX-License-Identifier: MIT
// Launches of kernels. A launch runs in several orders of its threads, each from the same contents of memory; Python compares the
// results. Accesses are checked in the first order.
#include <string.h>

#include <set>

#include "runtime.h"

namespace cuda_on_cpu {

namespace {

size_t most_shared = USUAL_SHARED;

void allow_shared(size_t bytes) { most_shared = min(max(USUAL_SHARED, bytes), MOST_SHARED); }

constexpr int ORDERS = 3;
constexpr unsigned long long FEW_THREADS = 1 << 18;  // a launch with more threads, or with many reads, runs in one order

// A copy of device memory, unless that is too large.
class Contents {
public:
    explicit Contents(bool wanted)
    {
        size_t bytes = 0;
        for (const Region* each : live_regions(true)) bytes += each->bytes;
        if (!wanted || bytes > MOST_OF_ARRAYS) return;
        for (const Region* each : live_regions(true)) parts_.push_back({each->begin, {each->begin, each->begin + each->bytes}});
        auto [first, last] = memory_check::variables_of_device();
        parts_.push_back({first, {first, last}});
    }
    bool is_kept() const { return !parts_.empty(); }
    void put_back() const
    {
        for (const auto& [begin, bytes] : parts_) std::copy(bytes.begin(), bytes.end(), begin);
    }

private:
    std::vector<std::pair<char*, std::vector<char>>> parts_;
};

struct Operand {
    Region* region;
    char kind;
    std::vector<char> before;
};

std::vector<Operand> operands;
std::vector<long long> numbers;  // among the launch's arguments
std::vector<double> scales;
std::vector<std::vector<size_t>> product_arrays;  // handed over: the factors, C, C before, its writers
std::vector<char> first;                          // C after the first order
bool is_cut;  // a launch, whose results then are unknown

void add_pointer(const char* at, char kind)
{
    if (Region* host = pinned_around(at)) host->is_mapped = true;
    Region* region = region_around(at);
    if (region && !region->freed && region->begin == at) operands.push_back({region, kind, {}});
}

// A launch that reads two arrays and writes a third may be a product of matrices.
void keep_operands(const Given* given, size_t count)
{
    operands.clear(), numbers.clear(), scales.clear();
    for (const Given* each = given; each < given + count; ++each) {
        auto* at = static_cast<const char*>(each->at);
        auto as = [at](auto of_type, size_t offset = 0) { return memcpy(&of_type, at + offset, sizeof(of_type)), of_type; };
        if (strchr("fdil", each->kind)) add_pointer(as(static_cast<const char*>(nullptr)), each->kind);
        if (each->kind == 'n' && each->bytes >= 4) numbers.push_back(each->bytes == 8 ? as(0LL) : as(0));
        if (each->kind == 'x') scales.push_back(each->bytes == 8 ? as(0.0) : as(0.0f));
        if (each->kind != 's') continue;
        for (size_t i = 0; i + 8 <= each->bytes; i += 8) add_pointer(as(static_cast<const char*>(nullptr), i), 's');
        for (size_t i = 0; i + 4 <= each->bytes; i += 4) numbers.push_back(as(0, i));
    }
    size_t bytes = 0;
    for (const Operand& each : operands) bytes += 3 * each.region->bytes;
    if (operands.size() != 3 || !has_room(bytes)) return operands.clear();
    for (Operand& each : operands) each.before.assign(each.region->begin, each.region->begin + each.region->bytes);
}

// Reports a launch that may be a product of matrices, for `judged` in hybrid.classroom.mistakes; in later orders only a
// different C.
void tell_product(const dim3& grid, const dim3& block, int order)
{
    auto is_written = [](const Operand& each) { return each.region->writes.count > 0; };
    if (std::count_if(operands.begin(), operands.end(), is_written) != 1) return;
    auto c = std::find_if(operands.begin(), operands.end(), is_written);
    std::rotate(c, c + 1, operands.end());  // the last
    const Region &x = *operands[0].region, &y = *operands[1].region, &z = *operands[2].region;
    char kind = operands[2].kind == 's' ? (z.item == 8 ? 'd' : 'f') : operands[2].kind;
    unsigned item = kind == 'd' || kind == 'l' ? 8 : 4;
    if (z.item != item) return;
    auto handed = [item](const void* from, size_t bytes) { return handed_over(from, bytes / item * item); };
    if (!order) {
        std::vector<unsigned> writers(z.bytes / item);  // the instruction that wrote an element in this launch, else 0
        for (size_t i = 0; i < writers.size(); ++i) {
            const Cell& cell = z.cells[i * item / 4];
            writers[i] = memory_check::was_written(cell) ? max(1u, cell.write_at) : 0;
        }
        product_arrays = {handed(x.begin, x.bytes),
                          handed(y.begin, y.bytes),
                          {},
                          handed(operands[2].before.data(), z.bytes),
                          handed_over(writers.data(), writers.size() * 4)};
        first.assign(z.begin, z.begin + z.bytes);
    } else if (!has_room(z.bytes) || std::equal(first.begin(), first.end(), z.begin)) {
        return;
    }
    product_arrays[2] = handed(z.begin, z.bytes);
    auto operand = [&](const Region& of) {
        long long elements = of.bytes / item, reads = of.used_by == x.used_by ? of.reads.count : 0;
        return std::vector<long long>{of.number, elements, reads};
    };
    tell("product", "arrays", product_arrays, "type", std::string(1, kind), "numbers", numbers, "scales", scales, "operands",
         std::vector{operand(x), operand(y), operand(z)}, "grid", std::vector{grid.x, grid.y}, "block",
         std::vector{block.x, block.y}, "kernel", under_way.kernel, "launched", under_way.line, "order", order);
}

// The launch of a student's kernel on arrays from Python.
struct Trial {
    int orders, watch;
    unsigned long long seed;
    size_t item;
    struct Array {
        char* begin;
        size_t bytes;
    };
    std::vector<Array> arrays;

    void begins(int order) const
    {
        restart_clock();
        memory_check::checks = !order && watch != observers::REQUESTS;
        observers::launch_begins(order ? watch & observers::ELEMENTS : watch, item, item ? arrays.back().bytes / item : 0);
    }

    void ends(bool is_well) const
    {
        if (!is_well && !(watch & observers::TRACE)) return;
        std::vector<std::vector<size_t>> ended;
        for (const Array& each : arrays) ended.push_back(handed_over(each.begin, each.bytes));
        tell("outcome", "is_well", is_well, "ended", ended, observers::counted());
    }
};
Trial* trial_now;

// What the blocks that were left out have not written becomes 0.
void cut_short(const dim3& grid)
{
    if (!std::exchange(is_cut, true))
        tell("cut", "kernel", under_way.kernel, "line", under_way.line, "left_out", blocks_left_out, "blocks",
             1ull * grid.x * grid.y * grid.z);
    for (Region* each : live_regions()) {
        if (!memory_check::was_used(*each) || !each->writes.count || each->kind == Region::MANAGED) continue;
        for (size_t at = 0; at < each->bytes; at += 4)
            if (!each->cells[at / 4].written) memset(each->begin + at, 0, min(size_t{4}, each->bytes - at));
        mark_written(*each, 0, each->bytes);
    }
}

// Why a grid with a thread for each element of an array, of n or height × width elements, leaves out the last of them; "" if it
// does not.
std::string too_small_for(const Region& c, const dim3& grid, const dim3& block)
{
    size_t all = c.item ? c.bytes / c.item : 0, x = size_t{grid.x} * block.x, y = size_t{grid.y} * block.y;
    if (!all || c.writes.begin != c.begin || grid.z * block.z != 1) return "";
    auto is_told = [](size_t number) { return std::count(numbers.begin(), numbers.end(), static_cast<long long>(number)) > 0; };
    std::vector<size_t> widths(numbers.begin(), numbers.end());
    widths.push_back(static_cast<size_t>(std::sqrt(all)));
    for (size_t one : std::vector(numbers.begin(), numbers.end()))
        if (one && all % one == 0 && is_told(all / one)) widths.push_back(all);
    for (size_t width : widths) {
        size_t height = width ? all / width : 0, across = min(x, width), down = min(y, height), written = across * down;
        bool is_flat = height == 1, is_square = width == height,
             is_rounded = x >= width / block.x * block.x && y >= height / block.y * block.y;
        if (!height || width * height != all || written == all || !(is_flat || is_square || is_told(height)) || is_told(written))
            continue;
        if (!is_rounded && !(x >= height && y >= width)) continue;
        char* end = c.begin + ((down - 1) * width + across) * c.item;
        if (static_cast<size_t>(c.writes.count) != written || c.writes.end != end) continue;
        for (const Region* each : live_regions())  // as for a stencil, whose result is smaller
            if (memory_check::was_used(*each) && each->reads.count < 32 * c.writes.count && each->bytes == c.bytes &&
                each->reads.count && each->reads.end - each->begin > (is_flat ? end : c.begin + down * width * c.item) - c.begin)
                return "";
        std::string sizes = is_flat ? grouped(x) : grouped(x) + " × " + grouped(y);
        return "has " + sizes + " threads (x × y) for the " + grouped(width) + (is_flat ? "" : " × " + grouped(height)) +
               " elements of " + named(c) + ", and no kernel writes the last " + grouped(all - written) +
               (is_rounded ? ": is the grid rounded down?" : ": are its x and y exchanged?");
    }
    return "";
}

std::string product_text(const dim3& size)
{
    return std::to_string(size.x) + "×" + std::to_string(size.y) + (size.z == 1 ? "" : "×" + std::to_string(size.z));
}

}  // namespace

void Launched::run(void (*thread)(void*), void* argument, size_t bytes, const Given* given, size_t count)
{
    std::string name = "the launch of " + std::string(kernel_);
    Call call(name.c_str(), place_);
    ++launches;
    if (lasting) return (void)call.ends_with(lasting);
    if (!is_within(grid_, 0x7fffffff, 65535, 65535) || !is_within(block_, 1024, 1024, 64) || block_.x * block_.y * block_.z > 1024)
        return (void)call.ends_with(cudaErrorInvalidConfiguration, "its grid is " + product_text(grid_) +
                                                                       " blocks, where each number is 1 or more, and its block " +
                                                                       product_text(block_) + " = " +
                                                                       grouped(1ull * block_.x * block_.y * block_.z) +
                                                                       " threads, where 1 to 1,024 are possible, 64 in z");
    if (shared_ > most_shared)
        return (void)call.ends_with(cudaErrorInvalidValue, "it asks for " + grouped(shared_) +
                                                               " bytes of dynamic shared memory, where " + grouped(most_shared) +
                                                               " are possible: cudaFuncSetAttribute raises them to " +
                                                               grouped(MOST_SHARED));
    if (order::device_of(stream_) != chosen_device())
        return (void)call.ends_with(cudaErrorInvalidResourceHandle,
                                    "its stream is of device " + std::to_string(order::device_of(stream_)) +
                                        ", and the device chosen is " + std::to_string(chosen_device()));
    if (in_flight) return;  // nothing runs on a GPU after a kernel that failed
    show_printed();
    ForDevice now;
    under_way = {kernel_, place_.file, place_.line};
    if (!trial_now) keep_operands(given, count);
    for (double each : scales)
        if (!trial_now && !std::isfinite(each))
            tell("not finite", "value", std::to_string(each), "kernel", kernel_, Members(place_));
    order::begins(stream_, std::string(kernel_) + ", launched in line " + std::to_string(place_.line) + ",", place_);
    // The first launch of a line runs in each order of the threads; later ones, as in a loop, take turns.
    static auto& places = *new std::set<std::pair<std::string, int>>;
    bool is_first = places.insert({place_.file, place_.line}).second;
    int order = is_first ? 0 : (launches - 1) % ORDERS, end = trial_now ? trial_now->orders : is_first ? ORDERS : order + 1;
    const Contents begun(end > order + 1);
    if (!ends_well({thread, argument, bytes}, order, false)) return;
    unsigned long long threads = 1ull * grid_.x * grid_.y * grid_.z * block_.x * block_.y * block_.z;
    if (!begun.is_kept() || is_cut || (!trial_now && (!memory_check::has_few_reads() || threads > FEW_THREADS))) return;
    const Contents ended(true);
    const std::string shown = printed;
    for (++order; order < end; ++order) {
        begun.put_back();
        memory_check::checks = false;
        bool is_well = ends_well({thread, argument, bytes}, order, true);
        memory_check::checks = true;
        if (!is_well) return;
        printed = shown;
        ended.put_back();
    }
}

bool Launched::ends_well(const Work& work, int order, bool is_again) const
{
    if (trial_now) trial_now->begins(order);
    Launch launch{
        {grid_.x, grid_.y, grid_.z}, {block_.x, block_.y, block_.z}, shared_, trial_now ? trial_now->seed : 0, order, 0, 1};
    const char* error = cuda_on_cpu::run(launch, work);
    bool is_well = !error;
    memory_check::launch_ends();
    if (blocks_left_out) cut_short(grid_);
    memory_check::kernels_run = true;
    for (Region* each : live_regions(true)) {
        if (!memory_check::was_used(*each)) continue;
        if (each->reads.count) order::uses(each->reads.begin, each->reads.end, false, each);
        if (each->writes.count) order::uses(each->writes.begin, each->writes.end, true, each);
        if (each->writes.count) each->launched = place_.line;
        if (each->writes.count && is_well && !trial_now && !is_again) each->too_small = too_small_for(*each, grid_, block_);
        size_t cells = each->set.value ? each->bytes / 4 : 0;
        if (!std::any_of(each->cells, each->cells + cells, memory_check::was_only_read)) continue;
        tell("finding", "kind", "bytes", "number", each->number, "value", each->set.value, "item", each->set.item, "items",
             each->set.items, "latest", kernel_, "latest_line", place_.line, "kernel", "", each->set.place);
        each->set.value = 0;
    }
    order::launched();
    if (!is_well) {
        std::string why(error), kind = why.substr(0, why.find('|'));
        in_flight = kind == "illegal" ? cudaErrorIllegalAddress : kind == "assert" ? cudaErrorAssert : cudaErrorLaunchFailure;
        if (kind != "illegal")
            tell("finding", "kind", "stopped", "stop", kind, "text", why.substr(kind.size() + 1), "kernel", kernel_, "launched",
                 place_.line);
    }
    if (trial_now)
        trial_now->ends(is_well);
    else if (is_well && !is_cut)
        tell_product(grid_, block_, is_again ? order : 0);
    return is_well;
}

int trial(char** words, const char* kernel, void (*launch)(Launched&, void* const*, const long long*))
{
    long long given[12];
    for (long long& each : given) each = atoll(*++words);
    auto [x, y, z, block_x, block_y, block_z, shared, orders, seed, watch, item, count] = given;
    static Trial own{
        static_cast<int>(orders), static_cast<int>(watch), static_cast<unsigned long long>(seed), static_cast<size_t>(item), {}};
    trial_now = &own;
    seconds_left = INFINITY;
    std::vector<void*> of_launch;
    size_t place = 0;
    for (int i = 0; i < count; ++i, words += 2) {
        size_t bytes = atoll(words[1]);
        of_launch.push_back(nullptr);
        if (cudaMalloc(&of_launch.back(), bytes)) return 1;
        if (atoll(words[2])) (void)cudaMemcpy(of_launch.back(), arrays + place, bytes, cudaMemcpyHostToDevice);
        own.arrays.push_back({static_cast<char*>(of_launch.back()), bytes});
        place += (bytes + 7) / 8 * 8;
    }
    reserve(place);
    std::vector<long long> numbers;
    while (*++words) numbers.push_back(atoll(*words));
    allow_shared(shared);
    Launched launched(kernel, dim3(x, y, z), dim3(block_x, block_y, block_z), shared);
    launch(launched, of_launch.data(), numbers.data());
    return cudaDeviceSynchronize();
}

}  // namespace cuda_on_cpu

cudaError_t cudaFuncSetAttribute(cuda_on_cpu::AnyKernel, cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) cuda_on_cpu::allow_shared(value);
    return cudaSuccess;
}
