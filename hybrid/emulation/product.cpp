// SPDX-License-Identifier: MIT
// A launch has the shape of a product if it reads two arrays and writes a third, and their sizes are those of A, B and C for some
// n, l and m that are among its numbers or follow from its grid. What it wrote may be their product in any layout, scaled, or added
// to what was there. If it is not, the launch is accused only where a part of C is the product, a known mistake explains all of it,
// or the kernel's name says that it multiplies: programs may compute something else.
#include "product.h"

#include <ctype.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "api_call.h"
#include "findings.h"
#include "memory_check.h"

namespace cuda_on_cpu::product {

int compared, right;

namespace {

constexpr size_t MOST_KEPT = 64 << 20;  // bytes of all arrays before the launch
constexpr long long MOST_PRODUCTS = 4 << 20;  // of the elements that are looked at
constexpr size_t FEW = 64;

struct Operand {
    Region* region;
    char kind;
    std::vector<char> before;
};

std::vector<Operand> operands;
std::vector<long long> numbers;
std::vector<double> scales;

void add_pointer(const char* at, char kind)
{
    Region* region = region_around(at);
    if (region && !region->freed && region->begin == at) operands.push_back({region, kind, {}});
}

struct Sample {  // an element of C
    long long row, column;
    double got, old, sum, size;  // what is there now, and was before; the product, and the sum of its terms' absolute values
    bool is_right;
};

struct Sizes {
    long long n, l, m;
};

// Each matrix may lie row by row or column by column: a layout has a bit for each.
template <typename T>
struct Product {
    const T *x, *y;
    const Operand* c;
    Sizes of;
    int layout = 0;
    std::vector<Sample> samples = {};

    size_t place(const Sample& at) const { return layout & 4 ? at.column * of.n + at.row : at.row * of.m + at.column; }

    // All elements that the launch has written, or corners, edges and some of the others.
    void choose()
    {
        samples.clear();
        long long all = of.n * of.m, step = max(1LL, all / std::max<long long>(FEW, MOST_PRODUCTS / of.l));
        const Cell* cells = c->region->cells;
        auto add = [&](long long row, long long column) {
            Sample each{row, column, 0, 0, 0, 0, false};
            size_t at = place(each);
            if (!written_by_launch(cells[at * sizeof(T) / 4])) return;
            each.got = static_cast<double>(reinterpret_cast<const T*>(c->region->begin)[at]);
            each.old = static_cast<double>(reinterpret_cast<const T*>(c->before.data())[at]);
            samples.push_back(each);
        };
        for (long long i = 0; i < all; i += step) {
            add(i / of.m, i % of.m);
            if (step == 1) continue;
            add(of.n - 1, i % of.m);
            add(i % of.n, of.m - 1);
        }
    }

    // Sums the terms `from` to `end` of each sample; how many agree, of those that are not 0. `first`, `second`: the factors.
    size_t compute(long long from, long long end, const T* first, const T* second, size_t most = ~0ul)
    {
        size_t count = 0;
        for (Sample& each : samples) {
            if (!most--) break;
            each.sum = each.size = 0;
            for (long long k = from; k < end; ++k) {
                double one = static_cast<double>(first[layout & 1 ? k * of.n + each.row : each.row * of.l + k]);
                double two = static_cast<double>(second[layout & 2 ? each.column * of.l + k : k * of.m + each.column]);
                each.sum += one * two;
                each.size += fabs(one * two);
            }
            each.is_right = agrees(each, 1, 0);
            count += each.is_right && each.size > 0;
        }
        return count;
    }

    bool agrees(const Sample& each, double alpha, double beta) const
    {
        double added = beta ? beta * each.old : 0, expected = alpha * each.sum + added;
        if (std::is_same_v<T, int>) return static_cast<int64_t>(each.got) << 32 == static_cast<int64_t>(expected) << 32;
        double unit = std::is_same_v<T, float> ? FLT_EPSILON : DBL_EPSILON;
        return fabs(each.got - expected) <= 4 * unit * static_cast<double>(of.l + 2) * (fabs(alpha) * each.size + fabs(added));
    }

    bool all_agree(double alpha, double beta) const
    {
        return std::all_of(samples.begin(), samples.end(), [&](const Sample& each) { return agrees(each, alpha, beta); });
    }

    // Whether it is the product times a number, or added to what was there, or without what is negative.
    bool is_scaled() const
    {
        if (all_agree(1, 0) || all_agree(1, 1)) return true;
        const Sample& top =
            *std::max_element(samples.begin(), samples.end(), [](auto& a, auto& b) { return fabs(a.sum) < fabs(b.sum); });
        double alpha = top.got / top.sum, least = top.sum;
        for (const Sample& each : samples) least = min(least, each.sum);
        for (double beta : scales)
            for (double scale : scales)
                if (all_agree(scale, beta)) return true;
        // Of matrices whose elements are all alike a part of the sum is a multiple of it, too.
        if (std::isfinite(alpha) && alpha != 0 && top.sum - least > 0.01 * fabs(top.sum) && all_agree(alpha, 0)) return true;
        return std::all_of(samples.begin(), samples.end(),
                           [&](const Sample& each) { return each.sum > 0 ? each.is_right : each.got == 0; });
    }

