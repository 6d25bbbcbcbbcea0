// CUDA C on the host's processor: a grid's blocks one after another, a block's threads one after another, or as fibres
// where they meet at barriers. Included before a kernel's source by lab/compile/emulated_cuda.py. Arithmetic is the
// host's, without contraction; a GPU may contract a multiplication and an addition, and its functions differ in last bits.
#include <math.h>
#include <stdlib.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static

struct Dim { unsigned x, y, z; };
static Dim gridDim, blockDim, blockIdx, threadIdx;

#define FENCED_PAIR(scalar, name)                                                               \
  struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };                                  \
  static inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }
#define FENCED_VECTORS(scalar, name)                                                            \
  FENCED_PAIR(scalar, name)                                                                     \
  struct alignas(4 * sizeof(scalar)) name##4 { scalar x, y, z, w; };                            \
  static inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
FENCED_VECTORS(float, float)
FENCED_VECTORS(int, int)
FENCED_VECTORS(unsigned, uint)
FENCED_VECTORS(short, short)
FENCED_VECTORS(unsigned short, ushort)
FENCED_VECTORS(signed char, char)
FENCED_VECTORS(unsigned char, uchar)


// In the place of cuda_fp16.h and cuda_bf16.h: functions are the float's, rounded.
typedef _Float16 half;
typedef __bf16 nv_bfloat16;
FENCED_PAIR(half, half)
FENCED_PAIR(nv_bfloat16, nv_bfloat16)
#define FENCED_ROUNDED(scalar)                                                                  \
  static inline scalar hexp2(scalar x) { return (scalar)exp2f((float)x); }                      \
  static inline scalar hlog2(scalar x) { return (scalar)log2f((float)x); }                      \
  static inline scalar hsin(scalar x) { return (scalar)sinf((float)x); }                        \
  static inline scalar hsqrt(scalar x) { return (scalar)sqrtf((float)x); }                      \
  static inline scalar htrunc(scalar x) { return (scalar)truncf((float)x); }                    \
  static inline scalar hrcp(scalar x) { return (scalar)(1 / (float)x); }
FENCED_ROUNDED(half)
FENCED_ROUNDED(nv_bfloat16)

static inline float __int_as_float(int bits) { union { int i; float f; } u; u.i = bits; return u.f; }
static inline float exp2(float x) { return exp2f(x); }
static inline float log2(float x) { return log2f(x); }
static inline float sin(float x) { return sinf(x); }
static inline float sqrt(float x) { return sqrtf(x); }
static inline float trunc(float x) { return truncf(x); }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }

static const unsigned fenced_stack_bytes = 64 << 10;
static ucontext_t fenced_scheduler, fenced_fibres[1024];
static unsigned fenced_current;
static char *fenced_stacks;
static void **fenced_arguments;
static bool fenced_ended[1024];

static inline void __syncthreads() {
  Dim own = threadIdx;
  swapcontext(&fenced_fibres[fenced_current], &fenced_scheduler);
  threadIdx = own;
}

template <unsigned... I> struct FencedIndices {};
template <unsigned N, unsigned... I> struct FencedCount : FencedCount<N - 1, N - 1, I...> {};
template <unsigned... I> struct FencedCount<0, I...> { using type = FencedIndices<I...>; };
template <class... P, unsigned... I> static void fenced_apply(void (*kernel)(P...), FencedIndices<I...>) {
  kernel((P)fenced_arguments[I]...);
}
template <class... P> static void fenced_thread(void (*kernel)(P...)) {
  fenced_apply(kernel, typename FencedCount<sizeof...(P)>::type());
}

static Dim fenced_index(unsigned i) {
  return {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
}

// A thread that has returned is at every later barrier, as on a GPU.
static void fenced_block(void (*body)(), bool meets) {
  unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (!meets) {
    for (unsigned i = 0; i < threads; i++) { threadIdx = fenced_index(i); body(); }
    return;
  }
  if (!fenced_stacks) fenced_stacks = (char *)malloc(1024ul * fenced_stack_bytes);
  for (unsigned i = 0; i < threads; i++) {
    getcontext(&fenced_fibres[i]);
    fenced_fibres[i].uc_stack.ss_sp = fenced_stacks + (unsigned long)i * fenced_stack_bytes;
    fenced_fibres[i].uc_stack.ss_size = fenced_stack_bytes;
    fenced_fibres[i].uc_link = nullptr;
    makecontext(&fenced_fibres[i], body, 0);
    fenced_ended[i] = false;
  }
  for (unsigned left = threads; left;)
    for (unsigned i = 0; i < threads; i++) {
      if (fenced_ended[i]) continue;
      fenced_current = i;
      threadIdx = fenced_index(i);
      swapcontext(&fenced_scheduler, &fenced_fibres[i]);
      if (fenced_ended[i]) left--;
    }
}

static void fenced_grid(void (*body)(), bool meets, void **arguments, const unsigned *grid, const unsigned *block) {
  fenced_arguments = arguments;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) { blockIdx = {x, y, z}; fenced_block(body, meets); }
}

// The end of a fibre: `kernel` has returned.
static inline void fenced_leave() {
  fenced_ended[fenced_current] = true;
  swapcontext(&fenced_fibres[fenced_current], &fenced_scheduler);
}
template <class... P> static constexpr unsigned fenced_parameters(void (*)(P...)) { return sizeof...(P); }

// KERNEL_emulate runs a grid; KERNEL_parameters is how many pointers it takes.
#define FENCED_ENTRY(kernel, meets)                                                             \
  static void kernel##_body() { fenced_thread(kernel); if (meets) fenced_leave(); }             \
  extern "C" __attribute__((visibility("default"))) unsigned kernel##_parameters() {            \
    return fenced_parameters(kernel);                                                           \
  }                                                                                             \
  extern "C" __attribute__((visibility("default"))) void kernel##_emulate(                      \
      void **arguments, const unsigned *grid, const unsigned *block) {                          \
    fenced_grid(kernel##_body, meets, arguments, grid, block);                                  \
  }
