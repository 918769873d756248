// The maximum of Σ_τ φ_eτ W_τ h_e over rows of edges, on Hopper's matrix units: a warpgroup takes 128 places, 32 of each
// warp, as two products of 64 rows. W stays in shared memory; h stays in registers, where it is multiplied with φ_τ.
//
// The order of h's columns is free: a thread loads 16 of them in a row, and W's columns are put in the same order.

#define LEAST __int_as_float(0xff800000)

struct Best {
    float value;
    int place;
};

// Of two places the one with the larger value, NaN before all, else the first.
__device__ __forceinline__ Best better(Best a, Best b) {
    bool nan = b.value != b.value && a.value == a.value;
    bool equal = b.value == a.value || (b.value != b.value && a.value != a.value);
    return b.value > a.value || nan || (equal && b.place < a.place) ? b : a;
}

// Halve the columns of a lane COUNT / 2 at a time: lanes that differ in this bit exchange them and keep the better.
template <int COUNT> __device__ __forceinline__ void exchange(Best (&x)[32], int bit, int lane, int& begin) {
    bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        Best keep = upper ? x[i + COUNT / 2] : x[i], give = upper ? x[i] : x[i + COUNT / 2];
        give.value = __shfl_xor_sync(~0u, give.value, bit);
        give.place = __shfl_xor_sync(~0u, give.place, bit);
        x[i] = better(keep, give);
    }
    begin += upper ? COUNT / 2 : 0;
}

__device__ __forceinline__ void store(const Rows& x, VALUE* out, ARG* arg, int row, int column, Best a, Best b) {
    if (row >= x.total || column >= x.M) return;
    long long at = (long long)row * x.M + column;
#if VALUE_FLOAT
    *(float2*)(out + at) = make_float2(a.value, b.value);
#else
    *(u32*)(out + at) = pack(a.value, b.value);
#endif
    arg[at] = (ARG)a.place, arg[at + 1] = (ARG)b.place;
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1) rows_forward(Rows x, VALUE* out, ARG* arg) {
    extern __shared__ uint4 memory[];  // W (T, 64, 64) in swizzled rows of 128 bytes, then φ of each warp, (8, 32) pairs
    unsigned base = ((u32)__cvta_generic_to_shared(memory) + 1023) & ~1023u;
    uint4* w = memory + (base - (u32)__cvta_generic_to_shared(memory)) / 16;
    u32* phi = (u32*)(w + x.T * 512) + threadIdx.x / 32 * 256;
    int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, m0 = blockIdx.y * WIDE;

#pragma unroll 4
    for (int i = threadIdx.x; i < x.T * 512; i += 128 * GROUPS) {
        int t = i / 512, m = i / 8 % 64, n = i % 8 * 8;  // eight columns: those of 16 k + 2 part are in 16 bytes
        uint4 row = make_uint4(0, 0, 0, 0);
        if (m0 + m < x.M && n < x.N) row = *(const uint4*)(x.weight + ((long long)t * x.M + m0 + m) * x.N + n);
        u32 word[4] = {row.x, row.y, row.z, row.w};
        for (int k = 0; k < 4; k++)
            ((u32*)(w + t * 512 + m * 8 + ((n / 2 % 8 + k) ^ (m & 7))))[n / 16] = word[k];
    }
    written_for_products();
    __syncthreads();

    unsigned long long first = matrix_at(base);
    int units = (int)(((long long)x.total * W + 127) / 128);
    int group = threadIdx.x / 128, round = gridDim.x * GROUPS;
    if (group == GROUPS - 1) arrive(0);
    for (int start = 0; unit_of(start, 0, units) < units; start += round) {
        int unit = unit_of(start, group, units);
        long long begin = (long long)unit * 128 + threadIdx.x / 32 % 4 * 32;
        Edge edge = edge_at(x, begin + lane);
        {
            u32 f[8] = {};
            if (edge.live) {
                const u16* given = x.coef + edge.phi * x.T;
                if (x.T == 16) {
                    *(uint4*)f = *(const uint4*)given, *(uint4*)(f + 4) = *(const uint4*)(given + 8);
                } else {
#pragma unroll
                    for (int t = 0; t < 16; t++) f[t / 2] |= t < x.T ? (u32)given[t] << t % 2 * 16 : 0;
                }
            }
            __syncwarp();
#pragma unroll
            for (int t = 0; t < 8; t++) phi[32 * t + lane] = f[t];
            __syncwarp();
        }
        unsigned alive = __ballot_sync(~0u, edge.live);
        u32 h[2][2][8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int which = 8 * i + r;
            int source = __shfl_sync(~0u, edge.source, which), target = __shfl_sync(~0u, edge.destination, which);
            load_h(h[i / 2][i % 2], x, source, target, 16 * q);
        }
        float sums[2][32] = {};  // defined, or ptxas 12.8 runs the products one after another
        u32 a[2][4][4];
        take_turn(group);
        const int terms = __any_sync(~0u, unit < units) ? x.T : 0;  // shows the compiler that a warp does not part
#pragma unroll 1
        for (int t = 0; t < terms; t++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                u32 one = twice(phi[t / 2 * 32 + 16 * k + r] >> t % 2 * 16);
                u32 two = twice(phi[t / 2 * 32 + 16 * k + r + 8] >> t % 2 * 16);
                wait<1>();  // the product before the last has read a[k]
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[k][i][0] = mul2(h[k][0][2 * i], one), a[k][i][1] = mul2(h[k][1][2 * i], two);
                    a[k][i][2] = mul2(h[k][0][2 * i + 1], one), a[k][i][3] = mul2(h[k][1][2 * i + 1], two);
                }
                fence();
#pragma unroll
                for (int i = 0; i < 4; i++) multiply(sums[k], a[k][i], first + t * 512 + 2 * i, t + i > 0);
                commit();
            }
        }
        if (group < GROUPS - 1 || unit_of(start + round, 0, units) < units) arrive((group + 1) % GROUPS);
        wait<0>();

        int warp_row = (int)(begin / W);
