// One pass over a tensor that adds its sketch into a row. Compiled at first use by NVRTC.
//
// A row is 2064 words of 64 bits, as in row.py: counts, sums, extrema, then one word per bin. Rows
// are added to with atomics, so several launches may fill one row, and one launch many rows.
//
// A block keeps a histogram of 32-bit counts in shared memory. (Copies of it did not pay: the
// hardware already adds up lanes that meet the same word; H200, 2026-11.) Moments are float64, which
// Hopper adds at half the rate of float32, so they hide behind the loads. The fast paths see whole 16-byte vectors of ordinary values; a vector that holds a NaN, an infinity or a magnitude below
// 2^-128 is read again, value by value. That leaves the lowest bins to zeros alone, so zeros need not
// be counted. When a block is done with a row it reduces, then touches global memory once per field
// and per non-empty bin.
//
// Measured speeds are in benchmarks/results/gpu-kernels.csv.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// The host defines THREADS, the threads of a block. One block fills a multiprocessor.
#define BINS 2048
#define HEADER 16
#define WORDS (HEADER + BINS)
#define INF_BITS 0x7f800000u
#define TINY_BITS 0x00200000u  // 2^-128: magnitudes below share the bins of zero
#define F_INF __uint_as_float(INF_BITS)
#define D_INF __longlong_as_double(0x7ff0000000000000LL)

// Format codes: the order of DTYPES in cuda.py.
enum { F32, F64, F16, BF16, E4M3FN, E5M2, E4M3FNUZ, E5M2FNUZ, I8, U8, BOOL, I16, U16, I32, U32, I64, U64 };
enum { PLAIN, COPY, DIFFERENCE };

// The histogram of the block. It lies where the bits of an index are all zero in its address, so that
// one instruction masks an index and adds the address: passes over 16-bit formats are limited by how
// many there are. (Shared memory does not begin at 0, and alignment counts from its beginning.)
__shared__ u32 room[2 * BINS];
__device__ __forceinline__ u32 home() {
  return ((u32)__cvta_generic_to_shared(room) + 4u * BINS - 1) & ~(4u * BINS - 1);
}
__device__ __forceinline__ u32 *histogram() {
  return room + (home() - (u32)__cvta_generic_to_shared(room)) / 4;
}

// What a thread gathers of narrow formats, those that float32 holds exactly.
struct Acc {
  double s, sa, s2, s4;
  float mn, mx;
  u32 least;  // bits of the smallest non-zero magnitude, minus one, so that zero comes last
  u32 tinies, nans, pinfs, ninfs;
};

// The same for wide formats: extrema in float64, zeros and subnormals counted one by one.
struct Wide {
  double s, sa, s2, s4, low, high, small;
  u32 zeros, subs, nans, pinfs, ninfs;
};

__device__ __forceinline__ void reset(Acc &a) {
  a.s = a.sa = a.s2 = a.s4 = 0;
  a.mn = F_INF, a.mx = -F_INF, a.least = 0xffffffffu;
  a.tinies = a.nans = a.pinfs = a.ninfs = 0;
}
__device__ __forceinline__ void reset(Wide &a) {
  a.s = a.sa = a.s2 = a.s4 = 0;
  a.low = D_INF, a.high = -D_INF, a.small = D_INF;
  a.zeros = a.subs = a.nans = a.pinfs = a.ninfs = 0;
}

__device__ __forceinline__ void bin(u32 bits) {
  u32 at = ((bits >> 19) & 0x1ffcu) | home();
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(at) : "memory");
}

template <class A> __device__ __forceinline__ void moments(A &a, double d) {
  double q = d * d;
  a.s += d, a.sa += fabs(d), a.s2 += q, a.s4 = fma(q, q, a.s4);
}

// The slow paths take and return the accumulator by value: a reference would move it, for the fast
// paths too, from registers to memory.
__device__ __noinline__ Acc any(Acc a, float f) {
  u32 bits = __float_as_uint(f), size = bits & 0x7fffffffu;
  if (size > INF_BITS) {
    a.nans++;
    return a;
  }
  bin(bits);
  if (size == INF_BITS) {
    if (bits == size) a.pinfs++;
    else a.ninfs++;
    return a;
  }
  moments(a, (double)f);
  a.mn = fminf(a.mn, f), a.mx = fmaxf(a.mx, f);
  a.least = min(a.least, size - 1u);
  a.tinies += size != 0 && size < TINY_BITS;
  return a;
}

