// Gradients at nodes and at φ, of a maximum or a sum over rows of edges, on Hopper's matrix units. With g the gradient at
// a message and P_τ = W_τᵀ g: dh = Σ_τ φ_τ P_τ and dφ_τ = P_τ · h. A warpgroup takes 64 places; while it adds one P_τ,
// the next is computed.

struct Gradients {
    const u16* grad;
    const ARG* arg;
    DST* d_dst;    // summed over a row
    float* d_src;  // added at each source, or stored where the edge is listed
    COEF* d_coef;
};

// 16 columns of the gradient at a message, from column c; zero where another edge has won.
__device__ __forceinline__ void load_g(u32 (&g)[8], const Rows& x, const Gradients& y, int row, int place, bool live, int c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool there = live && c + 8 * half < x.M;
        long long at = (long long)row * x.M + c + 8 * half;
        uint4 v = there ? *(const uint4*)(y.grad + at) : make_uint4(0, 0, 0, 0);
        g[4 * half] = v.x, g[4 * half + 1] = v.y, g[4 * half + 2] = v.z, g[4 * half + 3] = v.w;
#if MAX
        ARG won[8];
#pragma unroll
        for (int k = 0; k < (int)sizeof(ARG); k++)
            ((uint2*)won)[k] = there ? ((const uint2*)(y.arg + at))[k] : make_uint2(0, 0);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 mask = ((int)won[2 * k] == place ? 0xffffu : 0) | ((int)won[2 * k + 1] == place ? 0xffff0000u : 0);
            g[4 * half + k] &= mask;
        }
#endif
    }
}

// Columns of src for the 16 places of a warp; 16 bytes of row r are at 8 r + (part ^ r % 2), in different banks.
__device__ __forceinline__ void copy_src(uint4* src, const Rows& x, int source) {
    int lane = threadIdx.x % 32, n = lane % 8 * 8;
#pragma unroll
    for (int row = lane / 8; row < 16; row += 4) {
        const u16* from = x.src + (long long)__shfl_sync(~0u, source, row) * x.N + (n < x.N ? n : 0);
        copy16(src + 8 * row + (lane % 8 ^ row % 2), from, n < x.N);
    }
}

// 16 columns of h, from src
__device__ __forceinline__ void finish_h(u32 (&h)[8], const uint4* src, const Rows& x, int row, int destination, int q) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 a = src[8 * row + (2 * q + half ^ row % 2)], b = make_uint4(0, 0, 0, 0);
#if HAS_DST
        int n = 16 * q + 8 * half;
        if (n < x.N) b = *(const uint4*)(x.dst + (long long)destination * x.N + n);
#endif
        a = hidden(a, b);
        h[4 * half] = a.x, h[4 * half + 1] = a.y, h[4 * half + 2] = a.z, h[4 * half + 3] = a.w;
    }
}

// W transposed: (64, 64) of each τ, the columns of h in the order of results, those of the message in the order of a.
__device__ __forceinline__ void fill(uint4* w, const Rows& x) {
#pragma unroll 2
    for (int i = threadIdx.x; i < TERMS * 256; i += 128 * GROUPS) {
        int t = i / 256, pair = i % 32, n = i / 32 % 8 * 8;
        uint4 low = make_uint4(0, 0, 0, 0), high = low;
        const u16* from = x.weight + ((long long)t * x.M + 2 * pair) * x.N + n;
        if (n < x.N && 2 * pair < x.M) low = *(const uint4*)from;
        if (n < x.N && 2 * pair + 1 < x.M) high = *(const uint4*)(from + x.N);
        u32 a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            u32 word = __byte_perm(a[k / 2], b[k / 2], k % 2 ? 0x7632 : 0x5410);
            int to = (n + k) % 16 / 2 * 8 + (n + k) / 16 * 2 + k % 2;
            ((u32*)(w + t * 512 + to * 8 + (pair % 8 ^ (to & 7))))[pair / 8] = word;
        }
    }
}

