// SPDX-License-Identifier: MIT
// In place of mpi.h: MPI's calls with a look at the memory that they are given. Is it large enough, of the type's size, written, and
// used by nothing else?
#pragma once
#include <mpi.h>

#include <map>
#include <string>
#include <vector>

namespace cuda_on_cpu {

void tell_of_mpi(const std::string& text, Place place, const char* kind = "mpi");
void tell_collective(const char* call, int root, long long bytes, Place place);
void look_at_for_mpi(const char* call, const void* at, size_t bytes, bool writes, Place place);

// `Address`: the type of the argument that gave the memory's address.
template <typename Address>
void look_for_mpi(const char* call, const void* at, long long count, MPI_Datatype type, bool writes, Place place)
{
    using Element = std::remove_cv_t<std::remove_pointer_t<std::decay_t<Address>>>;
    int bytes, integers, addresses, types, length, combiner;
    char name[MPI_MAX_OBJECT_NAME];
    if (!at || at == MPI_IN_PLACE || type == MPI_DATATYPE_NULL || count <= 0) return;
    MPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    if (combiner != MPI_COMBINER_NAMED) return;
    MPI_Type_size(type, &bytes), MPI_Type_get_name(type, name, &length);
    if constexpr (std::is_arithmetic_v<Element>)
        if (sizeof(Element) > 1 && bytes > 1 && bytes != sizeof(Element) && !strstr(name, "COMPLEX"))
            tell_of_mpi(std::string(call) + " is given numbers of " + std::to_string(sizeof(Element)) + " bytes as " + name +
                            ", which has " + std::to_string(bytes),
                        place);
    look_at_for_mpi(call, at, count * bytes, writes, place);
}

inline int ranks_if_root(int root, MPI_Comm of)
{
    int rank, size;
    MPI_Comm_rank(of, &rank), MPI_Comm_size(of, &size);
    return rank == root ? size : 0;
}

inline long long size_of(long long count, MPI_Datatype type)
{
    int bytes = 0;
    if (count >= 0) MPI_Type_size(type, &bytes);
    return count * bytes;
}

inline void tell_collective(const char* call, MPI_Comm ranks, int root, long long bytes, Place place)
{
    if (ranks == MPI_COMM_WORLD) tell_collective(call, root, bytes, place);
}

// What an MPI_Isend sends, by the place of its request, until a call waits for it.
struct Sent {
    const char* at;
    std::vector<char> bytes;
    std::string text;
    Place place;
};
inline std::map<const MPI_Request*, Sent> sent;

inline void sends(const void* at, int count, MPI_Datatype type, const char* text, const MPI_Request* request, Place place)
{
    int bytes = 0, integers, addresses, types, combiner;
    MPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    if (combiner == MPI_COMBINER_NAMED) MPI_Type_size(type, &bytes);
    auto* from = static_cast<const char*>(at);
    sent[request] = {from, {from, from + 1ll * count * bytes}, text, place};
}

// Returns the requests.
inline MPI_Request* waits_for(MPI_Request* requests, int count)
{
    for (MPI_Request* each = requests; each < requests + count; ++each) {
        auto found = sent.find(each);
        if (found == sent.end()) continue;
        const auto& [at, bytes, text, place] = found->second;
        if (!std::equal(bytes.begin(), bytes.end(), at))
            tell_of_mpi("MPI_Isend sends " + text + ", which has been changed before the program waits for its request", place);
        sent.erase(found);
    }
    return requests;
}

}  // namespace cuda_on_cpu

// Each argument is evaluated once.
#define PLACE_OF_MPI cuda_on_cpu::Place{__FILE__, __LINE__, 0}
#define LAB_GIVEN(i, at, n, type)   \
    void* lab_at_##i = (void*)(at); \
    int lab_n_##i = n;              \
    MPI_Datatype lab_type_##i = type;
