// Enough of CUDA to run a kernel's blocks on a CPU: every thread is a fiber, which others run beside until it has what it
// waits for. Copies into shared memory and products of the matrix units happen as late as the kernel allows, and shared
// memory begins as NaN, so that a missing wait or barrier changes the results.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
using std::max;
using std::min;

struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <class To, class From> To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline float __uint_as_float(u32 x) { return bits<float>(x); }
inline float __int_as_float(u32 x) { return bits<float>(x); }

inline u32 __byte_perm(u32 a, u32 b, u32 selector) {
    unsigned long long both = (unsigned long long)b << 32 | a;
    u32 y = 0;
    for (int k = 0; k < 4; k++) y |= (u32)(both >> (selector >> 4 * k & 7) * 8 & 255) << 8 * k;
    return y;
}

// ---- threads

const int WARP = 32;
alignas(1024) uint4 memory[1 << 14];  // shared memory; its first byte is at SHARED_BEGIN for the kernel
const u32 SHARED_BEGIN = 16;

struct Index { u32 x, y, z; };
Index blockIdx, gridDim;

struct Product { float* d; float a[2][16]; unsigned long long b; bool more; };
struct Copy { void* to; uint4 value; };

struct Barrier {
    u32 arrived = 0, generation = 0;
};

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Index index;
    bool done = false;
    const Barrier* awaited = nullptr;
    u32 since;                                   // its generation then
    std::vector<std::vector<Product>> products;  // in groups; the last is open
    std::vector<std::vector<Copy>> copies;
    u32 lane() const { return index.x % WARP; }
    bool ready() const { return !done && (!awaited || awaited->generation != since); }
};

struct Warp : Barrier {
    u32 slots[2][WARP][4];
};

struct Block {
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Barrier all, named[16];
    ucontext_t scheduler;
    Thread* now;
} block;

#define threadIdx (block.now->index)

inline void yield() { swapcontext(&block.now->context, &block.scheduler); }

inline void arrive_at(Barrier& barrier, u32 count) {
    if (++barrier.arrived == count) barrier.arrived = 0, barrier.generation++;
}

inline void wait_at(Barrier& barrier, u32 count) {
    block.now->awaited = &barrier, block.now->since = barrier.generation;
    arrive_at(barrier, count);
    if (!block.now->ready()) yield();
}

// What each thread of the warp gives.
template <int COUNT> const u32 (*gather(const u32 (&mine)[COUNT]))[4] {
    Warp& warp = block.warps[threadIdx.x / WARP];
    auto slots = warp.slots[warp.generation % 2];
    for (int k = 0; k < COUNT; k++) slots[block.now->lane()][k] = mine[k];
    wait_at(warp, WARP);
    return slots;
}

inline void __syncwarp() { gather<1>({0}); }
inline void __syncthreads() { wait_at(block.all, block.threads.size()); }

template <class T> T __shfl_sync(u32, T x, u32 from) {
    u32 words[(sizeof x + 3) / 4] = {};
    memcpy(words, &x, sizeof x);
    memcpy(&x, gather(words)[from % WARP], sizeof x);
    return x;
}
template <class T> T __shfl_xor_sync(u32 all, T x, u32 bit) { return __shfl_sync(all, x, block.now->lane() ^ bit); }

inline u32 __ballot_sync(u32, bool x) {
    auto all = gather<1>({x});
    u32 y = 0;
    for (int k = 0; k < WARP; k++) y |= all[k][0] << k;
    return y;
}
inline bool __any_sync(u32 all, bool x) { return __ballot_sync(all, x) != 0; }

inline u32 __cvta_generic_to_shared(const void* p) { return (u32)((const char*)p - (const char*)memory) + SHARED_BEGIN; }
inline const char* generic(u32 shared) { return (const char*)memory + (shared - SHARED_BEGIN); }

// ---- numbers in half precision

inline float to_float(u16 x) {
#if HALF
    return (float)bits<_Float16>(x);
#else
    return bits<float>((u32)x << 16);
#endif
}

