// SPDX-License-Identifier: MIT
// Replacements of BLAS's gemm, syrk and herk for NumPy's and SciPy's extension modules. A large product is offered to Python; all
// others go to the BLAS function that the module was linked to.
//
// A module calls functions of other libraries through slots (GOT entries): words of its memory that the dynamic linker fills with
// addresses, according to relocations. `redirect` finds these slots by the functions' names and overwrites them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fenv.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Python's stable ABI, declared here since its headers may not be installed; objects are void*.
extern void* PyGILState_GetThisThreadState(void);
extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int);
extern void* PyObject_CallFunction(void*, const char*, ...);
extern int PyObject_IsTrue(void*);
extern void* PyObject_Type(void*);
extern void PyErr_Fetch(void**, void**, void**);
extern void PyErr_NormalizeException(void**, void**, void**);
extern void PyErr_SetObject(void*, void*);
extern int Py_AddPendingCall(int (*)(void*), void*);
extern void Py_IncRef(void*);
extern void Py_DecRef(void*);

// --- which products are offered

enum { GEMM, SYRK, HERK, KINDS };
enum { CBLAS, CBLAS_64, FORTRAN, FORTRAN_64, FAMILIES };  // _64: with 64-bit integers
enum { TYPES = 4 };  // s, d, c, z

// A product for Python, in row-major order.
typedef struct {
    int64_t kind, type, transposed_a, conjugated_a, transposed_b, conjugated_b, lower;  // lower: the triangle of syrk and herk
    int64_t m, n, k, lda, ldb, ldc;
    const void *a, *b;
    void* c;
    double alpha[2], beta[2];  // real and imaginary part
} Product;

static double least[TYPES];  // multiply-adds of the smallest products that are offered
static int switched_on;
static void* offered;  // Python's function: gets the product's address, returns whether it has computed the product
static uint64_t calls, multiply_adds;  // computed by BLAS, outside of calls of Python's function
static int under_way;                  // calls of Python's function
static void* originals[FAMILIES * TYPES * KINDS];

static int raise_now(void* error)
{
    void* type = PyObject_Type(error);
    PyErr_SetObject(type, error);
    Py_DecRef(type);
    Py_DecRef(error);
    return -1;
}

// Makes the main thread raise this exception when it is back in Python.
void raise_soon(void* error)
{
    Py_IncRef(error);
    if (Py_AddPendingCall(raise_now, error)) Py_DecRef(error);
}

static double work_of(int kind, double m, double n, double k) { return kind == GEMM ? m * n * k : m * n * k / 2; }

static void note_left(double work)
{
    if (__atomic_load_n(&under_way, __ATOMIC_RELAXED)) return;
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&multiply_adds, (uint64_t)work, __ATOMIC_RELAXED);
}

// BLAS's caller does not check for exceptions: one raised by a signal handler waits until the caller has returned. But NumPy checks
// the floating-point flags, which the product's check may set: they are restored.
static int offer(const Product* product)
{
    __atomic_fetch_add(&under_way, 1, __ATOMIC_RELAXED);
    fenv_t before;
    fegetenv(&before);
    const int state = PyGILState_Ensure();
    void *function = offered, *type, *error, *trace;
    Py_IncRef(function);  // the call may replace `offered`
    void* answer = PyObject_CallFunction(function, "K", (unsigned long long)(uintptr_t)product);
    const int computed = answer && PyObject_IsTrue(answer) == 1;
    if (answer) {
        Py_DecRef(answer);
    } else {
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        if (error) raise_soon(error);
        Py_DecRef(type);
        Py_DecRef(error);
        Py_DecRef(trace);
    }
    Py_DecRef(function);
    PyGILState_Release(state);
    fesetenv(&before);
    __atomic_fetch_sub(&under_way, 1, __ATOMIC_RELAXED);
    if (!computed) note_left(work_of(product->kind, product->m, product->n, product->k));
    return computed;
}