    bool is_elementwise() const
    {
        if (of.n != of.l || of.l != of.m) return false;
        auto all = [&](auto operation) {
            return std::all_of(samples.begin(), samples.end(), [&](const Sample& each) {
                size_t at = place(each);
                double is = static_cast<double>(x[at]), other = static_cast<double>(y[at]);
                return fabs(operation(is, other) - each.got) <= 4 * FLT_EPSILON * (fabs(is) + fabs(other) + fabs(each.got));
            });
        };
        return all([](double a, double b) { return a * b; }) || all([](double a, double b) { return a + b; }) ||
               all([](double a, double b) { return a - b; }) || all([](double a, double b) { return a / b; });
    }

    // A mistake that explains all of C; "" for none. `x_name`, `y_name`: placeholders.
    std::string explained(const std::string& x_name, const std::string& y_name)
    {
        auto is_sum = [&](long long from, long long end, const T* first, const T* second) {
            for (size_t some : {FEW, samples.size()})
                if (compute(from, end, first, second, some),
                    std::any_of(samples.begin(), samples.begin() + min(some, samples.size()),
                                [](auto& each) { return !each.is_right; }))
                    return false;
            return true;
        };
        for (layout = 0; layout < 8; ++layout) {
            choose();
            if (samples.empty()) continue;
            if (of.n == of.l && of.l == of.m)
                for (auto [one, name, other] : {std::tuple{x, x_name, y_name}, {y, y_name, x_name}})
                    if (is_sum(0, of.l, one, one)) return "it is " + name + " · " + name + ", without " + other;
            // The first element tells where its sum ends or begins, if it is a part.
            for (long long k = 1; k < of.l; ++k) {
                if (compute(0, k, x, y, 1) && is_sum(0, k, x, y))
                    return "its sums have the first " + grouped(k) + " of " + grouped(of.l) + " products only";
                if (compute(k, of.l, x, y, 1) && is_sum(k, of.l, x, y))
                    return of.l - k == 1 ? "each element is the last product only, not the sum"
                                         : "its sums leave out the first " + grouped(k) + " of " + grouped(of.l) + " products";
            }
        }
        layout = 0;
        return "";
    }

    // Rows or columns from which on all that was looked at is wrong; "" where that is not so.
    std::string edges() const
    {
        std::string text;
        for (bool is_row : {true, false}) {
            long long last_right = -1, first_wrong = -1;
            for (const Sample& each : samples) {
                long long at = is_row ? each.row : each.column;
                if (each.is_right) last_right = max(last_right, at);
            }
            for (const Sample& each : samples) {
                long long at = is_row ? each.row : each.column;
                if (!each.is_right && at > last_right) first_wrong = first_wrong < 0 ? at : min(first_wrong, at);
            }
            if (first_wrong >= 0 && last_right >= 0)
                text += (text.empty() ? "all " : " and all ") + std::string(is_row ? "rows" : "columns") + " from " +
                        grouped(first_wrong) + " on";
        }
        return text;
    }