#define LAB_LOOK(call, i, at, times, writes) \
    cuda_on_cpu::look_for_mpi<decltype(at)>(#call, lab_at_##i, 1ll * lab_n_##i * (times), lab_type_##i, writes, PLACE_OF_MPI);
#define LAB_OF_ONE(call, writes, at, n, type, ...) \
    ({ LAB_GIVEN(1, at, n, type) LAB_LOOK(call, 1, at, 1, writes) call(lab_at_1, lab_n_1, lab_type_1, __VA_ARGS__); })
#define LAB_OF_TWO(call, all_1, all_2, from, n, type, to, m, type_of_to, root, ranks)            \
    ({                                                                                           \
        LAB_GIVEN(1, from, n, type)                                                              \
        LAB_GIVEN(2, to, m, type_of_to)                                                          \
        LAB_AGREED(call, -1, root, ranks)                                                        \
        int lab_of_root = cuda_on_cpu::ranks_if_root(lab_root, lab_ranks);                       \
        LAB_LOOK(call, 1, from, all_1, false)                                                    \
        LAB_LOOK(call, 2, to, all_2, true)                                                       \
        call(lab_at_1, lab_n_1, lab_type_1, lab_at_2, lab_n_2, lab_type_2, lab_root, lab_ranks); \
    })
// All ranks must agree on the root (-1: there is none) and on what `count` numbers take; -1: on their own part.
#define LAB_AGREED(call, count, root, ranks) \
    [[maybe_unused]] int lab_root = root;    \
    MPI_Comm lab_ranks = ranks;              \
    cuda_on_cpu::tell_collective(#call, lab_ranks, lab_root, cuda_on_cpu::size_of(count, lab_type_1), PLACE_OF_MPI);
#define MPI_Send(...) LAB_OF_ONE(MPI_Send, false, __VA_ARGS__)
#define MPI_Ssend(...) LAB_OF_ONE(MPI_Ssend, false, __VA_ARGS__)
#define LAB_SENT(at, n, type, target, tag, ranks, request)                                 \
    ({                                                                                     \
        LAB_GIVEN(1, at, n, type)                                                          \
        LAB_LOOK(MPI_Isend, 1, at, 1, false)                                               \
        MPI_Request* lab_request = request;                                                \
        cuda_on_cpu::sends(lab_at_1, lab_n_1, lab_type_1, #at, lab_request, PLACE_OF_MPI); \
        MPI_Isend(lab_at_1, lab_n_1, lab_type_1, target, tag, ranks, lab_request);         \
    })
#define MPI_Isend(...) LAB_SENT(__VA_ARGS__)
#define MPI_Wait(request, status) MPI_Wait(cuda_on_cpu::waits_for(request, 1), status)
#define MPI_Waitall(n, requests, statuses)                                     \
    ({                                                                         \
        int lab_n = n;                                                         \
        MPI_Waitall(lab_n, cuda_on_cpu::waits_for(requests, lab_n), statuses); \
    })
#define MPI_Recv(...) LAB_OF_ONE(MPI_Recv, true, __VA_ARGS__)
#define MPI_Irecv(...) LAB_OF_ONE(MPI_Irecv, true, __VA_ARGS__)
#define LAB_BCAST(at, n, type, root, ranks)                            \
    ({                                                                 \
        LAB_GIVEN(1, at, n, type)                                      \
        LAB_AGREED(MPI_Bcast, lab_n_1, root, ranks)                    \
        LAB_LOOK(MPI_Bcast, 1, at, 1, true)                            \
        MPI_Bcast(lab_at_1, lab_n_1, lab_type_1, lab_root, lab_ranks); \
    })
#define MPI_Bcast(...) LAB_BCAST(__VA_ARGS__)
#define MPI_Reduce(...) LAB_REDUCE(__VA_ARGS__)
#define MPI_Allreduce(...) LAB_ALLREDUCE(__VA_ARGS__)
#define MPI_Scatter(...) LAB_OF_TWO(MPI_Scatter, lab_of_root, 1, __VA_ARGS__)
#define MPI_Gather(...) LAB_OF_TWO(MPI_Gather, 1, lab_of_root, __VA_ARGS__)
#define LAB_REDUCE(from, to, n, type, how, root, ranks)                          \
    ({                                                                           \
        LAB_GIVEN(1, from, n, type)                                              \
        LAB_AGREED(MPI_Reduce, lab_n_1, root, ranks)                             \
        LAB_LOOK(MPI_Reduce, 1, from, 1, false)                                  \
        MPI_Reduce(lab_at_1, to, lab_n_1, lab_type_1, how, lab_root, lab_ranks); \
    })
#define LAB_ALLREDUCE(from, to, n, type, how, ranks)                      \
    ({                                                                    \
        LAB_GIVEN(1, from, n, type)                                       \
        LAB_AGREED(MPI_Allreduce, lab_n_1, -1, ranks)                     \
        LAB_LOOK(MPI_Allreduce, 1, from, 1, false)                        \
        MPI_Allreduce(lab_at_1, to, lab_n_1, lab_type_1, how, lab_ranks); \
    })
#define MPI_Sendrecv(from, n, type, target, tag, to, m, type_of_to, ...)                                              \
    ({                                                                                                                \
        LAB_GIVEN(1, from, n, type)                                                                                   \
        LAB_GIVEN(2, to, m, type_of_to)                                                                               \
        LAB_LOOK(MPI_Sendrecv, 1, from, 1, false)                                                                     \
        LAB_LOOK(MPI_Sendrecv, 2, to, 1, true)                                                                        \
        if (lab_at_1 == lab_at_2 && lab_n_1 > 0 && lab_n_2 > 0)                                                       \
            cuda_on_cpu::tell_of_mpi("MPI_Sendrecv sends from the memory that it receives in: " #from, PLACE_OF_MPI); \
        MPI_Sendrecv(lab_at_1, lab_n_1, lab_type_1, target, tag, lab_at_2, lab_n_2, lab_type_2, __VA_ARGS__);         \
    })