__device__ __forceinline__ void begin_product(float (&p)[32], const u32 (&g)[2][8], unsigned long long w) {
    fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 a[4] = {g[0][2 * i], g[1][2 * i], g[0][2 * i + 1], g[1][2 * i + 1]};
        multiply(p, a, w + 2 * i, i > 0);
    }
    commit();
}

// dh += φ P, and dφ = P · h; the four lanes of a row have 16 columns each. The sum is complete before P's registers are
// written again: the compiler has moved additions beyond that.
__device__ __forceinline__ void add_product(float (&dh)[2][16], const float (&p)[32], const u32 (&h)[2][8], const u32* phi, float* d_phi, int t) {
    int lane = threadIdx.x % 32, r = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float f = to_float((u16)(phi[t / 2 * 16 + r + 8 * half] >> t % 2 * 16)), sums[2] = {};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float v = p[i / 2 * 4 + 2 * half + i % 2];
            dh[half][i] += f * v;
            sums[i % 2] += v * to_float((u16)(h[half][i / 2] >> i % 2 * 16));
        }
#if NEED_COEF
        float sum = sums[0] + sums[1];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (lane % 4 == 0) d_phi[(r + 8 * half) * 17 + t] = sum;
#endif
    }
}

// Halve the columns of a lane: lanes that differ in this bit exchange them and keep the sum.
template <int COUNT> __device__ __forceinline__ void exchange(float* x, int bit, int& begin) {
    bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        float keep = upper ? x[i + COUNT / 2] : x[i], give = upper ? x[i] : x[i + COUNT / 2];
        x[i] = keep + __shfl_xor_sync(~0u, give, bit);
    }
    begin += upper ? COUNT / 2 : 0;
}

template <int COUNT> __device__ __forceinline__ void store(DST* out, const Rows& x, int row, int column, const float* v) {
    if (row >= x.total || column >= x.N) return;
    DST* to = out + (long long)row * x.N + column;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
#if DST_FLOAT
        *(float2*)(to + i) = make_float2(v[i], v[i + 1]);
#else
        *(u32*)(to + i) = pack(v[i], v[i + 1]);
#endif
    }
}

// Sums over the places of a row, whose first is at r % W.
__device__ __forceinline__ void sum_rows(float (&dh)[2][16], const Rows& x, DST* out, int first, int q) {
    int column = 16 * q;
#if W == 16
#pragma unroll
    for (int i = 0; i < 16; i++) dh[0][i] += dh[1][i];
    exchange<16>(dh[0], 16, column), exchange<8>(dh[0], 8, column), exchange<4>(dh[0], 4, column);
    store<2>(out, x, first, column, dh[0]);
#else
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int begin = column;
#if W == 8
        exchange<16>(dh[half], 16, begin), exchange<8>(dh[half], 8, begin), exchange<4>(dh[half], 4, begin);
        store<2>(out, x, first + half, begin, dh[half]);
#else
        exchange<16>(dh[half], 8, begin), exchange<8>(dh[half], 4, begin);
        store<4>(out, x, first + 2 * half + threadIdx.x % 32 / 16, begin, dh[half]);
#endif
    }
#endif
}