inline u16 to_half(double x) {
#if HALF
    return bits<u16>((_Float16)x);
#else
    if (x != x) return 0x7fff;
    u32 y = bits<u32>((float)x);
    return (u16)((y + 0x7fff + (y >> 16 & 1)) >> 16);
#endif
}

inline u32 pack(float low, float high) { return to_half(low) | (u32)to_half(high) << 16; }

inline u32 fma2(u32 a, u32 b, u32 c) {
    auto one = [&](int k) {
        return (u32)to_half((double)to_float(a >> k) * to_float(b >> k) + to_float(c >> k));
    };
    return one(0) | one(16) << 16;
}

inline u32 relu2(u32 a) {
    auto one = [&](int k) {
        u16 x = a >> k;
        return (u32)(to_float(x) > 0 || to_float(x) != to_float(x) ? x : 0);
    };
    return one(0) | one(16) << 16;
}

// ---- copies

inline void copy16(void* to, const void* from, bool there) {
    uint4 value = {};
    if (there) memcpy(&value, from, 16);
    block.now->copies.back().push_back({to, value});
}

inline void finish_copies(size_t but) {
    auto& groups = block.now->copies;
    while (groups.size() > but + 1) {
        for (const Copy& c : groups.front()) memcpy(c.to, &c.value, 16);
        groups.erase(groups.begin());
    }
}
inline void copying() { block.now->copies.emplace_back(); }
inline void all_copied_but_one() { finish_copies(1); }
inline void copied() { copying(), finish_copies(0); }

inline void add4(float* to, float4 v) { to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w; }

// ---- matrix units. Of a (16, 16) matrix, a thread has the rows r and r + 8 and the columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9.

// The rows r and r + 8, from the four threads that have them.
inline void rows_of(const u32 (&mine)[4], float (&rows)[2][16]) {
    auto all = gather<4>(mine);
    u32 first = block.now->lane() / 4 * 4;
    for (int half = 0; half < 2; half++)
        for (int column = 0; column < 16; column++) {
            u32 word = all[first + column % 8 / 2][half + column / 8 * 2];
            rows[half][column] = to_float((u16)(word >> column % 2 * 16));
        }
}

inline void product(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    float rows[2][16];
    rows_of(a, rows);
    auto all = gather<2>({b0, b1});
    for (int k = 0; k < 4; k++) {
        u32 column = block.now->lane() % 4 * 2 + k % 2;
        for (int i = 0; i < 16; i++)
            d[k] += rows[k / 2][i] * to_float((u16)(all[4 * column + i % 8 / 2][i / 8] >> i % 2 * 16));
    }
}

inline void load_transposed(u32 (&x)[4], const void* row) {
    unsigned long long at = (unsigned long long)row;
    auto all = gather<2>({(u32)at, (u32)(at >> 32)});
    const u16* rows[WARP];
    for (int k = 0; k < WARP; k++) rows[k] = (const u16*)(all[k][0] | (unsigned long long)all[k][1] << 32);
    u32 r = block.now->lane() / 4, q = block.now->lane() % 4;
    for (int k = 0; k < 4; k++) x[k] = rows[8 * k + 2 * q][r] | (u32)rows[8 * k + 2 * q + 1][r] << 16;
    __syncwarp();  // nobody overwrites what others still read
}

inline void fence() {}
inline void written_for_products() {}

// The sum begins with the next wait for its group.
inline void multiply(float (&d)[32], const u32 (&a)[4], unsigned long long b, int more) {
    Product one = {d, {}, b, more != 0};
    rows_of(a, one.a);
    block.now->products.back().push_back(one);
    for (float& x : d) x = more ? x : NAN;
}
inline void commit() { block.now->products.emplace_back(); }

