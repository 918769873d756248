// A share of the gradient at W: dW_τ[c] += γ φ_eτ h_e over the winners e of (d, c), where γ is the gradient there.
// Each warp has four columns c and keeps their sums, (16, 32) each, in registers.

#define OWN_COLUMNS (WIDE / (THREADS / 32))

struct Memory {
    uint4 h[3][(SLOTS + 8) * PARTS];
    uint4 phi[3][2 * (SLOTS + 8)];
    Pipeline line;
};
static_assert(sizeof(Memory) == SHARED, "winners.py gives a block as much");

// The operands of a column: γ φ (16 terms, 16 destinations) and h (16 destinations, 32).
struct Operands {
    u32 a[4], b[PARTS / 2][4];
    u32 low, high;

    __device__ __forceinline__ void load(const uint4* h, const uint4* phi, const u32* pairs) {
        int lane = threadIdx.x % 32;
        load_transposed(a, phi + lane / 8 % 2 * (SLOTS + 8) + (pairs[(lane % 8 + lane / 16 * 8) * PAIRS] & 0xffff));
        u32 s = pairs[lane % 16 * PAIRS] & 0xffff;
#pragma unroll
        for (int i = 0; i < PARTS / 2; i++) load_transposed(b[i], h + h_at(s, 2 * i + lane / 16));
        const u32* up = pairs + 2 * (lane % 4) * PAIRS;
        low = up[0] >> 16 | (up[PAIRS] & 0xffff0000u), high = up[8 * PAIRS] >> 16 | (up[9 * PAIRS] & 0xffff0000u);
    }

    __device__ __forceinline__ void add(float (&sums)[PARTS][4]) {
        a[0] = mul2(a[0], low), a[1] = mul2(a[1], low), a[2] = mul2(a[2], high), a[3] = mul2(a[3], high);
#pragma unroll
        for (int i = 0; i < PARTS; i++) product(sums[i], a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
    }
};

__device__ __forceinline__ void copy(Memory& m, const Edges& x, int k, int n0) {
    const Tile& tile = m.line.tiles[k % 8];
    copy_src(m.h[k % 3], m.line.source[k % 4], tile, x, n0);
    copy_dst(m.line.dst[k % 3], tile, x, n0);
    copy_phi(m.phi[k % 3], m.line.edge[k % 4], tile, x);
    copying();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) winner_weights(Edges x, float* d_weight) {
    extern __shared__ uint4 memory[];
    Memory& m = *(Memory*)memory;
    Pipeline& line = m.line;
    Loaded mine = {};
    int lane = threadIdx.x % 32, own = threadIdx.x / 32 * OWN_COLUMNS, c0 = blockIdx.y * WIDE, n0 = blockIdx.z * 8 * PARTS;
    float sums[OWN_COLUMNS][PARTS][4] = {};
    uint4 zero = make_uint4(0, 0, 0, 0);
    for (int i = threadIdx.x; i < 3 * 8 * PARTS; i += THREADS) m.h[i / (8 * PARTS)][SLOTS * PARTS + i % (8 * PARTS)] = zero;
    for (int i = threadIdx.x; i < 3 * 16; i += THREADS) m.phi[i / 16][i / 8 % 2 * (SLOTS + 8) + SLOTS + i % 8] = zero;
    fill(line, mine, x);
    copy(m, x, 0, n0);
    copy(m, x, 1, n0);
    begin_pairs(mine, line.tiles[0], x, c0);

    for (int k = 0; line.tiles[k % 8].first < x.total; k++) {
        const Tile& tile = line.tiles[k % 8];
        all_copied_but_one();
        __syncthreads();
        finish_h(m.h[k % 3], line.dst[k % 3], tile);
        end_pairs(line.pairs, mine, tile, x, c0);
        __syncthreads();
        copy(m, x, k + 2, n0);
        begin_pairs(mine, line.tiles[(k + 1) % 8], x, c0);
        advance(line, mine, x, k);
        Operands some[2];
        some[0].load(m.h[k % 3], m.phi[k % 3], line.pairs + own);
#pragma unroll
        for (int i = 0; i < OWN_COLUMNS; i++) {
            if (i + 1 < OWN_COLUMNS) some[(i + 1) % 2].load(m.h[k % 3], m.phi[k % 3], line.pairs + own + i + 1);
            some[i % 2].add(sums[i]);
        }
    }
    copied();
#pragma unroll
    for (int k = 0; k < OWN_COLUMNS; k++)
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            for (int half = 0; half < 2; half++) {
                int t = lane / 4 + 8 * half, c = c0 + own + k, n = n0 + 8 * i + 2 * (lane % 4);
                if (t < x.T && c < x.M && n < x.N)
                    *(float2*)(d_weight + (((long long)blockIdx.x * x.T + t) * x.M + c) * x.N + n) =
                        make_float2(sums[k][i][2 * half], sums[k][i][2 * half + 1]);
            }
}
