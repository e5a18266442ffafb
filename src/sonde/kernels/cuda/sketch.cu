// One pass over a tensor that adds its sketch into a row. Compiled at first use by NVRTC.
//
// A row is 2064 words of 64 bits, as in row.py: counts, sums, extrema, then one word per bin. Rows
// are added to with atomics, so several launches may fill one row, and one launch many rows.
//
// A block keeps a histogram of 32-bit counts in shared memory. (Copies of it did not pay: the
// hardware already adds up lanes that meet the same word; H200, 2026-11.) Moments are float64, which
// Hopper adds at half the rate of float32, so they hide behind the loads. The fast paths see whole
// 16-byte vectors of ordinary values; a vector that holds a NaN, an infinity or a magnitude below
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

// Two blocks of 384 threads leave 85 registers a thread, enough for three vectors on their way while
// three are worked on. Swept on an H200 over 1..4 vectors and 256..1024 threads, share of a device
// copy for float32 / bfloat16: this 1.00 / 0.70, two vectors 0.96 / 0.69, one 0.75 / 0.64, four with
// 512 threads (64 registers, spills) 0.57 / 0.47.
#ifndef AHEAD
#define AHEAD 3
#endif
#define THREADS 384
#define RESIDENT 2
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

// `h` is the address of the histogram in shared memory.
__device__ __forceinline__ void bin(u32 h, u32 bits) {
  asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(h + ((bits >> 19) & 0x1ffcu)) : "memory");
}

template <class A> __device__ __forceinline__ void moments(A &a, double d) {
  double q = d * d;
  a.s += d, a.sa += fabs(d), a.s2 += q, a.s4 = fma(q, q, a.s4);
}