// A value of a wide format: moments and extrema in float64, the bin by its float32 rounding.
__device__ __noinline__ Wide wide(Wide a, double d) {
  u64 size = __double_as_longlong(d) & 0x7fffffffffffffffULL;
  if (size > 0x7ff0000000000000ULL) {
    a.nans++;
    return a;
  }
  u32 bits = __float_as_uint(__double2float_rn(d));
  bin(bits);
  if (size == 0x7ff0000000000000ULL) {
    if (d > 0) a.pinfs++;
    else a.ninfs++;
    return a;
  }
  moments(a, d);
  a.low = fmin(a.low, d), a.high = fmax(a.high, d);
  if (size == 0) a.zeros++;
  else a.small = fmin(a.small, fabs(d));
  a.subs += (bits & INF_BITS) == 0 && (bits & 0x7fffffu) != 0;
  return a;
}

// -- formats ------------------------------------------------------------------------------------

#define NARROW_FORMATS(DO) DO(F32) DO(F16) DO(BF16) DO(E4M3FN) DO(E5M2) DO(E4M3FNUZ) DO(E5M2FNUZ)  \
  DO(I8) DO(U8) DO(BOOL) DO(I16) DO(U16)
#define WIDE_FORMATS(DO) DO(F64) DO(I32) DO(U32) DO(I64) DO(U64)

__device__ __forceinline__ bool is_wide(int format) {
  return format == F64 || format == I32 || format == U32 || format == I64 || format == U64;
}

__device__ __host__ constexpr int width(int format) {
  return format == F64 || format == I64 || format == U64                     ? 8
         : format == F32 || format == I32 || format == U32                   ? 4
         : format == F16 || format == BF16 || format == I16 || format == U16 ? 2
                                                                             : 1;
}

__device__ __forceinline__ float half_to_float(u16 raw) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(raw));
  return f;
}

// Eight-bit floats: exponent and mantissa moved to their place in a float32, then the bias put right
// by a multiplication, which also makes subnormals right.
__device__ __forceinline__ float eight(u32 raw, int shift, float scale) {
  float f = __uint_as_float((raw & 0x7fu) << shift) * scale;
  return (raw & 0x80u) ? -f : f;
}

template <int D> __device__ __forceinline__ float narrow(u32 raw) {
  const float nan = __uint_as_float(0x7fc00000u);
  if (D == F32) return __uint_as_float(raw);
  if (D == BF16) return __uint_as_float(raw << 16);
  if (D == F16) return half_to_float((u16)raw);
  if (D == E4M3FN) return (raw & 0x7fu) == 0x7fu ? nan : eight(raw, 20, 0x1p120f);
  if (D == E4M3FNUZ) return raw == 0x80u ? nan : eight(raw, 20, 0x1p119f);
  if (D == E5M2FNUZ) return raw == 0x80u ? nan : eight(raw, 21, 0x1p111f);
  if (D == E5M2) {
    if ((raw & 0x7fu) < 0x7cu) return eight(raw, 21, 0x1p112f);
    if ((raw & 0x7fu) > 0x7cu) return nan;
    return (raw & 0x80u) ? -F_INF : F_INF;
  }
  if (D == I8) return (float)(signed char)raw;
  if (D == U8) return (float)raw;
  if (D == BOOL) return raw ? 1.0f : 0.0f;
  if (D == I16) return (float)(short)raw;
  return (float)raw;  // U16
}

template <int D> __device__ __forceinline__ float read(const void *x, i64 i) {
  if (width(D) == 4) return narrow<D>(((const u32 *)x)[i]);
  if (width(D) == 2) return narrow<D>(((const u16 *)x)[i]);
  return narrow<D>(((const u8 *)x)[i]);
}

template <int D> __device__ __forceinline__ double read_wide(const void *x, i64 i) {
  if (D == F64) return ((const double *)x)[i];
  if (D == I32) return (double)((const int *)x)[i];
  if (D == U32) return (double)((const u32 *)x)[i];
  if (D == I64) return (double)((const i64 *)x)[i];
  return (double)((const u64 *)x)[i];
}

// Any value of any format, read by itself: for formats and places that are not worth more code.
__device__ __noinline__ float read_any(const void *x, i64 i, int format) {
  switch (format) {
#define READ(D) case D: return read<D>(x, i);
    NARROW_FORMATS(READ)
  }
  return 0;
}

__device__ __noinline__ double read_any_wide(const void *x, i64 i, int format) {
  switch (format) {
#define READ_WIDE(D) case D: return read_wide<D>(x, i);
    WIDE_FORMATS(READ_WIDE)
  }
  return 0;
}

// -- vectors of 16 bytes ------------------------------------------------------------------------

