"""One thread, one element: saxpy and its kin, templates, structs, Mandelbrot, Monte Carlo."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, Size, blocks_for

RAGGED: tuple[Size, ...] = (1, 31, 33, 1000, 100_000)


def two_vectors(size: int, rng: np.random.Generator) -> Arrays:
    return {
        "x": rng.standard_normal(size).astype(np.float32),
        "y": rng.standard_normal(size).astype(np.float32),
    }


# ---------------------------------------------------------------------------------------------------- saxpy
SAXPY = r"""
__global__ void saxpy(float a, const float* __restrict__ x, float* __restrict__ y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""


def launch_saxpy(gpu: Runner, size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    dx, dy = gpu.to_device(x), gpu.to_device(y)
    gpu.launch("saxpy", blocks_for(size, 256), 256, np.float32(2.5), dx, dy, np.int32(size))
    return {"y": gpu.to_host(dy)}


def reference_saxpy(size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    return {"y": (np.float64(2.5) * x + y).astype(np.float32)}


# ---------------------------------------------------------------------------------------- grid-stride loop
GRID_STRIDE = r"""
__global__ void scale_add(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    // Any grid covers any n: each thread walks on by the size of the whole grid.
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        y[i] = x[i] * 3.0f + 1.0f;
}
"""


def launch_grid_stride(gpu: Runner, size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    out = gpu.to_device(y)
    gpu.launch("scale_add", 5, 96, gpu.to_device(x), out, np.int64(size))
    return {"y": gpu.to_host(out)}


def reference_grid_stride(size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    return {"y": (x.astype(np.float64) * 3 + 1).astype(np.float32)}


# ------------------------------------------------------------------------------- templates by name expression
TEMPLATES = r"""
template <typename T, int UNROLL>
__global__ void axpy(T a, const T* __restrict__ x, T* __restrict__ y, int n)
{
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * UNROLL;
    #pragma unroll
    for (int k = 0; k < UNROLL; ++k)
        if (first + k < n) y[first + k] += a * x[first + k];
}
"""
TEMPLATE_TYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "unsigned long long": np.uint64}
TEMPLATE_NAMES = tuple(f"axpy<{name}, {2 + i}>" for i, name in enumerate(TEMPLATE_TYPES))


def inputs_templates(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(-1000, 1000, size), "y": rng.integers(-1000, 1000, size)}


def launch_templates(gpu: Runner, size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    out = {}
    for i, (name, dtype) in enumerate(TEMPLATE_TYPES.items()):
        dy = gpu.to_device(y.astype(dtype))
        grid = blocks_for(size, 64 * (2 + i))
        gpu.launch(TEMPLATE_NAMES[i], grid, 64, dtype(7), gpu.to_device(x.astype(dtype)), dy, np.int32(size))
        out[name] = gpu.to_host(dy)
    return out


def reference_templates(size: int, x: np.ndarray, y: np.ndarray) -> Arrays:
    return {name: y.astype(dtype) + dtype(7) * x.astype(dtype) for name, dtype in TEMPLATE_TYPES.items()}


# ---------------------------------------------------------------------------------- structs passed by value
STRUCTS = r"""
struct Affine { float scale; float shift; };       // 8 bytes, one parameter
struct Range { double low; double high; };         // 16 bytes
struct Pixel { unsigned char r, g, b, a; };
struct Particle { float3 position; float mass; Pixel colour; short id; };

__device__ __noinline__ Particle moved(Particle p, Affine t)
{
    p.position.x = p.position.x * t.scale + t.shift;
    p.position.z = -p.position.z;
    p.colour.g = (unsigned char)(p.colour.g + 1);
    p.id = (short)(p.id * 2);
    return p;
}

__global__ void move_particles(Affine t, Range range, const Particle* __restrict__ in, Particle* __restrict__ out,
                               signed char step, bool flip, unsigned short bias, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Particle p = moved(in[i], t);
    double y = p.position.y;
    p.position.y = (float)(y < range.low ? range.low : (y > range.high ? range.high : y));
    p.mass = flip ? -p.mass : p.mass;
    p.id = (short)(p.id + step + bias);
    out[i] = p;
}
"""
PARTICLE = np.dtype(
    {
        "names": ["position", "mass", "colour", "id"],
        "formats": [(np.float32, 3), np.float32, (np.uint8, 4), np.int16],
        "offsets": [0, 12, 16, 20],
        "itemsize": 24,
    }
)


def inputs_structs(size: int, rng: np.random.Generator) -> Arrays:
    p = np.zeros(size, PARTICLE)
    p["position"] = rng.integers(-50, 50, (size, 3))
    p["mass"] = rng.integers(1, 9, size)
    p["colour"] = rng.integers(0, 256, (size, 4))
    p["id"] = rng.integers(-9000, 9000, size)
    return {"particles": p}


def launch_structs(gpu: Runner, size: int, particles: np.ndarray) -> Arrays:
    out = gpu.to_device(particles)
    # cuda.core passes a complex number as its two members: a struct of two floats or two doubles.
    affine, limits = np.complex64(complex(2.0, 0.5)), np.complex128(complex(-20.0, 30.0))
    small = np.int8(-3), np.bool_(True), np.uint16(40_000)
    gpu.launch(
        "move_particles", blocks_for(size, 64), 64, affine, limits, gpu.to_device(particles), out, *small,
        np.int32(size),
    )  # fmt: skip
    got = gpu.to_host(out)
    return {key: np.ascontiguousarray(got[key]) for key in PARTICLE.names}


def reference_structs(size: int, particles: np.ndarray) -> Arrays:
    p = particles.copy()
    p["position"][:, 0] = p["position"][:, 0] * 2 + 0.5
    p["position"][:, 1] = np.clip(p["position"][:, 1], -20, 30)
    p["position"][:, 2] *= -1
    p["mass"] *= -1
    p["colour"][:, 1] += np.uint8(1)
    p["id"] = ((p["id"].astype(np.int64) * 2 - 3 + 40_000 + 32768) % 65536 - 32768).astype(np.int16)
    return {key: np.ascontiguousarray(p[key]) for key in PARTICLE.names}


# --------------------------------------------------------------------------------------------- Mandelbrot
MANDELBROT = r"""
__global__ void mandelbrot(int* __restrict__ count, int width, int height, float x0, float y0, float step, int limit)
{
    int px = blockIdx.x * blockDim.x + threadIdx.x;
    int py = blockIdx.y * blockDim.y + threadIdx.y;
    if (px >= width || py >= height) return;
    float cx = __fmaf_rn((float)px, step, x0), cy = __fmaf_rn((float)py, step, y0), x = 0.0f, y = 0.0f;
    int k = 0;
    // Rounded step by step (no fused multiply-add), so that NumPy gets the same orbit bit for bit.
    while (k < limit) {
        float xx = __fmul_rn(x, x), yy = __fmul_rn(y, y);
        if (__fadd_rn(xx, yy) > 4.0f) break;
        y = __fadd_rn(__fmul_rn(__fmul_rn(2.0f, x), y), cy);
        x = __fadd_rn(__fsub_rn(xx, yy), cx);
        ++k;
    }
    count[py * width + px] = k;
}
"""


def launch_mandelbrot(gpu: Runner, size: tuple[int, int]) -> Arrays:
    width, height = size
    count = gpu.empty((height, width), np.int32)
    grid = blocks_for(width, 16), blocks_for(height, 8)
    corner = np.float32(-2.2), np.float32(-1.2), np.float32(3.0 / width)
    gpu.launch("mandelbrot", grid, (16, 8), count, np.int32(width), np.int32(height), *corner, np.int32(60))
    return {"count": gpu.to_host(count)}


def reference_mandelbrot(size: tuple[int, int]) -> Arrays:
    width, height = size
    step = np.float64(np.float32(3.0 / width))
    cx = np.broadcast_to((np.arange(width) * step + np.float32(-2.2)).astype(np.float32), (height, width))
    cy = np.broadcast_to((np.arange(height)[:, None] * step + np.float32(-1.2)).astype(np.float32), (height, width))
    x, y = np.zeros((2, height, width), np.float32)
    count = np.zeros((height, width), np.int32)
    inside = np.ones((height, width), bool)
    for _ in range(60):
        xx, yy = x * x, y * y
        inside &= xx + yy <= 4
        count += inside
        x, y = np.where(inside, xx - yy + cx, x), np.where(inside, np.float32(2) * x * y + cy, y)
    return {"count": count}


# -------------------------------------------------------------------------------------------- Monte Carlo
MONTE_CARLO = r"""
// Philox-4x32-10 (Salmon et al., SC 2011): a counter in, four random words out, no state to keep.
__device__ uint4 philox(uint4 counter, uint2 key)
{
    for (int round = 0; round < 10; ++round) {
        unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return counter;
}

__device__ unsigned long long xorshift64star(unsigned long long& state)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Dull;
}

__global__ void pi_hits(unsigned long long* __restrict__ hits, unsigned long long* __restrict__ states, int samples,
                        unsigned seed, int threads)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= threads) return;
    unsigned inside = 0, inside_shift = 0;
    unsigned long long state = seed * 0x9E3779B97F4A7C15ull + i + 1;
    for (int k = 0; k < samples; ++k) {
        uint4 r = philox(make_uint4(k, i, 0, 0), make_uint2(seed, 0));
        float x = (r.x >> 8) * 0x1p-24f, y = (r.y >> 8) * 0x1p-24f;
        inside += __fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)) < 1.0f;
        unsigned long long s = xorshift64star(state);
        x = (unsigned)(s >> 40) * 0x1p-24f, y = ((unsigned)s & 0xFFFFFFu) * 0x1p-24f;
        inside_shift += __fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)) < 1.0f;
    }
    states[i] = state;
    atomicAdd(&hits[0], (unsigned long long)inside);
    atomicAdd(&hits[1], (unsigned long long)inside_shift);
}
"""
SAMPLES = 24


def launch_monte_carlo(gpu: Runner, size: int) -> Arrays:
    hits, states = gpu.zeros(2, np.uint64), gpu.empty(size, np.uint64)
    scalars = np.int32(SAMPLES), np.uint32(2024), np.int32(size)
    gpu.launch("pi_hits", blocks_for(size, 128), 128, hits, states, *scalars)
    return {"hits": gpu.to_host(hits), "states": gpu.to_host(states)}


def philox_numpy(counter: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    c = [np.asarray(v, np.uint64) for v in counter]
    k0, k1 = key
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c = [high1 ^ c[1] ^ np.uint64(k0), p1 & mask, high0 ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c


def reference_monte_carlo(size: int) -> Arrays:
    threads, steps = np.arange(size, dtype=np.uint64)[:, None], np.arange(SAMPLES, dtype=np.uint64)[None, :]
    zero = np.zeros((size, SAMPLES), np.uint64)
    r = philox_numpy([steps + zero, threads + zero, zero, zero], (2024, 0))

    def inside(a: np.ndarray, b: np.ndarray) -> int:
        x, y = a.astype(np.float32) * np.float32(2**-24), b.astype(np.float32) * np.float32(2**-24)
        return int(np.count_nonzero(x * x + y * y < 1))

    state = np.arange(size, dtype=np.uint64) + np.uint64((2024 * 0x9E3779B97F4A7C15 + 1) % 2**64)
    second = 0
    for _ in range(SAMPLES):
        state ^= state >> np.uint64(12)
        state ^= state << np.uint64(25)
        state ^= state >> np.uint64(27)
        s = state * np.uint64(0x2545F4914F6CDD1D)
        second += inside(s >> np.uint64(40), s & np.uint64(0xFFFFFF))
    first = inside(r[0] >> np.uint64(8), r[1] >> np.uint64(8))
    return {"hits": np.array([first, second], np.uint64), "states": state}


def nothing(size: Size, rng: np.random.Generator) -> Arrays:
    return {}


CASES = [
    Case("saxpy", SAXPY, ("saxpy",), two_vectors, launch_saxpy, reference_saxpy, RAGGED),
    Case("grid_stride", GRID_STRIDE, ("scale_add",), two_vectors, launch_grid_stride, reference_grid_stride, RAGGED),
    Case(
        "templates",
        TEMPLATES,
        TEMPLATE_NAMES,
        inputs_templates,
        launch_templates,
        reference_templates,
        (1, 31, 33, 2000),
    ),
    Case(
        "struct_parameters",
        STRUCTS,
        ("move_particles",),
        inputs_structs,
        launch_structs,
        reference_structs,
        (1, 33, 1000),
    ),
    Case(
        "mandelbrot",
        MANDELBROT,
        ("mandelbrot",),
        nothing,
        launch_mandelbrot,
        reference_mandelbrot,
        ((1, 1), (31, 9), (90, 61), (240, 180)),
    ),
    Case(
        "monte_carlo_pi",
        MONTE_CARLO,
        ("pi_hits",),
        nothing,
        launch_monte_carlo,
        reference_monte_carlo,
        (1, 33, 5000, 40_000),
    ),
]