    void judge(const Operand& of_x, const Operand& of_y, bool is_meant)
    {
        size_t most = 0;
        int best = 0;
        for (layout = 0; layout < 8; ++layout) {
            choose();
            if (samples.empty()) return;
            size_t count = compute(0, of.l, x, y);
            if (std::any_of(samples.begin(), samples.end(), [](auto& each) { return !std::isfinite(each.sum); })) return;
            if (is_scaled()) return (void)(++compared, ++right);
            if (count > most) most = count, best = layout;
        }
        std::string x_name = named(*of_x.region), y_name = named(*of_y.region), c_name = named(*c->region);
        layout = 0, choose();
        if (c->region->reads.count || is_elementwise()) return;
        std::string why = explained(x_name, y_name);
        if (why.empty()) {
            if (10 * most < samples.size() && !is_meant) return;
            layout = best, choose();
        }
        compute(0, of.l, x, y);
        ++compared;
        auto first = std::find_if(samples.begin(), samples.end(), [](auto& each) { return !each.is_right; });
        size_t wrong = std::count_if(samples.begin(), samples.end(), [](auto& each) { return !each.is_right; });
        if (first == samples.end()) return;
        if (why.empty()) why = edges();
        auto size = [](long long rows, long long columns) { return std::to_string(rows) + "×" + std::to_string(columns); };
        char values[100];
        snprintf(values, sizeof(values), "%.7g instead of %.7g", first->got, first->sum);
        std::string text = c_name + ", which is not " + x_name + " (" + size(of.n, of.l) + ") · " + y_name + " (" +
                           size(of.l, of.m) + "): " + grouped(wrong) + " of " + grouped(samples.size()) +
                           " elements looked at are wrong, the first in row " + grouped(first->row) + ", column " +
                           grouped(first->column) + ": " + values + (why.empty() ? "" : "; " + why);
        tell("{\"event\": \"finding\", \"kind\": \"product\", \"at\": %u, \"text\": %s, \"kernel\": %s, \"launched\": %d}",
             c->region->cells[place(*first) * sizeof(T) / 4].write_at, quoted(text.c_str()).c_str(),
             quoted(under_way.kernel).c_str(), under_way.line);
    }
};

// n, l and m of arrays with so many elements; zeros where there are none.
Sizes sizes_of(double x, double y, double c)
{
    Sizes of{llround(sqrt(x * c / y)), llround(sqrt(x * y / c)), llround(sqrt(y * c / x))};
    bool fit =
        static_cast<double>(of.n * of.l) == x && static_cast<double>(of.l * of.m) == y && static_cast<double>(of.n * of.m) == c;
    return fit ? of : Sizes{};
}

bool is_told(long long size, unsigned blocks, unsigned threads)
{
    return size == 1 || std::count(numbers.begin(), numbers.end(), size) ||
           (size <= 1ll * blocks * threads && size > 1ll * (blocks - 1) * threads);
}

bool says_product(std::string name)
{
    for (char& letter : name) letter = static_cast<char>(tolower(letter));
    for (const char* word : {"mul", "mm", "gemm", "prod"})
        if (name.find(word) != std::string::npos) return true;
    return false;
}

}  // namespace

void launch_begins(const Given* given, size_t count)
{
    operands.clear(), numbers.clear(), scales.assign({0.0, 1.0});
    for (const Given* each = given; each < given + count; ++each) {
        auto* at = static_cast<const char*>(each->at);
        auto as = [at](auto of_type, size_t offset = 0) { return memcpy(&of_type, at + offset, sizeof(of_type)), of_type; };
        if (strchr("fdi", each->kind)) add_pointer(as(static_cast<const char*>(nullptr)), each->kind);
        if (each->kind == 'n') numbers.push_back(each->bytes == 8 ? as(0LL) : each->bytes == 4 ? as(0) : 0);
        if (each->kind == 'x') scales.push_back(each->bytes == 8 ? as(0.0) : static_cast<double>(as(0.0f)));
        if (each->kind != 's') continue;
        for (size_t i = 0; i + 8 <= each->bytes; i += 8) add_pointer(as(static_cast<const char*>(nullptr), i), 's');
        for (size_t i = 0; i + 4 <= each->bytes; i += 4) numbers.push_back(as(0, i));
    }
    size_t bytes = 0;
    for (const Operand& each : operands) bytes += each.region->bytes;
    if (operands.size() != 3 || bytes > MOST_KEPT) return operands.clear();
    for (Operand& each : operands) each.before.assign(each.region->begin, each.region->begin + each.region->bytes);
}

void launch_ends(const dim3& grid, const dim3& block)
{
    auto is_written = [](const Operand& each) { return each.region->writes.count > 0; };
    if (std::count_if(operands.begin(), operands.end(), is_written) != 1) return;
    auto c = std::find_if(operands.begin(), operands.end(), is_written);
    std::rotate(c, c + 1, operands.end());  // the last
    const Operand &x = operands[0], &y = operands[1], &z = operands[2];
    bool is_double = z.kind == 'd' || (z.kind == 's' && z.region->item == 8), is_int = z.kind == 'i';
    if (x.kind != z.kind || y.kind != z.kind || (!is_double && z.region->item != 4)) return;
    size_t item = is_double ? 8 : 4;
    auto elements = [item](const Operand& each) { return static_cast<double>(each.region->bytes / item); };
    Sizes of = sizes_of(elements(x), elements(y), elements(z));
    bool in_x = is_told(of.m, grid.x, block.x), in_y = is_told(of.n, grid.y, block.y);
    bool l_is_told = is_told(of.l, 0, 0) || of.l == of.n || of.l == of.m;
    if (!of.n || !in_x || !in_y || !l_is_told) return;
    bool reads_often = x.region->reads.count > elements(x) || y.region->reads.count > elements(y);
    bool is_meant = says_product(under_way.kernel) && reads_often;
    auto judge = [&](auto type) {
        using T = decltype(type);
        Product<T>{reinterpret_cast<const T*>(x.region->begin), reinterpret_cast<const T*>(y.region->begin), &z, of}.judge(
            x, y, is_meant);
    };
    if (is_double) return judge(0.0);
    if (is_int) return judge(0);
    judge(0.0f);
}

}  // namespace cuda_on_cpu::product