template <int D> __device__ __noinline__ Acc slowly(Acc a, const void *at) {
#pragma unroll 1
  for (int k = 0; k < 16 / width(D); k++) a = any(a, read<D>(at, k));
  return a;
}

template <int D> __device__ __noinline__ Acc slowly(Acc a, const void *at, const void *old) {
#pragma unroll 1
  for (int k = 0; k < 16 / width(D); k++) a = any(a, read<D>(at, k) - read<D>(old, k));
  return a;
}

// Four float32 values; false, and nothing done, if one of them is unusual.
__device__ __forceinline__ bool four(Acc &a, const float *f) {
  u32 most = 0, least = 0xffffffffu;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u32 size = __float_as_uint(f[k]) & 0x7fffffffu;
    most = max(most, size), least = min(least, size - 1u);
  }
  if (most >= INF_BITS || least < TINY_BITS - 1u) return false;
  a.least = min(a.least, least);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    bin(__float_as_uint(f[k]));
    moments(a, (double)f[k]);
    a.mn = fminf(a.mn, f[k]), a.mx = fmaxf(a.mx, f[k]);
  }
  return true;
}

// Extrema of 16-bit formats are kept in pairs, as they come.
struct Pairs { u32 mn, mx, least; };

template <int D> __device__ __forceinline__ u32 pair_min(u32 a, u32 b) {
  u32 c;
  if (D == BF16) asm("min.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("min.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
template <int D> __device__ __forceinline__ u32 pair_max(u32 a, u32 b) {
  u32 c;
  if (D == BF16) asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  else asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

template <int D> __device__ __forceinline__ float low_half(u32 w) {
  return D == BF16 ? __uint_as_float(w << 16) : half_to_float((u16)w);
}
template <int D> __device__ __forceinline__ float high_half(u32 w) {
  return D == BF16 ? __uint_as_float(w & 0xffff0000u) : half_to_float((u16)(w >> 16));
}

template <int D> __device__ __forceinline__ Pairs no_pairs() {
  const u32 inf = D == BF16 ? 0x7f807f80u : 0x7c007c00u;
  return {inf, inf | 0x80008000u, 0xffffffffu};
}

template <int D> __device__ __forceinline__ void fold(Acc &a, const Pairs &p) {
  a.mn = fminf(a.mn, fminf(low_half<D>(p.mn), high_half<D>(p.mn)));
  a.mx = fmaxf(a.mx, fmaxf(low_half<D>(p.mx), high_half<D>(p.mx)));
  u32 least = min(p.least & 0xffffu, p.least >> 16);
  if (least != 0xffffu) a.least = min(a.least, __float_as_uint(low_half<D>(least + 1u)) - 1u);
}

// Eight 16-bit values in four words; false, and nothing done, if one of them is unusual.
template <int D> __device__ __forceinline__ bool eight16(Acc &a, Pairs &p, const u32 *w) {
  u32 most = 0, least = 0xffffffffu;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u32 size = w[k] & 0x7fff7fffu;
    most = __vmaxu2(most, size);
    least = __viaddmin_u16x2(size, 0xffffffffu, least);
  }
  const u32 inf = D == BF16 ? 0x7f807f80u : 0x7c007c00u;
  // A pair is below the limit in both halves just if the limit minus one is its maximum with it.
  bool strange = __vmaxu2(most, inf - 0x00010001u) != inf - 0x00010001u;
  // float16 has nothing below 2^-24; bfloat16 reaches as far down as float32.
  if (D == BF16) strange |= __vminu2(least, 0x001f001fu) != 0x001f001fu;
  if (strange) return false;
  p.least = __vminu2(p.least, least);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    p.mn = pair_min<D>(p.mn, w[k]), p.mx = pair_max<D>(p.mx, w[k]);
    float f = low_half<D>(w[k]), g = high_half<D>(w[k]);
    bin(__float_as_uint(f)), bin(__float_as_uint(g));
    moments(a, (double)f), moments(a, (double)g);
  }
  return true;
}

#if __CUDA_ARCH__ >= 890
#define HAS_E4M3 1
#else
#define HAS_E4M3 0
#endif

// Two eight-bit floats as two float16: exact, NaN and infinities included.
template <int D> __device__ __forceinline__ u32 two_halves(u32 raw) {
  u32 w;
#if HAS_E4M3
  if (D == E4M3FN) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(w) : "h"((u16)raw));
    return w;
  }
#endif
  return __byte_perm(raw, 0, 0x1404);  // e5m2 is the upper byte of a float16
}