void begin(void* function, const double thresholds[TYPES])
{
    void* before = offered;
    switched_on = 0;
    memcpy(least, thresholds, sizeof least);
    Py_IncRef(function);
    offered = function;
    Py_DecRef(before);
    __atomic_store_n(&switched_on, 1, __ATOMIC_RELEASE);
}

void end(void) { __atomic_store_n(&switched_on, 0, __ATOMIC_RELEASE); }

void counts(uint64_t* of_calls, uint64_t* of_multiply_adds)
{
    *of_calls = __atomic_load_n(&calls, __ATOMIC_RELAXED);
    *of_multiply_adds = __atomic_load_n(&multiply_adds, __ATOMIC_RELAXED);
}

// Whether to offer a product. Never in threads that Python does not know, which must not wait for the GIL.
static int is_large(int type, int kind, double m, double n, double k)
{
    if (!(m > 0 && n > 0 && k > 0) || !__atomic_load_n(&switched_on, __ATOMIC_ACQUIRE)) return 0;
    const double work = work_of(kind, m, n, k);
    if (work >= least[type] && PyGILState_GetThisThreadState()) return 1;
    note_left(work);
    return 0;
}

static void scalars(Product* p, int type, const void* alpha, const void* beta, int real)
{
    const int floats = type == 0 || type == 2, parts = type < 2 || real ? 1 : 2;
    for (int i = 0; i < 2; i++) {
        p->alpha[i] = i >= parts ? 0 : floats ? ((const float*)alpha)[i] : ((const double*)alpha)[i];
        p->beta[i] = i >= parts ? 0 : floats ? ((const float*)beta)[i] : ((const double*)beta)[i];
    }
}

static int of_letter(const char* letter)
{  // CBLAS's enum: N, T and C from 111 on, U and L from 121 on
    static const char known[] = "NTC.......UL";
    const char* at = memchr(known, *letter & ~32, sizeof known - 1);
    return at ? 111 + (int)(at - known) : 0;
}

// Whether Python has computed C = alpha·op(A)·op(B) + beta·C. Arguments that BLAS would refuse are left to BLAS.
static int gemm(int type, int order, int ta, int tb, int64_t m, int64_t n, int64_t k, const void* alpha, const void* a, int64_t lda,
                const void* b, int64_t ldb, const void* beta, void* c, int64_t ldc)
{
    if (!is_large(type, GEMM, m, n, k)) return 0;
    if ((order != 101 && order != 102) || ta < 111 || ta > 113 || tb < 111 || tb > 113) return 0;
    Product p = {.kind = GEMM, .type = type, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c};
    if (order == 102) {  // column-major: Cᵀ = op(B)ᵀ·op(A)ᵀ in row-major order
        p.m = n, p.n = m, p.a = b, p.b = a, p.lda = ldb, p.ldb = lda;
        const int first = ta;
        ta = tb, tb = first;
    }
    p.transposed_a = ta != 111, p.conjugated_a = ta == 113, p.transposed_b = tb != 111, p.conjugated_b = tb == 113;
    if (p.lda < (p.transposed_a ? p.m : p.k) || p.ldb < (p.transposed_b ? p.k : p.n) || p.ldc < p.n) return 0;
    scalars(&p, type, alpha, beta, 0);
    return offer(&p);
}

// Whether Python has computed a triangle of C = alpha·A·op(A) + beta·C, or of alpha·op(A)·A + beta·C.
static int rank_k(int kind, int type, int order, int uplo, int trans, int64_t n, int64_t k, const void* alpha, const void* a,
                  int64_t lda, const void* beta, void* c, int64_t ldc)
{
    if (!is_large(type, kind, n, n, k)) return 0;
    if (kind == SYRK && type < 2 && trans == 113) trans = 112;
    if ((order != 101 && order != 102) || (uplo != 121 && uplo != 122)) return 0;
    if (trans != 111 && trans != (kind == HERK ? 113 : 112)) return 0;
    const int turned = order == 102;  // column-major: the other triangle of C, and the transpose of A, in row-major order
    Product p = {.kind = kind, .type = type, .m = n, .n = n, .k = k, .lda = lda, .ldb = lda, .ldc = ldc, .a = a, .b = a, .c = c};
    p.lower = (uplo == 122) != turned;
    p.transposed_a = (trans != 111) != turned, p.transposed_b = !p.transposed_a;
    p.conjugated_a = kind == HERK && p.transposed_a, p.conjugated_b = kind == HERK && p.transposed_b;
    if (lda < (p.transposed_a ? n : k) || ldc < n) return 0;
    scalars(&p, type, alpha, beta, kind == HERK);
    return offer(&p);
}

