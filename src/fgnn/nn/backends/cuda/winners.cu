// Tiles of 16 destinations and their edges, for gradients of a maximum: column c of the message of destination d has a
// gradient at one edge only, the winner e(d, c), so that 16 pairs (d, c) of one c are the rows of a product with W[c].
//
// Edges have slots in shared memory: destinations j and j + 8 share the slots 8 k + j, k = 0, 1, ... The 8 rows that a
// warp reads at once are then in different banks, whoever has won. Edges beyond HEIGHT of these take a further pass.
//
// Passes are a pipeline: while one is computed, the features of the next two are copied into shared memory, indices are
// loaded for the fourth, and where the edges of the sixth begin.

#define ROWS 16
#define THREADS 512
#define WIDE 64      // columns of a message that a block of threads covers
#define PARTS 4      // and 16 bytes of h
#define HEIGHT 48
#define SLOTS (8 * HEIGHT)
#define PAIRS 68     // pairs of a destination, padded
#define OWN ((SLOTS + THREADS - 1) / THREADS)  // slots of a thread

struct Edges {
    const u16 *dst, *src, *coef;
    const int *source, *edge, *ptr;
    const u16* grad;
    const ARG* arg;
    int total, D, S, E, N, M, T, A;
};

// A pass: its first destination, and how many edges of each pair of destinations earlier passes took.
struct Tile {
    int first, from, height;
    int start[ROWS], count[ROWS], sample[ROWS], base[ROWS];
    __device__ int slots() const { return 8 * min(HEIGHT, max(height - from, 0)); }
};

struct Pipeline {
    Tile tiles[8];
    int source[4][SLOTS];   // the row of each slot's source, -1 for no edge
    int edge[4][SLOTS];     // its edge
    uint4 dst[3][ROWS * PARTS];
    u32 pairs[ROWS * PAIRS];
};

// What a thread has loaded for later passes.
struct Loaded {
    int first, from, start, count, sample;
    int source[OWN], edge[OWN];
    u32 arg[4];
    uint2 grad;
};

__device__ __forceinline__ void copying() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void all_copied_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// The slots 8 k + column of a pass, one after the other.
struct Column {
    int column, from, one, two, end;
    __device__ Column(const Tile& tile, int column)
        : column(column), from(tile.from), one(tile.count[column]), two(tile.count[column + 8]), end(tile.slots() / 8) {}
    // The destination of the edge at the k-th, and its place there; -1 for none.
    __device__ int owner(int k, int& place) const {
        place = from + k;
        if (place < one) return column;
        place -= one;
        return place < two ? column + 8 : -1;
    }
};

// ---- where the edges of a pass begin

__device__ __forceinline__ void begin_tile(Loaded& mine, const Edges& x, int first, int from) {
    int at = first + threadIdx.x % ROWS;
    mine.first = first, mine.from = from, mine.start = mine.count = mine.sample = 0;
    if (at < x.total) {
        mine.sample = at / x.D;
        int d = at - mine.sample * x.D;
        mine.start = x.A ? d * x.A : x.ptr[d];
        mine.count = x.A ? x.A : x.ptr[d + 1];
    }
}

// By the first warp.
__device__ __forceinline__ void end_tile(Tile& tile, const Loaded& mine, const Edges& x) {
    int j = threadIdx.x % ROWS, count = x.A ? mine.count : mine.count - mine.start;
    int other = __shfl_xor_sync(~0u, count, 8), height = count + other;
    for (int k = 4; k; k /= 2) height = max(height, __shfl_xor_sync(~0u, height, k));
    if (threadIdx.x < ROWS) {
        tile.start[j] = mine.start, tile.count[j] = count, tile.sample[j] = mine.sample, tile.base[j] = j < 8 ? 0 : other;
        tile.first = mine.first, tile.from = mine.from, tile.height = height;
    }
    __syncwarp();
}

__device__ __forceinline__ void begin_next_tile(Loaded& mine, const Tile& tile, const Edges& x) {
    bool more = tile.from + HEIGHT < tile.height;
    begin_tile(mine, x, more ? tile.first : tile.first + gridDim.x * ROWS, more ? tile.from + HEIGHT : 0);
}

// ---- the indices of its edges

__device__ __forceinline__ void begin_indices(Loaded& mine, const Tile& tile, const Edges& x) {
    Column slots(tile, threadIdx.x % 8);
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        int slot = threadIdx.x + k * THREADS, place, j = slot < SLOTS ? slots.owner(slot / 8, place) : -1;
        mine.source[k] = -1;
        if (j < 0) continue;
        int at = tile.start[j] + place;
        mine.source[k] = tile.sample[j] * x.S + x.source[at];
#if HAS_EDGE
        mine.edge[k] = x.edge[at];
#else
        mine.edge[k] = at;
#endif
    }
}

__device__ __forceinline__ void end_indices(int* source, int* edge, const Loaded& mine) {
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        int slot = threadIdx.x + k * THREADS;
        if (slot < SLOTS) source[slot] = mine.source[k], edge[slot] = mine.edge[k];
    }
}

// ---- features: h, φ, winners and their gradients

// Where the 16 bytes ``part`` of h at a slot are.
__device__ __forceinline__ int h_at(u32 slot, int part) { return slot * PARTS + (part ^ (slot / 2 & 3)); }

// Of features, a thread copies and finishes PART in the slots 8 k + COLUMN, k = BEGIN, BEGIN + STEP, ...
#define PART (threadIdx.x % PARTS)
#define COLUMN (threadIdx.x / PARTS % 8)
#define BEGIN (threadIdx.x / (8 * PARTS))
#define STEP (THREADS / (8 * PARTS))