template <int D> __device__ __forceinline__ void vector(Acc &a, Pairs &p, const uint4 &v,
                                                        const void *at) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  bool done = false;
  if (D == F32) {
    const float f[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                        __uint_as_float(v.w)};
    done = four(a, f);
  } else if (D == F16 || D == BF16) {
    done = eight16<D>(a, p, w);
  } else {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 pairs[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        pairs[k] = two_halves<D>((w[2 * half + k / 2] >> (16 * (k & 1))) & 0xffffu);
      if (!eight16<F16>(a, p, pairs)) {
#pragma unroll 1
        for (int k = 0; k < 8; k++) a = any(a, read<D>(at, 8 * half + k));
      }
    }
    return;
  }
  if (!done) a = slowly<D>(a, at);
}

// What stands for D in vectors: eight-bit floats are read as float16.
template <int D> struct As { static const int pairs = D == BF16 ? BF16 : F16; };

// -- sweeps -------------------------------------------------------------------------------------

// Where vectors lie: dense, or in runs of `run` vectors that begin `pitch` vectors after each other.
struct Dense {
  __device__ __forceinline__ i64 operator()(i64 i) const { return i; }
};
struct Runs {
  u32 run, pitch;
  __device__ __forceinline__ i64 operator()(i64 i) const {
    u32 nth = (u32)i / run;
    return (i64)nth * pitch + ((u32)i - nth * run);
  }
};

// Vectors first, first + stride, ... of `vectors`; copied to `to` on the way with COPY. While a few of
// them are worked on, as many are on their way.
template <int D, int MODE, class At>
__device__ __forceinline__ void sweep_vectors(const uint4 *body, uint4 *to, i64 vectors, i64 first,
                                              i64 stride, At at, Acc &a) {
  const int AHEAD = D == F32 ? 3 : 2;
  i64 i = first, jump = AHEAD * stride;
  Pairs p = no_pairs<As<D>::pairs>();
  if (i + (AHEAD - 1) * stride < vectors) {
    uint4 v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) v[k] = body[at(i + k * stride)];
    for (i += jump; i + (AHEAD - 1) * stride < vectors; i += jump) {
      uint4 next[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) next[k] = body[at(i + k * stride)];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        i64 now = i - jump + k * stride;
        if (MODE == COPY) to[now] = v[k];
        vector<D>(a, p, v[k], body + at(now));
        v[k] = next[k];
      }
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      i64 now = i - jump + k * stride;
      if (MODE == COPY) to[now] = v[k];
      vector<D>(a, p, v[k], body + at(now));
    }
  }
  for (; i < vectors; i += stride) {
    uint4 v = body[at(i)];
    if (MODE == COPY) to[i] = v;
    vector<D>(a, p, v, body + at(i));
  }
  if (D != F32) fold<As<D>::pairs>(a, p);
}

// Values first, first + stride, ... of a stretch of memory, by vectors where it is aligned; copied to
// `to` on the way if that is not null. With a copy, what does not fill a vector, and the whole stretch
// if the two are not aligned alike, is left to the caller: the values done are returned.
template <int D, int MODE> __device__ __forceinline__ i64 sweep(const void *x, void *to, i64 n,
                                                                i64 first, i64 stride, Acc &a) {
  const int per = 16 / width(D);
  i64 head = 0;
  if (MODE == COPY) {
    if (((u64)x | (u64)to) & 15) return 0;
  } else {
    head = ((16 - ((u64)x & 15)) & 15) / width(D);
    if (head > n) head = n;
    if (first < head) a = any(a, read<D>(x, first));
  }
  const uint4 *body = (const uint4 *)((const u8 *)x + head * width(D));
  i64 vectors = (n - head) / per;
  sweep_vectors<D, MODE>(body, (uint4 *)to, vectors, first, stride, Dense(), a);
  if (MODE == COPY) return vectors * per;
  i64 tail = head + vectors * per + first;
  if (tail < n) a = any(a, read<D>(x, tail));
  return n;
}

// A vector of differences to an older version, taken in float32.
template <int D> __device__ __forceinline__ void vector_difference(Acc &a, const uint4 &v,
                                                                   const uint4 &o, const void *at,
                                                                   const void *old) {
  const u32 w[4] = {v.x, v.y, v.z, v.w}, u[4] = {o.x, o.y, o.z, o.w};
  if (D == F32) {
    float f[4];
#pragma unroll
    for (int k = 0; k < 4; k++) f[k] = __uint_as_float(w[k]) - __uint_as_float(u[k]);
    if (!four(a, f)) a = slowly<D>(a, at, old);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    float f[4] = {low_half<D>(w[k]) - low_half<D>(u[k]), high_half<D>(w[k]) - high_half<D>(u[k]),
                  low_half<D>(w[k + 1]) - low_half<D>(u[k + 1]),
                  high_half<D>(w[k + 1]) - high_half<D>(u[k + 1])};
    if (!four(a, f)) {
#pragma unroll 1
      for (int j = 0; j < 4; j++) a = any(a, read<D>(at, 2 * k + j) - read<D>(old, 2 * k + j));
    }
  }
}

