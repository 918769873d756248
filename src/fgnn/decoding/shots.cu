// Belief propagation on a GPU: a block decodes a shot from start to end, then takes the next from a queue.
//
// Nothing returns to the host before all shots are done, and the state of a shot stays in shared memory. A min-sum
// check sends only two sizes: the second smallest to the edge that has the smallest, the smallest to all others. So its
// messages are kept as two numbers and two bits for each edge (negative; second smallest) instead of one number each.
// Arithmetic and order are those of the lanes of the CPU, so that float32 gives the same words.
//
// The launcher defines SUM (tanh rule), LAYERED, HALF (sizes in float16; min-sum only), HOME (1: the state of the checks
// is in global memory, 2: all of it), bit4_t and slot4_t (four indices), CHECK_BITS (bits of a slot that number the check),
// THREADS and BLOCKS (of a multiprocessor).

#define CERTAIN 1e4f
#define MOST (1 - 1e-7f)
#define TINY 1e-30f

typedef unsigned char u8;
typedef unsigned int u32;

// What a check hears of a bit: the posterior less its own message, the prior (a leg begins), or the posterior (its
// message was taken out before).
enum Hears { OTHERS, PRIOR, POSTERIOR };

#if HALF && defined(__CUDACC__)  // without the toolkit's headers
__device__ __forceinline__ float half_to_float(unsigned short h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
__device__ __forceinline__ unsigned short float_to_half(float x) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#endif

// What all shots share. Bits and checks are numbered by falling degree; bit N and check M do not exist. Edges are stored
// in fours, which a thread loads at once.
struct Problem {
    const bit4_t* check_bits;  // (fours, checks): the bits of each check, N where it has fewer
    const slot4_t* bit_slots;  // (fours, bits): check and place of each edge of a bit
    const int* check_degrees;     // of each 32 checks, a multiple of 4
    const int* bit_degrees;       // of each 32 bits
    const int* level_starts;      // checks of one level share no bit
    const int* order;             // the number of each bit in the code
    int N, M, NP, MP, levels;
};

// The messages of the checks: the smallest size, which has the sign of the whole check, the second smallest, and a code
// of two bits for each edge. With HALF both sizes are in one word.
struct Checks {
    float* least;
    float* second;
    u32* codes;  // (words, checks)
    float* r;    // (places, checks), for SUM only
};

__device__ __forceinline__ float flip(float x, u32 sign) { return __int_as_float(__float_as_int(x) ^ (sign << 31)); }

// The message of an edge with this code (the sign in its lowest bit).
__device__ __forceinline__ float message(float least, float second, u32 code) {
    return flip(code & 2 ? second : fabsf(least), (code ^ (__float_as_int(least) >> 31)) & 1);
}

#if HALF
__device__ __forceinline__ void load_sizes(const Checks& s, int c, float& least, float& second) {
    const u32 both = ((const u32*)s.least)[c];
    least = half_to_float(both & 0xffff);
    second = half_to_float(both >> 16);
}
__device__ __forceinline__ void store_sizes(const Checks& s, int c, float least, float second) {
    ((u32*)s.least)[c] = float_to_half(least) | (u32)float_to_half(second) << 16;
}
#else
__device__ __forceinline__ void load_sizes(const Checks& s, int c, float& least, float& second) {
    least = s.least[c];
    second = s.second[c];
}
__device__ __forceinline__ void store_sizes(const Checks& s, int c, float least, float second) {
    s.least[c] = least;
    s.second[c] = second;
}
#endif

// The message that check c has sent along its k-th edge.
__device__ __forceinline__ float sent(const Problem& g, const Checks& s, int c, int k) {
#if SUM
    return s.r[k * g.MP + c];
#else
    const u32 code = s.codes[(k >> 4) * g.MP + c] >> 2 * (k & 15);
#if HALF
    float least, second;
    load_sizes(s, c, least, second);
    return message(least, second, code);
#else
    const float least = s.least[c];
    float size = fabsf(least);
    if (code & 2) size = s.second[c];  // rare: one edge of each check
    return flip(size, (code ^ (__float_as_int(least) >> 31)) & 1);
#endif
#endif
}

// The k-th bit of check c.
__device__ __forceinline__ u32 bit_of(const Problem& g, int c, int k) {
    return __ldg(&(&g.check_bits[(k >> 2) * g.MP + c].x)[k & 3]);
}

template <Hears H>
__device__ __forceinline__ float heard(float p, float message, const float* prior, u32 v) {
    return H == OTHERS ? p - message : H == PRIOR ? p - (p - prior[v]) : p;  // rounded as on the CPU
}

// Update one min-sum check; return whether the posteriors violate it.
template <Hears H>
__device__ __forceinline__ u32 min_sum(
    const Problem& g, const Checks& s, const float* post, const float* prior, u32 syndrome, int c, int degree,
    float scale, float offset) {
    float a, b, least = CERTAIN, second = CERTAIN;
    load_sizes(s, c, a, b);
    u32 parity = syndrome, negative = syndrome, old = 0, fresh = 0;
    int smallest = -1;
    bit4_t next = __ldg(&g.check_bits[c]);
    for (int k = 0; k < degree; k += 4) {
        const u32 v[4] = {next.x, next.y, next.z, next.w};
        if (k + 4 < degree) next = __ldg(&g.check_bits[((k >> 2) + 1) * g.MP + c]);  // under way while these are used
        if (k % 16 == 0) {
            if (H == OTHERS) old = s.codes[(k >> 4) * g.MP + c];
            fresh = 0;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 at = 2 * (k % 16 + i);
            const float p = post[v[i]], q = heard<H>(p, message(a, b, old >> at), prior, v[i]), size = fabsf(q);
            parity ^= p < 0;
            negative ^= q < 0;
            fresh |= (u32)(q < 0) << at;
            smallest = size < least ? k + i : smallest;
            second = fminf(second, fmaxf(least, size));
            least = fminf(least, size);
        }
        if (k % 16 == 12 || k + 4 >= degree) s.codes[(k >> 4) * g.MP + c] = fresh;
    }
    if (smallest >= 0) s.codes[(smallest >> 4) * g.MP + c] |= 2u << 2 * (smallest & 15);
    store_sizes(s, c, flip(scale * fmaxf(least - offset, 0.0f), negative), scale * fmaxf(second - offset, 0.0f));
    return parity;
}

// Update one sum-product check: tanh(r / 2) is the product of tanh(q / 2) over the other bits.
template <Hears H>
__device__ __forceinline__ u32 sum_product(
    const Problem& g, const Checks& s, const float* post, const float* prior, u32 syndrome, int c, int degree) {
    float product = 1;
    u32 parity = syndrome, negative = syndrome;
    for (int k = 0; k < degree; k++) {
        const u32 v = bit_of(g, c, k);
        if (v == g.N) break;
        const float p = post[v], q = heard<H>(p, H == OTHERS ? s.r[k * g.MP + c] : 0, prior, v);
        const float t = fmaxf(tanhf(0.5f * fabsf(q)), TINY);
        parity ^= p < 0;
        negative ^= q < 0;
        product *= t;
        s.r[k * g.MP + c] = flip(t, q < 0);
    }
    for (int k = 0; k < degree; k++) {
        if (bit_of(g, c, k) == g.N) break;
        const float t = s.r[k * g.MP + c], x = fminf(product / fabsf(t), MOST);
        s.r[k * g.MP + c] = flip(logf((1 + x) / (1 - x)), negative ^ (t < 0));
    }
    return parity;
}

template <Hears H>
__device__ __forceinline__ u32 update(
    const Problem& g, const Checks& s, const float* post, const float* prior, u32 syndrome, int c, int degree,
    float scale, float offset) {
#if SUM
    return sum_product<H>(g, s, post, prior, syndrome, c, degree);
#else
    return min_sum<H>(g, s, post, prior, syndrome, c, degree, scale, offset);
#endif
}

template <Hears H>
__device__ __forceinline__ u32 check_pass(
    const Problem& g, const Checks& s, const float* post, const float* prior, const u8* syndrome, float scale,
    float offset) {
    u32 bad = 0;
    for (int c = threadIdx.x; c < g.M; c += THREADS)
        bad |= update<H>(g, s, post, prior, syndrome[c], c, __ldg(&g.check_degrees[c >> 5]), scale, offset);
    return bad;
}

__device__ __forceinline__ void bit_pass(
    const Problem& g, const Checks& s, float* post, const float* prior, const float* gamma, int gamma_step) {
    int v = threadIdx.x;
    slot4_t next = {};
    float next_base = 0, next_memory = 0;
    if (v < g.N) {
        next = __ldg(&g.bit_slots[v]);
        next_base = __ldg(&prior[v]);
        next_memory = __ldg(&gamma[v * gamma_step]);
    }
    for (; v < g.N; v += THREADS) {
        slot4_t slots = next;
        const float base = next_base, memory = next_memory;
        const int degree = __ldg(&g.bit_degrees[v >> 5]), then = v + THREADS;
        if (then < g.N) {  // under way while this bit is summed
            next = __ldg(&g.bit_slots[then]);
            next_base = __ldg(&prior[then]);
            next_memory = __ldg(&gamma[then * gamma_step]);
        }
        float total = base + memory * (post[v] - base);
        for (int k = 0; k < degree; k += 4) {
            if (k) slots = __ldg(&g.bit_slots[(k >> 2) * g.NP + v]);
            const u32 slot[4] = {slots.x, slots.y, slots.z, slots.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (k + i >= degree) break;
                const u32 c = slot[i] & ((1u << CHECK_BITS) - 1);
                if (!SUM || c != g.M) total += sent(g, s, c, slot[i] >> CHECK_BITS);
            }
        }
        post[v] = total;
    }
}

#if LAYERED
// Update the posteriors after every check; checks of one level share no bit.
template <bool FIRST>
__device__ __forceinline__ void layers(
    const Problem& g, const Checks& s, float* post, const u8* syndrome, float scale, float offset) {
    for (int level = 0; level < g.levels; level++) {
        for (int c = g.level_starts[level] + threadIdx.x; c < g.level_starts[level + 1]; c += THREADS) {
            const int degree = __ldg(&g.check_degrees[c >> 5]);
            for (int k = 0; k < degree && !FIRST; k++) {  // take the old messages out
                const u32 v = bit_of(g, c, k);
                if (v == g.N) break;
                post[v] -= sent(g, s, c, k);
            }
            update<POSTERIOR>(g, s, post, nullptr, syndrome[c], c, degree, scale, offset);
            for (int k = 0; k < degree; k++) {
                const u32 v = bit_of(g, c, k);
                if (v == g.N) break;
                post[v] += sent(g, s, c, k);
            }
        }
        __syncthreads();
    }
}

__device__ __forceinline__ u32 violated(const Problem& g, const float* post, const u8* syndrome) {
    u32 bad = 0;
    for (int c = threadIdx.x; c < g.M; c += THREADS) {
        u32 parity = syndrome[c];
        for (int k = 0; k < __ldg(&g.check_degrees[c >> 5]); k++) parity ^= post[bit_of(g, c, k)] < 0;
        bad |= parity;
    }
    return bad;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) decode_shots(
    const Problem g, const float* priors, long long prior_step, const float* gammas, int gamma_row, int gamma_step,
    const int* lengths, int legs, const u8* syndromes, u8* words, float* posteriors, int* iterations, u8* converged,
    float* scratch, long long scratch_step, int* queue, int shots, float scale, float offset, int solutions) {
    extern __shared__ double memory[];
    __shared__ int taken;
    __shared__ double cost;
#if HOME == 2
    float* post = (float*)(scratch + blockIdx.x * scratch_step);
#else
    float* post = (float*)memory;
#endif
    u8* syndrome = (u8*)(post + (g.N + 8) / 8 * 8);
#if HOME == 1
    float* state = scratch + blockIdx.x * scratch_step;
#else
    float* state = (float*)(syndrome + (g.M + 8) / 8 * 8);
#endif
    const Checks s = {state, state + g.MP, (u32*)state + (HALF ? 1 : 2) * g.MP, state};
    for (;;) {
        if (threadIdx.x == 0) taken = atomicAdd(queue, 1);
        __syncthreads();
        const long long shot = taken;
        if (shot >= shots) return;
        const float* prior = priors + shot * prior_step;
        for (int v = threadIdx.x; v <= g.N; v += THREADS) post[v] = prior[v];
        for (int c = threadIdx.x; c < g.M; c += THREADS) syndrome[c] = syndromes ? syndromes[shot * g.M + c] : 0;
#if !SUM
        if (threadIdx.x == 0) {  // the check that does not exist
            store_sizes(s, g.M, 0, 0);
            s.codes[g.M] = 0;
        }
#endif
        __syncthreads();
        int leg = 0, step = 0, total = 0, found = 0;
        double best = 0;
        float half = 1;
        for (;;) {
            half = step ? 0.5f * half : 0.5f;
            const float factor = scale > 0 ? scale : 1 - half;
#if LAYERED
            u32 bad = step ? violated(g, post, syndrome) : 1;
#else
            u32 bad = step ? check_pass<OTHERS>(g, s, post, prior, syndrome, factor, offset)
                           : check_pass<PRIOR>(g, s, post, prior, syndrome, factor, offset);
#endif
            if (threadIdx.x == 0) cost = 0;
            const bool good = !__syncthreads_or(bad) && step;
            if (!good && step < lengths[leg]) {
#if LAYERED
                if (step) layers<false>(g, s, post, syndrome, factor, offset);
                else layers<true>(g, s, post, syndrome, factor, offset);
#else
                bit_pass(g, s, post, prior, gammas + (long long)leg * gamma_row, gamma_step);
                __syncthreads();
#endif
                step++;
                total++;
                continue;
            }
            double own = 0;
            for (int v = threadIdx.x; v < g.N; v += THREADS)
                if (post[v] < 0) own += prior[v];
            if (own != 0) atomicAdd(&cost, own);
            __syncthreads();
            const double weight = cost;
            const bool last = leg + 1 >= legs || found + good >= solutions;
            // the first word that satisfies the checks, a better one, or at the end what there is
            if ((good && (!found || weight < best)) || (last && !found)) {
                best = weight;
                for (int v = threadIdx.x; v < g.N; v += THREADS)
                    words[shot * g.N + g.order[v]] = post[v] < 0;
            }
            found += good;
            if (last) break;
            __syncthreads();
            leg++;
            step = 0;
        }
        if (posteriors)
            for (int v = threadIdx.x; v < g.N; v += THREADS) posteriors[shot * g.N + g.order[v]] = post[v];
        if (threadIdx.x == 0) {
            iterations[shot] = total;
            converged[shot] = found > 0;
        }
        __syncthreads();
    }
}
