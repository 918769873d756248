// Rows of edges on Hopper's matrix units. A row has W places; a warp has the places of some rows, a warpgroup those of
// four warps. Matrices stay in shared memory, in rows of 128 bytes that are swizzled as the matrix units read them.
//
// The order of the columns that are summed over is free, and so is that of the results: a thread has 16 in a row.

#define WIDE 64
#define GROUPS 3  // warpgroups of a block

struct Rows {
    const u16 *dst, *src, *coef, *weight;
    const int *source, *edge, *table;
    int rows, total, D, S, E, N, M, T, A;
};

// The tile of a warpgroup in the round of tiles from ``start``. Those of a block are neighbours, which share nodes in the
// cache; the last round, if it is not full, is shared out among all blocks.
__device__ __forceinline__ int unit_of(int start, int group, int units) {
    bool full = start + (int)gridDim.x * GROUPS <= units;
    return start + (full ? blockIdx.x * GROUPS + group : blockIdx.x + gridDim.x * group);
}

// The edge at a place: the rows of its nodes and of φ, and where it is among the edges of its destination.
struct Edge {
    bool live;
    int row, place, source, destination;
    long long phi, edge, listed;  // edge and position in the list count the edges of all samples
};

__device__ __forceinline__ Edge edge_at(const Rows& x, long long position) {
    Edge e = {};
    e.row = (int)(position / W), e.place = position % W;
    e.live = position / W < x.total;
    if (!e.live) return e;
    int sample = e.row / x.rows, own = e.row - sample * x.rows, d = own, at = own * x.A + e.place;
    e.live = e.place < x.A;
    if (!x.A) {
        const int* line = x.table + own;
        d = *line, at = line[x.rows] + e.place;
        e.live = at < line[2ll * x.rows];
        e.place += line[3ll * x.rows];
    }
    if (!e.live) return e;
    e.source = sample * x.S + x.source[at], e.destination = sample * x.D + d;
    e.listed = (long long)sample * x.E + at;
#if HAS_EDGE
    at = x.edge[at];
#endif
    e.edge = (long long)sample * x.E + at;
    e.phi = OWN_COEF ? e.edge : at;
    return e;
}

// 16 columns of h, from column n
__device__ __forceinline__ void load_h(u32 (&h)[8], const Rows& x, int source, int destination, int n) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (n + 8 * half < x.N) {
            a = *(const uint4*)(x.src + (long long)source * x.N + n + 8 * half);
#if HAS_DST
            b = *(const uint4*)(x.dst + (long long)destination * x.N + n + 8 * half);
#endif
            a = hidden(a, b);
        }
        h[4 * half] = a.x, h[4 * half + 1] = a.y, h[4 * half + 2] = a.z, h[4 * half + 3] = a.w;
    }
}

// Show the matrix units what has been written to shared memory.
__device__ __forceinline__ void written_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Warpgroups multiply in turn, so that while one does, the others load and reduce.
__device__ __forceinline__ void take_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory"); }
__device__ __forceinline__ void arrive(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(1 + group) : "memory"); }

#define R4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define R16(x, i) R4(x, i), R4(x, i + 4), R4(x, i + 8), R4(x, i + 12)

// d (64, 64) = a (64, 16) b (16, 64), or the sum of both if ``more``
__device__ __forceinline__ void multiply(float (&d)[32], const u32 (&a)[4], unsigned long long b, int more) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." NAME "." NAME " "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
        : R16(d, 0), R16(d, 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}

// How the matrix units find a matrix of 64 rows of 128 bytes, at a multiple of 1,024 bytes.
__device__ __forceinline__ unsigned long long matrix_at(u32 address) {
    return (unsigned long long)1 << 62 | (unsigned long long)64 << 32 | (unsigned long long)1 << 16 | address >> 4;
}