// The slow paths take and return the accumulator by value: a reference would move it, for the fast
// paths too, from registers to memory.
__device__ __noinline__ Acc any(Acc a, u32 h, float f) {
  u32 bits = __float_as_uint(f), size = bits & 0x7fffffffu;
  if (size > INF_BITS) {
    a.nans++;
    return a;
  }
  bin(h, bits);
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
__device__ __noinline__ Wide wide(Wide a, u32 h, double d) {
  u64 size = __double_as_longlong(d) & 0x7fffffffffffffffULL;
  if (size > 0x7ff0000000000000ULL) {
    a.nans++;
    return a;
  }
  u32 bits = __float_as_uint(__double2float_rn(d));
  bin(h, bits);
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

#define NARROW_FORMATS(DO) DO(F32) DO(F16) DO(BF16) DO(E4M3FN) DO(E5M2) DO(E4M3FNUZ) DO(E5M2FNUZ) \
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

template <int D> __device__ __noinline__ Acc slowly(Acc a, u32 h, const void *at) {
#pragma unroll 1
  for (int k = 0; k < 16 / width(D); k++) a = any(a, h, read<D>(at, k));
  return a;
}

template <int D> __device__ __noinline__ Acc slowly(Acc a, u32 h, const void *at, const void *old) {
#pragma unroll 1
  for (int k = 0; k < 16 / width(D); k++) a = any(a, h, read<D>(at, k) - read<D>(old, k));
  return a;
}

// Four float32 values; false, and nothing done, if one of them is unusual.
__device__ __forceinline__ bool four(Acc &a, u32 h, const float *f) {
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
    bin(h, __float_as_uint(f[k]));
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
template <int D> __device__ __forceinline__ bool eight16(Acc &a, Pairs &p, u32 h, const u32 *w) {
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
    bin(h, __float_as_uint(f)), bin(h, __float_as_uint(g));
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

template <int D> __device__ __forceinline__ void vector(Acc &a, Pairs &p, u32 h, const uint4 &v,
                                                        const void *at) {
  const u32 w[4] = {v.x, v.y, v.z, v.w};
  bool done = false;
  if (D == F32) {
    const float f[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                        __uint_as_float(v.w)};
    done = four(a, h, f);
  } else if (D == F16 || D == BF16) {
    done = eight16<D>(a, p, h, w);
  } else {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 pairs[4];
#pragma unroll
      for (int k = 0; k < 4; k++)
        pairs[k] = two_halves<D>((w[2 * half + k / 2] >> (16 * (k & 1))) & 0xffffu);
      if (!eight16<F16>(a, p, h, pairs)) {
#pragma unroll 1
        for (int k = 0; k < 8; k++) a = any(a, h, read<D>(at, 8 * half + k));
      }
    }
    return;
  }
  if (!done) a = slowly<D>(a, h, at);
}

// What stands for D in vectors: eight-bit floats are read as float16.
template <int D> struct As { static const int pairs = D == BF16 ? BF16 : F16; };

// -- sweeps -------------------------------------------------------------------------------------

// Values first, first + stride, ... of a stretch of memory, by vectors where it is aligned; copied to
// `to` on the way if that is not null. With a copy, what does not fill a vector, and the whole stretch
// if the two are not aligned alike, is left to the caller: the values done are returned.
template <int D, int MODE> __device__ __forceinline__ i64 sweep(const void *x, void *to, i64 n,
                                                                i64 first, i64 stride, Acc &a, u32 h) {
  const int per = 16 / width(D);
  i64 head = 0;
  if (MODE == COPY) {
    if (((u64)x | (u64)to) & 15) return 0;
  } else {
    head = ((16 - ((u64)x & 15)) & 15) / width(D);
    if (head > n) head = n;
    if (first < head) a = any(a, h, read<D>(x, first));
  }
  const uint4 *body = (const uint4 *)((const u8 *)x + head * width(D));
  uint4 *copy = (uint4 *)to;
  i64 vectors = (n - head) / per;
  i64 i = first, jump = AHEAD * stride;
  Pairs p = no_pairs<As<D>::pairs>();
  if (i + (AHEAD - 1) * stride < vectors) {
    uint4 v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) v[k] = body[i + k * stride];
    for (i += jump; i + (AHEAD - 1) * stride < vectors; i += jump) {
      uint4 next[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) next[k] = body[i + k * stride];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        i64 at = i - jump + k * stride;
        if (MODE == COPY) copy[at] = v[k];
        vector<D>(a, p, h, v[k], body + at);
        v[k] = next[k];
      }
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      i64 at = i - jump + k * stride;
      if (MODE == COPY) copy[at] = v[k];
      vector<D>(a, p, h, v[k], body + at);
    }
  }
  for (; i < vectors; i += stride) {
    uint4 v = body[i];
    if (MODE == COPY) copy[i] = v;
    vector<D>(a, p, h, v, body + i);
  }
  if (D != F32) fold<As<D>::pairs>(a, p);
  if (MODE == COPY) return vectors * per;
  i64 tail = head + vectors * per + first;
  if (tail < n) a = any(a, h, read<D>(x, tail));
  return n;
}

// The same, of the difference to an older version, taken in float32.
template <int D> __device__ __forceinline__ void sweep_difference(const void *x, const void *old, i64 n,
                                                                  i64 first, i64 stride, Acc &a,
                                                                  u32 h) {
  const uint4 *body = (const uint4 *)x, *before = (const uint4 *)old;
  i64 vectors = n / (16 / width(D));
  uint4 v, o;
  if (first < vectors) v = body[first], o = before[first];
  for (i64 i = first; i < vectors; i += stride) {
    uint4 next, older;
    if (i + stride < vectors) next = body[i + stride], older = before[i + stride];
    const u32 w[4] = {v.x, v.y, v.z, v.w}, u[4] = {o.x, o.y, o.z, o.w};
    bool done = true;
    if (D == F32) {
      float f[4];
#pragma unroll
      for (int k = 0; k < 4; k++) f[k] = __uint_as_float(w[k]) - __uint_as_float(u[k]);
      done = four(a, h, f);
    } else {
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        float f[4] = {low_half<D>(w[k]) - low_half<D>(u[k]), high_half<D>(w[k]) - high_half<D>(u[k]),
                      low_half<D>(w[k + 1]) - low_half<D>(u[k + 1]),
                      high_half<D>(w[k + 1]) - high_half<D>(u[k + 1])};
        if (!four(a, h, f)) {
#pragma unroll 1
          for (int j = 0; j < 4; j++)
            a = any(a, h, read<D>(body + i, 2 * k + j) - read<D>(before + i, 2 * k + j));
        }
      }
    }
    if (!done) a = slowly<D>(a, h, body + i, before + i);
    v = next, o = older;
  }
}

