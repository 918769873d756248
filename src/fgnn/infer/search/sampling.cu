// Sample a subgraph exactly given the rest, in many models at once: a block takes a model, or a copy of one.
//
// All models follow one plan (`sampling_plan.py`), which eliminates the free variables. A step has an item for every
// joint state of the variables that remain beside its own. An item adds tables and messages of earlier steps, sums the
// variable out, and draws its state already now; only one of the drawn states is read on the way back. At temperature 0
// sums become maxima. Steps of one level do not depend on each other, and read messages of the level before: two
// buffers in shared memory hold them. The drawn states go to global memory, a byte each.
//
// The launcher defines THREADS, BLOCKS (of a multiprocessor), STATES (of a variable, at most), SHARED_STATES and
// SHARED_MESSAGES (0: in global memory).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

#define CHUNK (STATES < 4 ? STATES : 4)  // states of a variable that are weighed at once

// The first four are read at every item: first item, first source, where the scores of its states given the rest
// are kept, and the number of sources, with that of states in the upper half.
struct __align__(16) Step {
    int item, source, given, counts;
    int variable, unary, alone, alones;  // what is eliminated; tables of no other free variable
    int scope, width, _, __;             // the variables beside it

    __device__ __forceinline__ int states() const { return counts >> 16; }
};

// A table or message. Its entry is base + rows[row + item of the step] + state * stride.
struct __align__(16) Source {
    int slot, row, stride, cell;  // where a message starts, or -1 (-2 with fixed variables) and where a table starts
    int fixed, fixeds, _, __;     // the fixed variables of the table
};

struct Fixed {
    int variable, stride;
};

struct Plan {
    const Step* steps;
    const Source* sources;
    const Source* alone;
    const Fixed* fixed;
    const int* scope;    // variables ...
    const int* strides;  // ... and what a state of each adds to the item
    const int* levels;   // where the steps of each level start, and the end
    const u16* owners;   // the step of each item, counted from the first of its level
    const u16* rows;
    int num_steps, num_sources, num_levels, num_given, room, num_items, num_variables, num_unary, num_values;
};

__device__ __forceinline__ u32 mixed(u32 h) {
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
}

__device__ __forceinline__ int entry(const Plan& p, const Source& s, const u8* x) {
    int at = s.cell;
    for (int e = s.fixed; e < s.fixed + s.fixeds; e++) at += x[p.fixed[e].variable] * p.fixed[e].stride;
    return at;
}

// What depends on the fixed variables: where each table is read, and the score of each state of a variable alone.
__device__ __forceinline__ void condition(
    const Plan& p, const u8* x, const float* unary, const float* values, int* bases, float* given) {
    for (int q = threadIdx.x; q < p.num_sources; q += THREADS)
        if (p.sources[q].slot == -2) bases[q] = entry(p, p.sources[q], x);
    for (int t = threadIdx.x; t < p.num_steps; t += THREADS) {
        const Step step = p.steps[t];
        for (int s = 0; s < step.states(); s++) given[step.given + s] = unary[step.unary + s];
        for (int q = step.alone; q < step.alone + step.alones; q++) {
            const int at = entry(p, p.alone[q], x);
            for (int s = 0; s < step.states(); s++) given[step.given + s] += values[at + s * p.alone[q].stride];
        }
    }
}