// Two pairs of vectors are on their way at once; other warps fill the time until they are there.
template <int D> __device__ __forceinline__ void sweep_difference(const void *x, const void *old, i64 n,
                                                                  i64 first, i64 stride, Acc &a) {
  const uint4 *body = (const uint4 *)x, *before = (const uint4 *)old;
  i64 vectors = n / (16 / width(D)), i = first;
  for (; i + stride < vectors; i += 2 * stride) {
    uint4 v = body[i], o = before[i], w = body[i + stride], u = before[i + stride];
    vector_difference<D>(a, v, o, body + i, before + i);
    vector_difference<D>(a, w, u, body + i + stride, before + i + stride);
  }
  if (i < vectors) vector_difference<D>(a, body[i], before[i], body + i, before + i);
}

__device__ __noinline__ void copy_one(const void *x, void *to, i64 i, int bytes) {
  if (bytes == 8) ((u64 *)to)[i] = ((const u64 *)x)[i];
  else if (bytes == 4) ((u32 *)to)[i] = ((const u32 *)x)[i];
  else if (bytes == 2) ((u16 *)to)[i] = ((const u16 *)x)[i];
  else ((u8 *)to)[i] = ((const u8 *)x)[i];
}

// -- the end of a row in a block ----------------------------------------------------------------

template <class T> __device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  return v;
}
template <class T> __device__ __forceinline__ T warp_min(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    T other = __shfl_xor_sync(~0u, v, o);
    v = other < v ? other : v;
  }
  return v;
}
__device__ __forceinline__ u32 warp_count(u32 v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, v);
#else
  return warp_sum(v);
#endif
}

// Bit patterns of doubles are in order as integers, by sign. Adding zero makes -0 a plain 0.
__device__ __forceinline__ void atomic_min(u64 *at, double v) {
  v += 0.0;
  if (v >= 0) atomicMin((i64 *)at, __double_as_longlong(v));
  else atomicMax(at, (u64)__double_as_longlong(v));
}
__device__ __forceinline__ void atomic_max(u64 *at, double v) {
  v += 0.0;
  if (v >= 0) atomicMax((i64 *)at, __double_as_longlong(v));
  else atomicMin(at, (u64)__double_as_longlong(v));
}

// Lowest, highest and smallest magnitude of a warp; the highest with its sign changed.
__device__ __forceinline__ void extrema(const Acc &a, double *out) {
  u32 least = warp_min(a.least);
  out[0] = warp_min(a.mn), out[1] = warp_min(-a.mx);
  out[2] = least == 0xffffffffu ? D_INF : (double)__uint_as_float(least + 1u);
}
__device__ __forceinline__ void extrema(const Wide &a, double *out) {
  out[0] = warp_min(a.low), out[1] = warp_min(-a.high), out[2] = warp_min(a.small);
}

// Tiny values that share the bins of zero (narrow formats), zeros (wide ones); then subnormals, which
// only wide formats count.
__device__ __forceinline__ u32 first_count(const Acc &a) { return a.tinies; }
__device__ __forceinline__ u32 first_count(const Wide &a) { return a.zeros; }
__device__ __forceinline__ u32 second_count(const Acc &) { return 0; }
__device__ __forceinline__ u32 second_count(const Wide &a) { return a.subs; }
__device__ __forceinline__ bool counts_zeros(const Acc &) { return false; }
__device__ __forceinline__ bool counts_zeros(const Wide &) { return true; }

enum { SUMS = 4, LOWS = 3, COUNTS = 5, WARPS = THREADS / 32 };