__device__ __noinline__ void copy_one(const void *x, void *to, i64 i, int bytes) {
  if (bytes == 8) ((u64 *)to)[i] = ((const u64 *)x)[i];
  else if (bytes == 4) ((u32 *)to)[i] = ((const u32 *)x)[i];
  else if (bytes == 2) ((u16 *)to)[i] = ((const u16 *)x)[i];
  else ((u8 *)to)[i] = ((const u8 *)x)[i];
}

// -- the end of a row in a block ----------------------------------------------------------------

template <class T> __device__ __forceinline__ T warp_sum(T v) {
  for (int o = 16; o; o >>= 1) v += __shfl_down_sync(~0u, v, o);
  return v;
}
__device__ __forceinline__ double warp_min(double v) {
  for (int o = 16; o; o >>= 1) v = fmin(v, __shfl_down_sync(~0u, v, o));
  return v;
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

__device__ __forceinline__ double lowest(const Acc &a) { return a.mn; }
__device__ __forceinline__ double lowest(const Wide &a) { return a.low; }
__device__ __forceinline__ double highest(const Acc &a) { return a.mx; }
__device__ __forceinline__ double highest(const Wide &a) { return a.high; }
__device__ __forceinline__ double smallest(const Acc &a) {
  return a.least == 0xffffffffu ? D_INF : (double)__uint_as_float(a.least + 1u);
}
__device__ __forceinline__ double smallest(const Wide &a) { return a.small; }

// Zeros and subnormals: of wide formats as counted; of narrow ones from the bins without an exponent
// (`lowest_bins` holds bin 0 of both signs, then all four), less the tiny values among them.
__device__ __forceinline__ u32 first_count(const Acc &a) { return a.tinies; }
__device__ __forceinline__ u32 first_count(const Wide &a) { return a.zeros; }
__device__ __forceinline__ u32 second_count(const Acc &) { return 0; }
__device__ __forceinline__ u32 second_count(const Wide &a) { return a.subs; }
__device__ __forceinline__ u32 zeros_of(const Acc &, const u32 *counts, const u32 *lowest_bins) {
  return lowest_bins[0] - counts[0];
}
__device__ __forceinline__ u32 zeros_of(const Wide &, const u32 *counts, const u32 *) {
  return counts[0];
}
__device__ __forceinline__ u32 subs_of(const Acc &, const u32 *counts, const u32 *lowest_bins) {
  return lowest_bins[1] - (lowest_bins[0] - counts[0]);
}
__device__ __forceinline__ u32 subs_of(const Wide &, const u32 *counts, const u32 *) {
  return counts[4];
}

// Add what the block has gathered to the row, and leave the histogram empty. `n` values were seen.
template <class A>
__device__ __noinline__ void finish(A a, u32 *hist, u64 *row, u64 n, u64 repeat) {
  __shared__ double sums[4], lows[3];
  __shared__ u32 counts[5], lowest_bins[2];
  int t = threadIdx.x;
  __syncthreads();
  if (t < 4) sums[t] = 0;
  if (t < 3) lows[t] = D_INF;
  if (t < 5) counts[t] = 0;
  if (t < 2) lowest_bins[t] = 0;
  __syncthreads();
  for (int i = t; i < BINS; i += blockDim.x) {
    u32 c = hist[i];
    if (c) {
      hist[i] = 0;
      atomicAdd(row + HEADER + i, (u64)c * repeat);
      if ((i & 1023) == 0) atomicAdd(lowest_bins, c);
      if ((i & 1023) < 4) atomicAdd(lowest_bins + 1, c);
    }
  }
  double s = warp_sum(a.s), sa = warp_sum(a.sa), s2 = warp_sum(a.s2), s4 = warp_sum(a.s4);
  double low = warp_min(lowest(a)), high = -warp_min(-highest(a)), small = warp_min(smallest(a));
  u32 found[5] = {warp_sum(first_count(a)), warp_sum(a.nans), warp_sum(a.pinfs), warp_sum(a.ninfs),
                  warp_sum(second_count(a))};
  if ((t & 31) == 0) {
    atomicAdd(sums, s), atomicAdd(sums + 1, sa), atomicAdd(sums + 2, s2), atomicAdd(sums + 3, s4);
    atomic_min((u64 *)lows, low), atomic_min((u64 *)lows + 1, -high);
    atomic_min((u64 *)lows + 2, small);
#pragma unroll
    for (int k = 0; k < 5; k++)
      if (found[k]) atomicAdd(counts + k, found[k]);
  }
  __syncthreads();
  double *real = (double *)row;
  if (t < 4) atomicAdd(real + 6 + t, sums[t] * (double)repeat);
  else if (t == 4) atomicAdd(row, n * repeat);
  else if (t == 5) {
    u64 zeros = zeros_of(a, counts, lowest_bins);
    if (zeros) atomicAdd(row + 1, zeros * repeat);
  } else if (t >= 6 && t < 9) {
    u64 c = counts[t - 5];
    if (c) atomicAdd(row + t - 4, c * repeat);
  } else if (t == 9) {
    u64 subs = subs_of(a, counts, lowest_bins);
    if (subs) atomicAdd(row + 5, subs * repeat);
  } else if (t == 10) atomic_min(row + 10, lows[0]);
  else if (t == 11) atomic_max(row + 11, -lows[1]);
  else if (t == 12) atomic_min(row + 12, lows[2]);
  __syncthreads();
}

__device__ __forceinline__ u32 empty(u32 *hist) {
  for (int i = threadIdx.x; i < BINS; i += blockDim.x) hist[i] = 0;
  __syncthreads();
  return (u32)__cvta_generic_to_shared(hist);
}

// -- entries ------------------------------------------------------------------------------------

// One tensor, dense in memory. A closed gate (an int in device memory) makes it do nothing.
#define ONE(D)                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                  \
      one_##D(const void *x, i64 n, u64 *row, u64 repeat, const int *gate) {                       \
    __shared__ u32 hist[BINS];                                                                     \
    if (gate && !*gate) return;                                                                    \
    u32 h = empty(hist);                                                                           \
    Acc a;                                                                                         \
    reset(a);                                                                                      \
    i64 threads = (i64)gridDim.x * blockDim.x;                                                     \
    sweep<D, PLAIN>(x, 0, n, (i64)blockIdx.x * blockDim.x + threadIdx.x, threads, a, h);           \
    finish(a, hist, row, blockIdx.x ? 0 : n, repeat);                                              \
  }
