// Half-precision numbers in pairs, products on the matrix units, and features of edges. HALF is 1 for float16 and 0 for
// bfloat16; no header is needed, so that NVRTC alone compiles this.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#if HALF
#define NAME "f16"
#define ONE 0x3C003C00u
#else
#define NAME "bf16"
#define ONE 0x3F803F80u
#endif

__device__ __forceinline__ float to_float(u16 x) {
#if HALF
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
#else
    return __uint_as_float((u32)x << 16);
#endif
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 y;
    asm("cvt.rn." NAME "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn." NAME "x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

// c is -0, so that zeros keep their sign
__device__ __forceinline__ u32 mul2(u32 a, u32 b) { return fma2(a, b, 0x80008000u); }
__device__ __forceinline__ u32 add2(u32 a, u32 b) { return fma2(a, ONE, b); }

// ReLU that keeps NaN
__device__ __forceinline__ u32 relu2(u32 a) {
    u32 y;
    asm("max.NaN." NAME "x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(0u));
    return y;
}

// The lower number of a pair, twice.
__device__ __forceinline__ u32 twice(u32 pair) { return __byte_perm(pair, 0, 0x1010); }

// 16 bytes of h = relu(dst + src)
__device__ __forceinline__ uint4 hidden(uint4 x, uint4 y) {
#if HAS_DST
    x.x = add2(x.x, y.x), x.y = add2(x.y, y.y), x.z = add2(x.z, y.z), x.w = add2(x.w, y.w);
#endif
#if RELU
    x.x = relu2(x.x), x.y = relu2(x.y), x.z = relu2(x.z), x.w = relu2(x.w);
#endif
    return x;
}

// d += a b for a (16, 16) and b (16, 8): the numbers of each as the matrix units spread them over a warp
__device__ __forceinline__ void product(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// four 8 x 8 matrices, transposed; lane l gives the address of row l % 8 of matrix l / 8
__device__ __forceinline__ void load_transposed(u32 (&x)[4], const void* row) {
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(at));
}

// Copy 16 bytes into shared memory, or zeros, while the thread goes on.
__device__ __forceinline__ void copy16(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0));
}
__device__ __forceinline__ void copied() { asm volatile("cp.async.wait_all;" ::: "memory"); }