// Add what the block has gathered to the row, and leave the histogram empty. `n` values were seen.
//
// Each warp writes what it has; then each of the first warps puts one number of all warps together
// and adds it to the row, while all others do the same with the bins.
template <class A>
__device__ __noinline__ void finish(A a, u64 *row, u64 n, u64 repeat) {
  __shared__ double sums[SUMS][WARPS], lows[LOWS][WARPS];
  __shared__ u32 counts[COUNTS][WARPS];
  u32 *hist = histogram();
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  double low[LOWS];
  extrema(a, low);
  double sum[SUMS] = {warp_sum(a.s), warp_sum(a.sa), warp_sum(a.s2), warp_sum(a.s4)};
  u32 found[COUNTS] = {warp_count(first_count(a)), warp_count(a.nans), warp_count(a.pinfs),
                       warp_count(a.ninfs), warp_count(second_count(a))};
  if (lane == 0) {
#pragma unroll
    for (int k = 0; k < SUMS; k++) sums[k][warp] = sum[k];
#pragma unroll
    for (int k = 0; k < LOWS; k++) lows[k][warp] = low[k];
#pragma unroll
    for (int k = 0; k < COUNTS; k++) counts[k][warp] = found[k];
  }
  __syncthreads();
  if (warp < SUMS) {
    double s = warp_sum(lane < WARPS ? sums[warp][lane] : 0.0);
    if (lane == 0) atomicAdd((double *)row + 6 + warp, s * (double)repeat);
  } else if (warp < SUMS + LOWS) {
    int k = warp - SUMS;
    double v = warp_min(lane < WARPS ? lows[k][lane] : D_INF);
    if (lane == 0) {
      if (k == 1) atomic_max(row + 11, -v);
      else atomic_min(row + 10 + k, v);
    }
  } else if (warp == SUMS + LOWS) {
    u32 c[COUNTS];
#pragma unroll
    for (int k = 0; k < COUNTS; k++) c[k] = warp_count(lane < WARPS ? counts[k][lane] : 0);
    // The bins of numbers without an exponent: of zero and of the rest, for both signs. In narrow
    // formats all that is there is a zero, or one of the tiny values that were counted.
    int i = (lane & 3) | (lane & 4) << 8;
    u32 count = lane < 8 ? hist[i] : 0;
    u32 at_zero = warp_count((lane & 3) ? 0 : count), all = warp_count(count);
    if (count) atomicAdd(row + HEADER + i, (u64)count * repeat), hist[i] = 0;
    u32 zeros = counts_zeros(a) ? c[0] : at_zero - c[0];
    u32 subs = counts_zeros(a) ? c[4] : all - zeros;
    u64 header = lane == 0 ? n : lane == 1 ? zeros : lane == 5 ? subs : lane < 5 ? c[lane - 1] : 0;
    if (header) atomicAdd(row + lane, header * repeat);
  }
  for (int i = t; i < BINS; i += THREADS) {
    u32 c = (i & 1023) < 4 ? 0 : hist[i];
    if (c) {
      hist[i] = 0;
      atomicAdd(row + HEADER + i, (u64)c * repeat);
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void empty() {
  u32 *hist = histogram();
  for (int i = threadIdx.x; i < BINS; i += THREADS) hist[i] = 0;
  __syncthreads();
}

// -- entries ------------------------------------------------------------------------------------

// One tensor, dense in memory. A closed gate (an int in device memory) makes it do nothing.
#define ONE(D)                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                         \
      one_##D(const void *x, i64 n, u64 *row, u64 repeat, const int *gate) {                       \
    if (gate && !*gate) return;                                                                    \
    empty();                                                                                       \
    Acc a;                                                                                         \
    reset(a);                                                                                      \
    i64 threads = (i64)gridDim.x * THREADS;                                                        \
    sweep<D, PLAIN>(x, 0, n, (i64)blockIdx.x * THREADS + threadIdx.x, threads, a);                 \
    finish(a, row, blockIdx.x ? 0 : n, repeat);                                                    \
  }
ONE(F32) ONE(F16) ONE(BF16) ONE(E5M2)
#if HAS_E4M3
ONE(E4M3FN)
#endif

// Any other format, and views that are not dense: up to five dimensions, sizes and strides in
// elements, outermost first. (Arguments of entries are single words: simpler to pass.)
struct Shape {
  i64 size[5], stride[5];
  __device__ __forceinline__ i64 operator()(i64 i) const {
    i64 at = 0;
#pragma unroll
    for (int d = 4; d >= 0; d--) {
      i64 count = size[d];
      if (count > 1) at += (i % count) * stride[d], i /= count;
    }
    return at;
  }
};

// Several values are on their way at once.
enum { TOGETHER = 4 };

template <int D, class At> __device__ __forceinline__ void values(Acc &a, const void *x, i64 n, At at) {
  i64 threads = (i64)gridDim.x * THREADS;
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < n; i += TOGETHER * threads) {
    float f[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
      if (i + k * threads < n) f[k] = read<D>(x, at(i + k * threads));
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
      if (i + k * threads < n) a = any(a, f[k]);
  }
}

template <int D, class At> __device__ __forceinline__ void values(Wide &a, const void *x, i64 n, At at) {
  i64 threads = (i64)gridDim.x * THREADS;
  for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < n; i += TOGETHER * threads) {
    double d[TOGETHER];
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
      if (i + k * threads < n) d[k] = read_wide<D>(x, at(i + k * threads));
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
      if (i + k * threads < n) a = wide(a, d[k]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    view(const void *x, i64 n, int format, u64 *row, u64 repeat, const int *gate, i64 n0, i64 n1,
         i64 n2, i64 n3, i64 n4, i64 s0, i64 s1, i64 s2, i64 s3, i64 s4) {
  if (gate && !*gate) return;
  const Shape shape = {{n0, n1, n2, n3, n4}, {s0, s1, s2, s3, s4}};
  const bool dense = n4 == n && s4 == 1;
  empty();
#define VALUES(D)                            \
  case D:                                    \
    if (dense) values<D>(a, x, n, Dense());  \
    else values<D>(a, x, n, shape);          \
    break;
  if (is_wide(format)) {
    Wide a;
    reset(a);
    switch (format) { WIDE_FORMATS(VALUES) }
    finish(a, row, blockIdx.x ? 0 : n, repeat);
  } else {
    Acc a;
    reset(a);
    switch (format) { NARROW_FORMATS(VALUES) }
    finish(a, row, blockIdx.x ? 0 : n, repeat);
  }
}

// Many tensors: a table of stretches of memory, those of one tensor next to each other. Each block
// takes a run of stretches, joins those that belong together, and adds to global memory only when
// the row changes. One entry per mode, so that none pays for the registers of another.
//
// A stretch that is not dense is made of runs (see `Runs`), of formats that are read by vectors.
struct Stretch {
  const void *x;
  void *other;
  i64 n;
  u64 *row;
  i64 format;
  u32 run, pitch;
};

template <int MODE, int D> __device__ __forceinline__ i64 sweep_run(const Stretch &s, Acc &a) {
  const int per = 16 / width(D);
  i64 t = threadIdx.x, size = THREADS;
  if (MODE == PLAIN && s.run) {
    if ((u64)s.x & 15) return 0;
    const Runs at = {s.run, s.pitch};
    sweep_vectors<D, PLAIN>((const uint4 *)s.x, 0, s.n / per, t, size, at, a);
    return s.n;
  }
  if (MODE == COPY && s.other) return sweep<D, COPY>(s.x, s.other, s.n, t, size, a);
  if (MODE != DIFFERENCE) return sweep<D, PLAIN>(s.x, 0, s.n, t, size, a);
  if (((u64)s.x | (u64)s.other) & 15) return 0;
  sweep_difference<D>(s.x, s.other, s.n, t, size, a);
  return s.n / per * per;
}

template <int MODE> __device__ __noinline__ void run_wide(const Stretch s) {
  Wide a;
  reset(a);
  for (i64 i = threadIdx.x; i < s.n; i += THREADS) {
    double d = read_any_wide(s.x, i, (int)s.format);
    if (MODE == COPY && s.other) copy_one(s.x, s.other, i, width((int)s.format));
    if (MODE == DIFFERENCE) d -= read_any_wide(s.other, i, (int)s.format);
    a = wide(a, d);
  }
  finish(a, s.row, s.n, 1);
}

template <int MODE> __device__ __forceinline__ void run_one(const Stretch &s) {
  if (is_wide((int)s.format)) {
    run_wide<MODE>(s);
    return;
  }
  Acc a;
  reset(a);
  i64 done = 0;
  if (s.format == F32) done = sweep_run<MODE, F32>(s, a);
  else if (s.format == BF16) done = sweep_run<MODE, BF16>(s, a);
  else if (s.format == F16) done = sweep_run<MODE, F16>(s, a);
  const int per = 16 / width((int)s.format);
  const Runs values = {s.run * per, s.pitch * per};
  for (i64 k = done + threadIdx.x; k < s.n; k += THREADS) {
    float f = read_any(s.x, s.run ? values(k) : k, (int)s.format);
    if (MODE == COPY && s.other) copy_one(s.x, s.other, k, width((int)s.format));
    if (MODE == DIFFERENCE) f -= read_any(s.other, k, (int)s.format);
    a = any(a, f);
  }
  finish(a, s.row, s.n, 1);
}

template <int MODE> __device__ __forceinline__ void run(const Stretch *table, int n) {
  empty();
  i64 i = (i64)n * blockIdx.x / gridDim.x, end = (i64)n * (blockIdx.x + 1) / gridDim.x;
  while (i < end) {
    Stretch s = table[i++];
    while (i < end && table[i].row == s.row) s.n += table[i++].n;
    run_one<MODE>(s);
  }
}

#define MANY(NAME, MODE)                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                         \
      NAME(const Stretch *table, int n, const int *gate) {                                         \
    if (gate && !*gate) return;                                                                    \
    run<MODE>(table, n);                                                                           \
  }
MANY(many_plain, PLAIN)
MANY(many_copy, COPY)
MANY(many_difference, DIFFERENCE)

// Several tensors, dense in memory and of formats that are read by vectors: a table that comes with
// the launch. All of them are taken for one, whose pieces the blocks share out among them; `first`
// are the pieces before each.
enum { SEVERAL = 16, PIECE = 4096 };
struct Several {
  const char *x[SEVERAL];
  i64 first[SEVERAL + 1], n[SEVERAL];
  u64 *row[SEVERAL];
  int format[SEVERAL];
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    several(const __grid_constant__ Several t, int n, const int *gate) {
  if (gate && !*gate) return;
  empty();
  i64 i = t.first[n] * blockIdx.x / gridDim.x, end = t.first[n] * (blockIdx.x + 1) / gridDim.x;
  for (int k = 0; i < end; k++) {
    if (t.first[k + 1] <= i) continue;
    i64 next = t.first[k + 1] < end ? t.first[k + 1] : end;
    i64 from = (i - t.first[k]) * PIECE, to = (next - t.first[k]) * PIECE;
    if (to > t.n[k]) to = t.n[k];
    Stretch s = {t.x[k] + from * width(t.format[k]), 0, to - from, t.row[k], t.format[k], 0, 0};
    run_one<PLAIN>(s);
    i = next;
  }
}

// Rows made small and written to host memory, and emptied: a row is 16 words, as they were but for
// word 13, how many of its bins are not empty, and word 14, where they begin in `bins`: one word each,
// the count times 2^11 plus the number of the bin, in order. `cursor` counts the words of all rows; a
// row for which there is no room left says so, with a beginning of -1.
//
// A block takes a row, a thread eight of its bins. The host's memory is written to as it lies: some
// words per row, while a copy of whole rows would take longer than to find those that count.
enum { PACKERS = BINS / 8 };
extern "C" __global__ void __launch_bounds__(PACKERS)
    pack(u64 *rows, i64 n, u64 *heads, u64 *bins, u64 room, u64 *cursor) {
  __shared__ u32 before[PACKERS / 32], total;
  __shared__ u64 begin;
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  for (i64 r = blockIdx.x; r < n; r += gridDim.x) {
    u64 *row = rows + r * WORDS, *own = row + HEADER + 8 * t, c[8];
    u32 held = 0;
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      ulonglong2 two = *(const ulonglong2 *)(own + k);
      c[k] = two.x, c[k + 1] = two.y;
      held += (two.x != 0) + (two.y != 0);
    }
    u32 sum = held;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      u32 other = __shfl_up_sync(~0u, sum, o);
      if (lane >= o) sum += other;
    }
    if (lane == 31) before[warp] = sum;
    __syncthreads();
    if (t == 0) {
      u32 all = 0;
      for (int w = 0; w < PACKERS / 32; w++) {
        u32 of = before[w];
        before[w] = all, all += of;
      }
      total = all;
      begin = atomicAdd(cursor, (u64)all);
    }
    __syncthreads();
    bool fits = begin + total <= room;
    u64 to = begin + before[warp] + sum - held;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      if (!c[k]) continue;
      if (fits) bins[to++] = c[k] << 11 | (u64)(8 * t + k);
      own[k] = 0;
    }
    if (t < HEADER) {
      heads[r * HEADER + t] = t == 13 ? total : t == 14 ? (fits ? begin : ~0ULL) : row[t];
      row[t] = t == 11 ? 0xfff0000000000000ULL : (t == 10 || t == 12) ? 0x7ff0000000000000ULL : 0ULL;
    }
    __syncthreads();
  }
}

// Copy rows out and make them empty again.
extern "C" __global__ void take(u64 *rows, u64 *to, i64 words) {
  i64 stride = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
    if (to) to[i] = rows[i];
    int w = i % WORDS;
    rows[i] = w == 11 ? 0xfff0000000000000ULL : (w == 10 || w == 12) ? 0x7ff0000000000000ULL : 0ULL;
  }
}