ONE(F32) ONE(F16) ONE(BF16) ONE(E5M2)
#if HAS_E4M3
ONE(E4M3FN)
#endif

// Any other format, and views that are not dense: up to five dimensions, sizes and strides in
// elements, outermost first. (Arguments of entries are single words: simpler to pass.)
struct Shape { i64 size[5], stride[5]; };

__device__ __forceinline__ i64 place(const Shape &shape, i64 i) {
  i64 at = 0;
#pragma unroll
  for (int d = 4; d >= 0; d--) {
    i64 size = shape.size[d];
    if (size > 1) at += (i % size) * shape.stride[d], i /= size;
  }
  return at;
}

extern "C" __global__ void view(const void *x, i64 n, int format, u64 *row, u64 repeat,
                                const int *gate, i64 n0, i64 n1, i64 n2, i64 n3, i64 n4, i64 s0,
                                i64 s1, i64 s2, i64 s3, i64 s4) {
  __shared__ u32 hist[BINS];
  if (gate && !*gate) return;
  const Shape shape = {{n0, n1, n2, n3, n4}, {s0, s1, s2, s3, s4}};
  u32 h = empty(hist);
  i64 first = (i64)blockIdx.x * blockDim.x + threadIdx.x, threads = (i64)gridDim.x * blockDim.x;
  if (is_wide(format)) {
    Wide a;
    reset(a);
    for (i64 i = first; i < n; i += threads)
      a = wide(a, h, read_any_wide(x, place(shape, i), format));
    finish(a, hist, row, blockIdx.x ? 0 : n, repeat);
  } else {
    Acc a;
    reset(a);
    for (i64 i = first; i < n; i += threads) a = any(a, h, read_any(x, place(shape, i), format));
    finish(a, hist, row, blockIdx.x ? 0 : n, repeat);
  }
}