__device__ __forceinline__ void copy_src(uint4* h, const int* source, const Tile& tile, const Edges& x, int n0) {
    int n = n0 + 8 * PART, end = tile.slots() / 8;
    const u16* src = x.src + (n < x.N ? n : 0);
#pragma unroll 3
    for (int k = BEGIN; k < end; k += STEP) {
        int slot = 8 * k + COLUMN, from = source[slot];
        if (from >= 0) copy16(h + h_at(slot, PART), src + (long long)from * x.N, n < x.N);
    }
}

__device__ __forceinline__ void copy_dst(uint4* dst, const Tile& tile, const Edges& x, int n0) {
#if HAS_DST
    int i = threadIdx.x, n = n0 + 8 * PART;
    bool there = tile.first + i / PARTS < x.total && n < x.N;
    if (i < ROWS * PARTS) copy16(dst + i, x.dst + (there ? (long long)(tile.first + i / PARTS) * x.N + n : 0), there);
#endif
}

// φ of each slot's edge: τ = 8 half ... at phi[half * (SLOTS + 8) + slot].
__device__ __forceinline__ void copy_phi(uint4* phi, const int* edge, const Tile& tile, const Edges& x) {
    Column slots(tile, threadIdx.x / 2 % 8);
    int half = threadIdx.x % 2;
    for (int k = threadIdx.x / 16; k < slots.end; k += THREADS / 16) {
        int slot = 8 * k + slots.column, place, j = slots.owner(k, place);
        if (j < 0) continue;
        long long row = OWN_COEF ? (long long)tile.sample[j] * x.E + edge[slot] : (long long)edge[slot];
        const u16* from = x.coef + row * x.T + 8 * half;
        uint4* to = phi + half * (SLOTS + 8) + slot;
        if (x.T % 8 == 0) {
            copy16(to, 8 * half < x.T ? from : x.coef, 8 * half < x.T);
        } else {
            u16 f[8];
            for (int k = 0; k < 8; k++) f[k] = 8 * half + k < x.T ? from[k] : 0;
            *to = *(const uint4*)f;
        }
    }
}

__device__ __forceinline__ void begin_pairs(Loaded& mine, const Tile& tile, const Edges& x, int c0) {
    int j = threadIdx.x / (WIDE / 4), c = c0 + threadIdx.x % (WIDE / 4) * 4;
    if (j >= ROWS || tile.first + j >= x.total || c >= x.M) return;
    long long at = (long long)(tile.first + j) * x.M + c;
#pragma unroll
    for (int k = 0; k < 4; k++) mine.arg[k] = (u32)x.arg[at + k];
    mine.grad = *(const uint2*)(x.grad + at);
}

// Pairs (ROWS, PAIRS): the slot of the winner | the gradient << 16; a slot of zeros where there is no winner in this pass.
__device__ __forceinline__ void end_pairs(u32* pairs, const Loaded& mine, const Tile& tile, const Edges& x, int c0) {
    int j = threadIdx.x / (WIDE / 4), c = threadIdx.x % (WIDE / 4) * 4;
    if (j >= ROWS) return;
    bool there = tile.first + j < x.total && c0 + c < x.M;
    u32 grads[2] = {mine.grad.x, mine.grad.y};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 pair = SLOTS + j % 8, up = tile.base[j] + mine.arg[k] - tile.from;
        if (there && mine.arg[k] < (u32)tile.count[j] && up < HEIGHT)
            pair = 8 * up + j % 8 | (k % 2 ? grads[k / 2] & 0xffff0000u : grads[k / 2] << 16);
        pairs[j * PAIRS + c + k] = pair;
    }
}

// h = relu(dst + src) in place of src.
__device__ __forceinline__ void finish_h(uint4* h, const uint4* dst, const Tile& tile) {
    Column slots(tile, COLUMN);
    uint4 one = make_uint4(0, 0, 0, 0), two = one;
#if HAS_DST
    one = dst[COLUMN * PARTS + PART], two = dst[(COLUMN + 8) * PARTS + PART];
#endif
#pragma unroll 3
    for (int k = BEGIN; k < slots.end; k += STEP) {
        int place, j = slots.owner(k, place);
        uint4* at = h + h_at(8 * k + COLUMN, PART);
        if (j >= 0) *at = hidden(*at, j < 8 ? one : two);
    }
}

// ---- the pipeline

// Tiles of the first five passes and the indices of the first three; what follows is on its way.
__device__ __forceinline__ void fill(Pipeline& line, Loaded& mine, const Edges& x) {
    if (threadIdx.x < 32) {
        begin_tile(mine, x, blockIdx.x * ROWS, 0);
        for (int k = 0; k < 5; k++) {
            end_tile(line.tiles[k], mine, x);
            begin_next_tile(mine, line.tiles[k], x);
        }
    }
    __syncthreads();
    for (int k = 0; k < 3; k++) {
        begin_indices(mine, line.tiles[k], x);
        end_indices(line.source[k], line.edge[k], mine);
    }
    begin_indices(mine, line.tiles[3], x);
    __syncthreads();
}

// During pass k: keep what has been loaded, and load more.
__device__ __forceinline__ void advance(Pipeline& line, Loaded& mine, const Edges& x, int k) {
    end_indices(line.source[(k + 3) % 4], line.edge[(k + 3) % 4], mine);
    begin_indices(mine, line.tiles[(k + 4) % 8], x);
    if (threadIdx.x < 32) {
        end_tile(line.tiles[(k + 5) % 8], mine, x);
        begin_next_tile(mine, line.tiles[(k + 5) % 8], x);
    }
}