// --- the functions, by family, type and kind

#define SLOT(family, type, kind) (((family) * TYPES + (type)) * KINDS + (kind))
#define ORIGINAL(name, family, type, kind) ((__typeof__(&name))originals[SLOT(family, type, kind)])

// SCALAR: the type of gemm's and syrk's alpha and beta; AT: the operator that gives their address; REAL: herk's.
#define CBLAS_FUNCTIONS(name, family, INT, type, SCALAR, AT, REAL)                                                               \
    static void name##_gemm(int order, int ta, int tb, INT m, INT n, INT k, SCALAR alpha, const void* a, INT lda, const void* b, \
                            INT ldb, SCALAR beta, void* c, INT ldc)                                                              \
    {                                                                                                                            \
        if (!gemm(type, order, ta, tb, m, n, k, AT alpha, a, lda, b, ldb, AT beta, c, ldc))                                      \
            ORIGINAL(name##_gemm, family, type, GEMM)(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);              \
    }                                                                                                                            \
    CBLAS_RANK_K(name##_syrk, SYRK, family, INT, type, SCALAR, AT)                                                               \
    CBLAS_RANK_K(name##_herk, HERK, family, INT, type, REAL, &)

#define CBLAS_RANK_K(name, kind, family, INT, type, SCALAR, AT)                                                                \
    static void name(int order, int uplo, int trans, INT n, INT k, SCALAR alpha, const void* a, INT lda, SCALAR beta, void* c, \
                     INT ldc)                                                                                                  \
    {                                                                                                                          \
        if (!rank_k(kind, type, order, uplo, trans, n, k, AT alpha, a, lda, AT beta, c, ldc))                                  \
            ORIGINAL(name, family, type, kind)(order, uplo, trans, n, k, alpha, a, lda, beta, c, ldc);                         \
    }

// Fortran callers append the lengths of character arguments, but Cython's callers do not. So our functions must not declare them:
// they would own stack words that belong to the caller.
#define FORTRAN_RANK_K(name, kind, family, INT, type)                                                                              \
    static void name(const char* uplo, const char* trans, const INT* n, const INT* k, const void* alpha, const void* a,            \
                     const INT* lda, const void* beta, void* c, const INT* ldc)                                                    \
    {                                                                                                                              \
        typedef void Original(const char*, const char*, const INT*, const INT*, const void*, const void*, const INT*, const void*, \
                              void*, const INT*, size_t, size_t);                                                                  \
        if (!rank_k(kind, type, 102, of_letter(uplo), of_letter(trans), *n, *k, alpha, a, *lda, beta, c, *ldc))                    \
            ((Original*)originals[SLOT(family, type, kind)])(uplo, trans, n, k, alpha, a, lda, beta, c, ldc, 1, 1);                \
    }

#define FORTRAN_FUNCTIONS(name, family, INT, type)                                                                                \
    static void name##_gemm(const char* ta, const char* tb, const INT* m, const INT* n, const INT* k, const void* alpha,          \
                            const void* a, const INT* lda, const void* b, const INT* ldb, const void* beta, void* c,              \
                            const INT* ldc)                                                                                       \
    {                                                                                                                             \
        typedef void Original(const char*, const char*, const INT*, const INT*, const INT*, const void*, const void*, const INT*, \
                              const void*, const INT*, const void*, void*, const INT*, size_t, size_t);                           \
        if (!gemm(type, 102, of_letter(ta), of_letter(tb), *m, *n, *k, alpha, a, *lda, b, *ldb, beta, c, *ldc))                   \
            ((Original*)originals[SLOT(family, type, GEMM)])(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, 1, 1);         \
    }                                                                                                                             \
    FORTRAN_RANK_K(name##_syrk, SYRK, family, INT, type)                                                                          \
    FORTRAN_RANK_K(name##_herk, HERK, family, INT, type)

#define FOR_INTEGERS(suffix, INT, cblas, fortran)                          \
    CBLAS_FUNCTIONS(cblas_s##suffix, cblas, INT, 0, float, &, float)       \
    CBLAS_FUNCTIONS(cblas_d##suffix, cblas, INT, 1, double, &, double)     \
    CBLAS_FUNCTIONS(cblas_c##suffix, cblas, INT, 2, const void*, , float)  \
    CBLAS_FUNCTIONS(cblas_z##suffix, cblas, INT, 3, const void*, , double) \
    FORTRAN_FUNCTIONS(s##suffix, fortran, INT, 0)                          \
    FORTRAN_FUNCTIONS(d##suffix, fortran, INT, 1)                          \
    FORTRAN_FUNCTIONS(c##suffix, fortran, INT, 2)                          \
    FORTRAN_FUNCTIONS(z##suffix, fortran, INT, 3)

FOR_INTEGERS(, int, CBLAS, FORTRAN)
FOR_INTEGERS(_64, int64_t, CBLAS_64, FORTRAN_64)

#define ROW(name) name##_gemm, name##_syrk, name##_herk
static void* const ours[FAMILIES * TYPES * KINDS] = {
    ROW(cblas_s), ROW(cblas_d), ROW(cblas_c), ROW(cblas_z), ROW(cblas_s_64), ROW(cblas_d_64), ROW(cblas_c_64), ROW(cblas_z_64),
    ROW(s),       ROW(d),       ROW(c),       ROW(z),       ROW(s_64),       ROW(d_64),       ROW(c_64),       ROW(z_64),
};

// The index in `ours` of the function with this name, or -1. Names in SciPy's builds of OpenBLAS begin with scipy_.
static int slot_of(const char* name)
{
    if (!strncmp(name, "scipy_", 6)) name += 6;
    const int is_cblas = !strncmp(name, "cblas_", 6);
    if (is_cblas) name += 6;
    const char* letter = *name ? strchr("sdcz", *name) : NULL;
    static const char* const KIND[KINDS] = {"gemm", "syrk", "herk"};
    for (int kind = 0; letter && kind < KINDS; kind++)
        if (!strncmp(name + 1, KIND[kind], 4)) {
            const char* end = name + 5;
            const int wide = !strcmp(end, "64_") || !strcmp(end, "_64") || !strcmp(end, "_64_");
            if (!wide && strcmp(end, is_cblas ? "" : "_")) return -1;
            return SLOT((is_cblas ? CBLAS : FORTRAN) + wide, (int)(letter - "sdcz"), kind);
        }
    return -1;
}

// --- the slots of modules

typedef struct {
    void** where;
    void* before;       // the linker's address; NULL: the slot is unchanged
    const char *object, *name;
    int slot, protected;  // protected: its page is read-only (RELRO)
} Found;

enum { MOST = 1 << 14 };  // NumPy and SciPy have a few hundred
static Found found[MOST];
static size_t count;

static void note(const struct dl_phdr_info* info, const char* name, void** where)
{
    const int slot = slot_of(name);
    if (slot < 0 || count == MOST) return;
    for (size_t i = 0; i < count; i++)
        if (found[i].where == where) return;
    Found made = {where, NULL, info->dlpi_name, name, slot, 0};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr)* part = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_GNU_RELRO && (uintptr_t)where - begin < part->p_memsz) made.protected = 1;
    }
    found[count++] = made;
}

static void look_at(const struct dl_phdr_info* info, const ElfW(Rela) * first, size_t bytes, const ElfW(Sym) * symbols,
                    const char* names)
{
    for (size_t i = 0; i < bytes / sizeof *first; i++) {
        const uint32_t type = ELF64_R_TYPE(first[i].r_info);
#if defined(__x86_64__)
        const int address = type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT || type == R_X86_64_64;
#elif defined(__aarch64__)
        const int address = type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT || type == R_AARCH64_ABS64;
#else
#error "relocations of this processor are not known"
#endif
        const ElfW(Sym)* symbol = &symbols[ELF64_R_SYM(first[i].r_info)];
        if (address && symbol->st_name && symbol->st_shndx == SHN_UNDEF)  // of another library
            note(info, names + symbol->st_name, (void**)(info->dlpi_addr + first[i].r_offset));
    }
}

static int look_into(struct dl_phdr_info* info, size_t size, void* folders)
{
    int wanted = 0;
    for (const char* const* folder = folders; *folder && !wanted; folder++)
        wanted = info->dlpi_name && !strncmp(info->dlpi_name, *folder, strlen(*folder));
    for (int i = 0; wanted && i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        uintptr_t of[DT_NUM] = {0};
        for (const ElfW(Dyn)* d = (void*)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++)
            if (d->d_tag > 0 && d->d_tag < DT_NUM) of[d->d_tag] = d->d_un.d_val;
        static const int addresses[] = {DT_SYMTAB, DT_STRTAB, DT_RELA, DT_JMPREL};
        for (int each = 0; each < 4; each++)  // musl leaves these relative to the load address
            if (of[addresses[each]] < info->dlpi_addr) of[addresses[each]] += info->dlpi_addr;
        const ElfW(Sym)* symbols = (void*)of[DT_SYMTAB];
        look_at(info, (void*)of[DT_RELA], of[DT_RELASZ], symbols, (void*)of[DT_STRTAB]);
        look_at(info, (void*)of[DT_JMPREL], of[DT_PLTRELSZ], symbols, (void*)of[DT_STRTAB]);
    }
    return 0;
}

static int write_slot(const Found* f, void* value)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)f->where & ~(page - 1);
    if (f->protected && mprotect((void*)begin, page, PROT_READ | PROT_WRITE)) return 0;
    __atomic_store_n(f->where, value, __ATOMIC_RELEASE);
    if (f->protected) mprotect((void*)begin, page, PROT_READ);
    return 1;
}

// The function that a slot calls. Before the first call (lazy binding), the slot points into its own object, at a stub that asks
// the linker; then look the name up as the linker does, in the global scope first.
static void* linked(const Found* f)
{
    void* address = *f->where;
    Dl_info of;
    if (address && dladdr(address, &of) && strcmp(of.dli_fname, f->object)) return address;
    address = dlsym(RTLD_DEFAULT, f->name);
    void* object = address ? NULL : dlopen(f->object, RTLD_NOLOAD | RTLD_LAZY);
    if (object) {
        address = dlsym(object, f->name);
        dlclose(object);
    }
    return address;
}

// Redirects the slots of all loaded objects whose path begins with one of these. Returns the number of redirected slots, without
// those that cannot be written, or that call another BLAS than the first slot of this name.
int redirect(const char* const* folders)
{
    dl_iterate_phdr(look_into, (void*)folders);
    int redirected = 0;
    for (size_t i = 0; i < count; i++) {
        Found* f = &found[i];
        if (!f->before) {
            void* before = linked(f);
            if (before && !originals[f->slot]) originals[f->slot] = before;
            if (before && originals[f->slot] == before && write_slot(f, ours[f->slot])) f->before = before;
        }
        redirected += f->before != NULL;
    }
    return redirected;
}

void restore(void)
{
    for (size_t i = 0; i < count; i++)
        if (found[i].before && write_slot(&found[i], found[i].before)) found[i].before = NULL;
}