__device__ __forceinline__ void add4(float* to, float4 v) {
    asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1) row_gradients(Rows x, Gradients y) {
    extern __shared__ uint4 memory[];  // W (T, 64, 64), then of each warp φ, (8, 16) pairs, dφ, (16, 17), and src
    u32 base = ((u32)__cvta_generic_to_shared(memory) + 1023) & ~1023u;
    uint4* w = memory + (base - (u32)__cvta_generic_to_shared(memory)) / 16;
    u32* phi = (u32*)(w + TERMS * 512) + threadIdx.x / 32 * 912;
    float* d_phi = (float*)(phi + 128);
    uint4* src = (uint4*)(phi + 400);
    int lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    fill(w, x);
    written_for_products();
    __syncthreads();

    unsigned long long first = matrix_at(base);
    int units = (int)(((long long)x.total * W + 63) / 64);
    int group = threadIdx.x / 128, own = threadIdx.x / 32 % 4 * 16;
    int unit = unit_of(0, group, units);
    Edge mine = edge_at(x, (long long)unit * 64 + own + lane % 16);
    copy_src(src, x, mine.source);
    for (int start = gridDim.x * GROUPS; unit < units; start += gridDim.x * GROUPS) {
        {
            u32 f[4] = {};
            int half = lane / 16;
            if (mine.live) {
                const u16* given = x.coef + mine.phi * TERMS + 8 * half;
                if (TERMS == 16) {
                    *(uint4*)f = *(const uint4*)given;
                } else {
#pragma unroll
                    for (int t = 0; t < 8; t++) f[t / 2] |= 8 * half + t < TERMS ? (u32)given[t] << t % 2 * 16 : 0;
                }
            }
            __syncwarp();
#pragma unroll
            for (int t = 0; t < 4; t++) phi[(4 * half + t) * 16 + lane % 16] = f[t];
            __syncwarp();
        }
        u32 g[2][8];
        u32 h[2][8];
        float dh[2][16] = {}, p[2][32];
        bool live[2];
        int source[2], to[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int which = r + 8 * k, target = __shfl_sync(~0u, mine.destination, which);
            source[k] = __shfl_sync(~0u, mine.source, which);
            live[k] = __shfl_sync(~0u, mine.live, which);
            load_g(g[k], x, y, target, __shfl_sync(~0u, mine.place, which), live[k], 16 * q);
            to[k] = target;
        }
        copied();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 2; k++) finish_h(h[k], src, x, r + 8 * k, to[k], q);
        // What the next unit reads is on its way while this one is computed.
        int after = unit_of(start, group, units);
        Edge next = edge_at(x, (long long)after * 64 + own + lane % 16);
        // Without a loop: the compiler would wait for products that run on in the next iteration.
        begin_product(p[0], g, first);
#pragma unroll
        for (int t = 0; t < TERMS; t++) {
            if (t + 1 < TERMS) begin_product(p[(t + 1) % 2], g, first + (t + 1) * 512), wait<1>();
            else wait<0>();
            add_product(dh, p[t % 2], h, phi, d_phi, t);
        }
        __syncwarp();
        copy_src(src, x, next.source);
#pragma unroll
        for (int i = 0; i < 32; i++) dh[i / 16][i % 16] = live[i / 16] ? dh[i / 16][i % 16] : 0;
#if RELU
#pragma unroll
        for (int i = 0; i < 32; i++) dh[i / 16][i % 16] = to_float((u16)(h[i / 16][i % 16 / 2] >> i % 2 * 16)) > 0 ? dh[i / 16][i % 16] : 0;
#endif
        if (y.d_src) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                long long listed = __shfl_sync(~0u, mine.listed, r + 8 * k);
                float* out = y.d_src + (ATOMIC ? (long long)source[k] : listed) * x.N + 16 * q;
#pragma unroll
                for (int i = 0; i < 16; i += 4) {
                    if (!live[k] || 16 * q + i >= x.N) continue;
                    float4 v = make_float4(dh[k][i], dh[k][i + 1], dh[k][i + 2], dh[k][i + 3]);
#if ATOMIC
                    add4(out + i, v);
#else
                    *(float4*)(out + i) = v;
#endif
                }
            }
        }
#if NEED_COEF
        __syncwarp();
        for (int i = 0; i < 16; i += 2) {
            int which = i + lane / 16, t = lane % 16;
            long long edge = __shfl_sync(~0u, mine.edge, which);
            bool there = __shfl_sync(~0u, mine.live, which);
            float v = d_phi[which * 17 + t];
#if COEF_FLOAT
            if (there && t < TERMS) y.d_coef[edge * TERMS + t] = v;
#else
            if (there && t < TERMS) y.d_coef[edge * TERMS + t] = (u16)pack(v, 0);
#endif
        }
#endif
        if (y.d_dst) sum_rows(dh, x, y.d_dst, (int)(((long long)unit * 64 + own) / W), q);
        mine = next, unit = after;
    }
    copied();  // of a unit that is not there
}