// Sum out the variable of a step for one joint state of the others, and draw its state.
__device__ __forceinline__ float eliminate(
    const Plan& p, const int4 step, int item, const float* values, const int* bases, const float* given,
    const float* messages, float temperature, float beta, u32 key, u8* drawn) {
    const int source = step.y, sources = step.w & 0xffff, states = step.w >> 16;
    float top = 0, total = 1;
    int pick = 0;
    for (int first = 0; first < states; first += CHUNK) {
        float v[CHUNK];
#pragma unroll
        for (int c = 0; c < CHUNK; c++)
            if (first + c < states) v[c] = given[step.z + first + c];
        for (int q = source; q < source + sources; q++) {
            const int4 from = __ldg((const int4*)&p.sources[q]);  // slot, row, stride, cell
            const int at = __ldg(&p.rows[from.y + item]) + first * from.z;
            if (from.x >= 0) {
                const float* message = messages + from.x;
                const float shift = message[0];  // so that messages do not grow
#pragma unroll
                for (int c = 0; c < CHUNK; c++)
                    if (first + c < states) v[c] += message[at + c * from.z] - shift;
            } else {
                const float* table = values + (from.x == -1 ? from.w : bases[q]);
#pragma unroll
                for (int c = 0; c < CHUNK; c++)
                    if (first + c < states) v[c] += __ldg(&table[at + c * from.z]);
            }
        }
#pragma unroll
        for (int c = 0; c < CHUNK; c++) {
            const int s = first + c;
            if (s >= states) break;
            if (s == 0) {
                top = v[c];
                continue;
            }
            const u32 random = mixed(key + s * 0x9e3779b9u);
            if (temperature == 0) {
                if (v[c] > top || (v[c] == top && (random & 1))) pick = s;
            } else {
                const float weight = expf(-fabsf(v[c] - top) * beta);  // of the lower one
                total = v[c] > top ? total * weight + 1 : total + weight;
                if ((random >> 8) * (1.0f / (1 << 24)) * total < (v[c] > top ? 1.0f : weight)) pick = s;
            }
            top = fmaxf(v[c], top);
        }
    }
    *drawn = pick;
    return temperature == 0 ? top : top + temperature * logf(total);
}

// Read the states that were drawn, from the last level to the first.
__device__ __forceinline__ void read_back(const Plan& p, const u8* drawn, u8* x) {
    for (int level = p.num_levels - 1; level >= 0; level--) {
        for (int t = p.levels[level] + threadIdx.x; t < p.levels[level + 1]; t += THREADS) {
            const Step& step = p.steps[t];
            int at = step.item;
            for (int a = step.scope; a < step.scope + step.width; a++)
                at += x[__ldg(&p.scope[a])] * __ldg(&p.strides[a]);
            x[step.variable] = drawn[at];
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sample_subgraph(
    const Plan p, const float* unaries, const float* all_values, const float* temperatures, u8* states, int models,
    int rows, u32 seed, u8* scratch, long long scratch_step) {
    extern __shared__ double memory[];
    u8* home = scratch + blockIdx.x * scratch_step;
    int* bases = (int*)home;
    float* given = (float*)(bases + p.num_sources);
    float* spare = given + p.num_given;
    float* messages = SHARED_MESSAGES ? (float*)memory : spare;
    u8* drawn = (u8*)(SHARED_MESSAGES ? spare : spare + 2 * p.room);
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        u8* mine = states + (long long)row * p.num_variables;
        u8* x = SHARED_STATES ? (u8*)((float*)memory + (SHARED_MESSAGES ? 2 * p.room : 0)) : mine;
        const int model = row % models;
        const float* values = all_values + (long long)model * p.num_values;
        const float temperature = temperatures[row], beta = temperature > 0 ? 1 / temperature : 0;
        if (SHARED_STATES)
            for (int i = threadIdx.x; i < p.num_variables; i += THREADS) x[i] = mine[i];
        __syncthreads();
        condition(p, x, unaries + (long long)model * p.num_unary, values, bases, given);
        __syncthreads();
        const u32 key = mixed(seed * 0x85ebca6bu + row);
        int begin = 0;
        for (int level = 0; level < p.num_levels; level++) {
            const int first = __ldg(&p.levels[level]), last = __ldg(&p.levels[level + 1]);
            const int end = last < p.num_steps ? p.steps[last].item : p.num_items;
            float* out = messages + (level & 1) * p.room;
            const float* in = messages + (~level & 1) * p.room;
            for (int e = begin + threadIdx.x; e < end; e += THREADS) {
                const int4 step = __ldg((const int4*)&p.steps[first + __ldg(&p.owners[e])]);
                out[e - begin] = eliminate(
                    p, step, e - step.x, values, bases, given, in, temperature, beta, key ^ (e * 0xc2b2ae35u),
                    &drawn[e]);
            }
            begin = end;
            __syncthreads();
        }
        read_back(p, drawn, x);
        if (SHARED_STATES)
            for (int i = threadIdx.x; i < p.num_variables; i += THREADS) mine[i] = x[i];
        __syncthreads();
    }
}
