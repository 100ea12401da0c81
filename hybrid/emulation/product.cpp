// SPDX-License-Identifier: MIT
#include "api_call.h"

#include <string>
#include <vector>

#include "findings.h"
#include "memory_check.h"

namespace cuda_on_cpu::product {

namespace {

struct Operand {
    Region* region;
    char kind;
    std::vector<char> before;
};

std::vector<Operand> operands;
std::string numbers, scales;   // of the launch's arguments, for JSON
std::string factors, others;   // which were handed over
std::vector<char> first;       // what C is in the first order

void add_pointer(const char* at, char kind)
{
    Region* region = region_around(at);
    if (region && !region->freed && region->begin == at) operands.push_back({region, kind, {}});
}

}  // namespace

void launch_begins(const Given* given, size_t count)
{
    operands.clear(), numbers.clear(), scales.clear();
    auto add = [](std::string& to, auto number) { to += (to.empty() ? "" : ", ") + std::to_string(number); };
    for (const Given* each = given; each < given + count; ++each) {
        auto* at = static_cast<const char*>(each->at);
        auto as = [at](auto of_type, size_t offset = 0) { return memcpy(&of_type, at + offset, sizeof(of_type)), of_type; };
        if (strchr("fdi", each->kind)) add_pointer(as(static_cast<const char*>(nullptr)), each->kind);
        if (each->kind == 'n' && each->bytes >= 4) add(numbers, each->bytes == 8 ? as(0LL) : as(0));
        if (each->kind == 'x') add(scales, each->bytes == 8 ? as(0.0) : static_cast<double>(as(0.0f)));
        if (each->kind != 's') continue;
        for (size_t i = 0; i + 8 <= each->bytes; i += 8) add_pointer(as(static_cast<const char*>(nullptr), i), 's');
        for (size_t i = 0; i + 4 <= each->bytes; i += 4) add(numbers, as(0, i));
    }
    size_t bytes = 0;
    for (const Operand& each : operands) bytes += 3 * each.region->bytes;
    if (operands.size() != 3 || !has_room(bytes)) return operands.clear();
    for (Operand& each : operands) each.before.assign(each.region->begin, each.region->begin + each.region->bytes);
}

void launch_ends(const dim3& grid, const dim3& block, int order)
{
    auto is_written = [](const Operand& each) { return each.region->writes.count > 0; };
    if (std::count_if(operands.begin(), operands.end(), is_written) != 1) return;
    auto c = std::find_if(operands.begin(), operands.end(), is_written);
    std::rotate(c, c + 1, operands.end());  // the last
    const Region &x = *operands[0].region, &y = *operands[1].region, &z = *operands[2].region;
    char kind = operands[2].kind == 's' ? (z.item == 8 ? 'd' : 'f') : operands[2].kind;
    unsigned item = kind == 'd' ? 8 : 4;
    if (z.item != item) return;
    auto handed = [item](const void* from, size_t bytes) { return handed_over(from, bytes / item * item); };
    if (!order) {
        std::vector<unsigned> writers(z.bytes / item);  // the instruction that has written an element; 0 where this launch has not
        for (size_t i = 0; i < writers.size(); ++i) {
            const Cell& cell = z.cells[i * item / 4];
            writers[i] = memory_check::was_written(cell) ? max(1u, cell.write_at) : 0;
        }
        factors = handed(x.begin, x.bytes) + ", " + handed(y.begin, y.bytes) + ", ";
        others = ", " + handed(operands[2].before.data(), z.bytes) + ", " + handed_over(writers.data(), writers.size() * 4);
        first.assign(z.begin, z.begin + z.bytes);
    } else if (!has_room(z.bytes) || std::equal(first.begin(), first.end(), z.begin)) {
        return;
    }
    std::string arrays = factors + handed(z.begin, z.bytes) + others;
    tell(
        "{\"event\": \"product\", \"arrays\": [%s], \"type\": \"%c\", \"numbers\": [%s], \"scales\": [%s], \"operands\": "
        "[[%d, %zu, %lld], [%d, %zu, %lld], [%d, %zu, %lld]], \"grid\": [%u, %u], \"block\": [%u, %u], \"kernel\": %s, "
        "\"launched\": %d, \"order\": %d}",
        arrays.c_str(), kind, numbers.c_str(), scales.c_str(), x.number, x.bytes / item, x.reads.count, y.number, y.bytes / item,
        y.reads.count, z.number, z.bytes / item, z.used_by == x.used_by ? z.reads.count : 0, grid.x, grid.y, block.x, block.y,
        quoted(under_way.kernel).c_str(), under_way.line, order);
}

}  // namespace cuda_on_cpu::product