// Many tensors: a table of stretches of memory, those of one tensor next to each other. Each block
// takes a run of stretches, joins those that belong together, and adds to global memory only when
// the row changes. One entry per mode, so that none pays for the registers of another.
struct Stretch { const void *x; void *other; i64 n; u64 *row; i64 format, unused; };

template <int MODE, int D> __device__ __forceinline__ i64 sweep_run(const Stretch &s, Acc &a, u32 h) {
  i64 t = threadIdx.x, size = blockDim.x;
  if (MODE == COPY && s.other) return sweep<D, COPY>(s.x, s.other, s.n, t, size, a, h);
  if (MODE != DIFFERENCE) return sweep<D, PLAIN>(s.x, 0, s.n, t, size, a, h);
  if (((u64)s.x | (u64)s.other) & 15) return 0;
  sweep_difference<D>(s.x, s.other, s.n, t, size, a, h);
  return s.n / (16 / width(D)) * (16 / width(D));
}

template <int MODE> __device__ __noinline__ void run_wide(const Stretch s, u32 *hist, u32 h) {
  Wide a;
  reset(a);
  for (i64 i = threadIdx.x; i < s.n; i += blockDim.x) {
    double d = read_any_wide(s.x, i, (int)s.format);
    if (MODE == COPY && s.other) copy_one(s.x, s.other, i, width((int)s.format));
    if (MODE == DIFFERENCE) d -= read_any_wide(s.other, i, (int)s.format);
    a = wide(a, h, d);
  }
  finish(a, hist, s.row, s.n, 1);
}

template <int MODE> __device__ __forceinline__ void run(const Stretch *table, int n, u32 *hist) {
  u32 h = empty(hist);
  i64 i = (i64)n * blockIdx.x / gridDim.x, end = (i64)n * (blockIdx.x + 1) / gridDim.x;
  while (i < end) {
    Stretch s = table[i++];
    while (i < end && table[i].row == s.row) s.n += table[i++].n;
    if (is_wide((int)s.format)) {
      run_wide<MODE>(s, hist, h);
      continue;
    }
    Acc a;
    reset(a);
    i64 done = 0;
    if (s.format == F32) done = sweep_run<MODE, F32>(s, a, h);
    else if (s.format == BF16) done = sweep_run<MODE, BF16>(s, a, h);
    else if (s.format == F16) done = sweep_run<MODE, F16>(s, a, h);
    for (i64 k = done + threadIdx.x; k < s.n; k += blockDim.x) {
      float f = read_any(s.x, k, (int)s.format);
      if (MODE == COPY && s.other) copy_one(s.x, s.other, k, width((int)s.format));
      if (MODE == DIFFERENCE) f -= read_any(s.other, k, (int)s.format);
      a = any(a, h, f);
    }
    finish(a, hist, s.row, s.n, 1);
  }
}

#define MANY(NAME, MODE)                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                  \
      NAME(const Stretch *table, int n, const int *gate) {                                         \
    __shared__ u32 hist[BINS];                                                                     \
    if (gate && !*gate) return;                                                                    \
    run<MODE>(table, n, hist);                                                                     \
  }
MANY(many_plain, PLAIN)
MANY(many_copy, COPY)
MANY(many_difference, DIFFERENCE)

// Copy rows out and make them empty again.
extern "C" __global__ void take(u64 *rows, u64 *to, i64 words) {
  i64 stride = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
    if (to) to[i] = rows[i];
    int w = i % WORDS;
    rows[i] = w == 11 ? 0xfff0000000000000ULL : (w == 10 || w == 12) ? 0x7ff0000000000000ULL : 0ULL;
  }
}