// The 8 columns 2 q, 2 q + 1 of every 8, for the rows r and r + 8.
inline void finish(const Product& one) {
    u32 q = block.now->lane() % 4, start = (u32)(one.b & 0x3fff) << 4, step = (u32)(one.b >> 32 & 0x3fff) << 4;
    bool swizzled = one.b >> 62 == 1;
    for (int k = 0; k < 32; k++) {
        u32 column = k / 4 * 8 + 2 * q + k % 2;
        float sum = 0;
        for (u32 i = 0; i < 16; i++) {
            u32 at = start + column / 8 * step + column % 8 * 128 + 2 * i;
            if (swizzled) at ^= (at >> 7 & 7) << 4;
            u16 number;
            memcpy(&number, generic(at), 2);
            sum += one.a[k % 4 / 2][i] * to_float(number);
        }
        one.d[k] = one.more ? one.d[k] + sum : sum;
    }
}

template <int N> void wait() {
    auto& groups = block.now->products;
    while (groups.size() > N + 1) {
        for (const Product& one : groups.front()) finish(one);
        groups.erase(groups.begin());
    }
}

inline void take_turn(int group) { wait_at(block.named[1 + group], 256); }
inline void arrive(int group) { arrive_at(block.named[1 + group], 256); }

// ---- launches

std::function<void()> kernel;
inline void enter() {
    kernel();
    block.now->done = true;
    yield();
}

// Whether all threads of a block come to an end, and no barrier is left half full.
inline bool run_block(int threads, std::mt19937& random) {
    memset(memory, 0xff, sizeof memory);
    block.threads = std::vector<Thread>(threads);
    block.warps = std::vector<Warp>(threads / WARP);
    block.all = {};
    for (Barrier& b : block.named) b = {};
    for (int k = 0; k < threads; k++) {
        Thread& t = block.threads[k];
        const size_t size = 1 << 17;
        t.stack.reset(new char[size]);
        t.index = {(u32)k, 0, 0};
        t.products.resize(1), t.copies.resize(1);
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.get(), t.context.uc_stack.ss_size = size, t.context.uc_link = nullptr;
        makecontext(&t.context, enter, 0);
    }
    // The first warp that is ready runs until it waits; the last ones run when all others do. The order changes at times.
    std::vector<int> order(threads / WARP);
    for (int k = 0; k < threads / WARP; k++) order[k] = k;
    auto ready = [](int warp) {
        auto first = block.threads.begin() + warp * WARP;
        return std::any_of(first, first + WARP, [](const Thread& t) { return t.ready(); });
    };
    for (int turn = 0;; turn++) {
        if (turn % 64 == 0) std::shuffle(order.begin(), order.end(), random);
        auto next = std::find_if(order.begin(), order.end(), ready);
        if (next == order.end()) break;
        for (int k = 0, first = random() % WARP; k < WARP; k++) {
            block.now = &block.threads[*next * WARP + (first + k) % WARP];
            if (block.now->ready()) swapcontext(&block.scheduler, &block.now->context);
        }
    }
    bool ended = std::all_of(block.threads.begin(), block.threads.end(), [](const Thread& t) { return t.done; });
    return ended && std::all_of(block.named, block.named + 16, [](const Barrier& b) { return !b.arrived; });
}

template <class... P, size_t... I>
void call(void (*f)(P...), std::tuple<P...>& given, std::index_sequence<I...>) { f(std::get<I>(given)...); }

// Run a kernel on packed arguments: 0, or 1 if threads wait for each other for ever.
template <class... P> int launch(void (*f)(P...), const u32* grid, int threads, const char* packed) {
    size_t at = 0;
    auto next = [&](auto x) {
        at = (at + alignof(decltype(x)) - 1) / alignof(decltype(x)) * alignof(decltype(x));
        memcpy(&x, packed + at, sizeof x);
        at += sizeof x;
        return x;
    };
    std::tuple<P...> given{next(P())...};
    kernel = [&] { call(f, given, std::index_sequence_for<P...>()); };
    gridDim = {grid[0], grid[1], grid[2]};
    std::mt19937 random(0);
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
                if (!run_block(threads, random)) return 1;
    return 0;
}