#if W >= 16
#pragma unroll
        for (int k = 0; k < (W == 16 ? 2 : 1); k++) {
            Best best[32];
            int column = 0;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                best[i].value = LEAST, best[i].place = 0;
#pragma unroll
                for (int part = 0; part < W / 8; part++) {
                    int which = 8 * (W == 16 ? 2 * k + part : part) + r;
                    float value = sums[W == 16 ? k : part / 2][i / 2 * 4 + part % 2 * 2 + i % 2];
                    Best next = {alive >> which & 1 ? value : LEAST, which % W};
                    best[i] = part ? better(best[i], next) : next;
                }
            }
            exchange<16>(best, 16, lane, column);
            exchange<8>(best, 8, lane, column);
            exchange<4>(best, 4, lane, column);
            store(x, out, arg, warp_row + k, m0 + column / 2 * 8 + 2 * q, best[0], best[1]);
        }
#else
#pragma unroll
        for (int k = 0; k < 2; k++) {
            Best best[32];
            int column = 0;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                int which = 16 * k + i / 16 * 8 + r;
                float value = sums[k][i % 16 / 2 * 4 + i / 16 * 2 + i % 2];
                best[i] = {alive >> which & 1 ? value : LEAST, which % W};
            }
#if W == 8
            exchange<32>(best, 16, lane, column);
            exchange<16>(best, 8, lane, column);
            exchange<8>(best, 4, lane, column);
#else
            exchange<32>(best, 8, lane, column);
            exchange<16>(best, 4, lane, column);
#endif
            const int left = W == 8 ? 4 : 8;
#pragma unroll
            for (int i = 0; i < left; i += 2) {
                int at_column = column + i, half = at_column / 16;
                int which = 16 * k + 8 * half + (W == 8 ? 0 : lane / 16 * 4);
                store(x, out, arg, warp_row + which / W, m0 + at_column % 16 / 2 * 8 + 2 * q, best[i], best[i + 1]);
            }
        }
#endif
    }
}
