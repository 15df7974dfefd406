"""Memory of every kind: vectors, bytes, shared, constants, device variables."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, blocks_for

# ------------------------------------------------------------------------------------------- vector accesses
VECTORS = r"""
__global__ void vectors(const float4* __restrict__ f4, const int2* __restrict__ i2, const double2* __restrict__ d2,
                        const char4* __restrict__ c4, const short2* __restrict__ s2, float4* __restrict__ f4_out,
                        int2* __restrict__ i2_out, double2* __restrict__ d2_out, char4* __restrict__ c4_out,
                        ushort4* __restrict__ u4_out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 f = f4[i];
    int2 a = i2[n - 1 - i];
    double2 d = d2[i];
    char4 c = c4[i];
    short2 s = s2[i];
    f4_out[i] = make_float4(f.w, f.z + 1.0f, f.y, f.x);
    i2_out[i] = make_int2(a.y, a.x ^ i);
    d2_out[i] = make_double2(d.y * 2, d.x - 1);
    c4_out[i] = make_char4(c.w, c.x + 1, -c.y, c.z >> 1);
    u4_out[i] = make_ushort4(s.x, s.y, s.x + s.y, c.x);
}
"""


def inputs_vectors(size: int, rng: np.random.Generator) -> Arrays:
    return {
        "f4": rng.integers(-99, 99, (size, 4)).astype(np.float32),
        "i2": rng.integers(-(2**31), 2**31, (size, 2)).astype(np.int32),
        "d2": rng.standard_normal((size, 2)),
        "c4": rng.integers(-128, 128, (size, 4)).astype(np.int8),
        "s2": rng.integers(-32768, 32768, (size, 2)).astype(np.int16),
    }


def launch_vectors(gpu: Runner, size: int, **arrays: np.ndarray) -> Arrays:
    kinds = {
        "f4": (4, np.float32),
        "i2": (2, np.int32),
        "d2": (2, np.float64),
        "c4": (4, np.int8),
        "u4": (4, np.uint16),
    }
    out = {key: gpu.empty((size, width), dtype) for key, (width, dtype) in kinds.items()}
    inputs = [gpu.to_device(a) for a in arrays.values()]
    gpu.launch("vectors", blocks_for(size, 96), 96, *inputs, *out.values(), np.int32(size))
    return {key: gpu.to_host(array) for key, array in out.items()}


def reference_vectors(size: int, f4, i2, d2, c4, s2) -> Arrays:
    a, c, s, i = i2[::-1], c4.astype(np.int64), s2.astype(np.int64), np.arange(size, dtype=np.int32)
    return {
        "f4": np.stack([f4[:, 3], f4[:, 2] + 1, f4[:, 1], f4[:, 0]], axis=1),
        "i2": np.stack([a[:, 1], a[:, 0] ^ i], axis=1),
        "d2": np.stack([d2[:, 1] * 2, d2[:, 0] - 1], axis=1),
        "c4": np.stack([c[:, 3], c[:, 0] + 1, -c[:, 1], c[:, 2] >> 1], axis=1).astype(np.int8),
        "u4": np.stack([s[:, 0], s[:, 1], s[:, 0] + s[:, 1], c[:, 0]], axis=1).astype(np.uint16),
    }


# ------------------------------------------------------------------------------------------- bytes and bools
BYTES = r"""
__global__ void bytes(const unsigned char* __restrict__ in, const bool* __restrict__ keep,
                      const unsigned short* __restrict__ halves, unsigned char* __restrict__ out,
                      bool* __restrict__ flags, unsigned short* __restrict__ wide, char* __restrict__ text, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned char v = in[i];
    out[i] = keep[i] ? v : (unsigned char)(255 - v);
    flags[i] = keep[i] != (v > 127) && (halves[i] & 1);
    wide[i] = (unsigned short)(halves[i] * 3 + v);
    text[i] = "0123456789abcdef"[v & 15];
}
"""


def inputs_bytes(size: int, rng: np.random.Generator) -> Arrays:
    return {
        "data": rng.integers(0, 256, size).astype(np.uint8),
        "keep": rng.integers(0, 2, size).astype(np.bool_),
        "halves": rng.integers(0, 65536, size).astype(np.uint16),
    }


def launch_bytes(gpu: Runner, size: int, **arrays: np.ndarray) -> Arrays:
    kinds = {"out": np.uint8, "flags": np.bool_, "wide": np.uint16, "text": np.int8}
    out = {key: gpu.empty(size, dtype) for key, dtype in kinds.items()}
    inputs = [gpu.to_device(a) for a in arrays.values()]
    gpu.launch("bytes", blocks_for(size, 64), 64, *inputs, *out.values(), np.int32(size))
    return {key: gpu.to_host(array) for key, array in out.items()}


def reference_bytes(size: int, data, keep, halves) -> Arrays:
    digits = np.frombuffer(b"0123456789abcdef", np.int8)
    return {
        "out": np.where(keep, data, 255 - data),
        "flags": (keep != (data > 127)) & (halves % 2 == 1),
        "wide": (halves.astype(np.int64) * 3 + data).astype(np.uint16),
        "text": digits[data & 15],
    }


# ------------------------------------------------------------------------------------------- shared memory
SHARED = r"""
// Several static arrays of several types beside each other.
__global__ void shared_types(const int* __restrict__ x, long long* __restrict__ out, int n)
{
    __shared__ unsigned char bytes[70];
    __shared__ double doubles[64];
    __shared__ short shorts[65];
    __shared__ int2 pairs[64];
    __shared__ bool odd[64];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, v = i < n ? x[i] : 0;
    bytes[t] = (unsigned char)v;
    doubles[t] = v * 0.5;
    shorts[t] = (short)(v * 3);
    pairs[t] = make_int2(v, -v);
    odd[t] = v & 1;
    __syncthreads();
    int u = 63 - t;
    if (i < n)
        out[i] = bytes[u] + (long long)(doubles[u] * 2) * 1000 + shorts[u] + pairs[u].y + (odd[u] ? 1000000000ll : 0);
}

// One dynamic block of bytes, cut into three arrays whose sizes are known at launch only.
__global__ void shared_dynamic(const float* __restrict__ x, float* __restrict__ out, int n, int count)
{
    extern __shared__ __align__(16) unsigned char raw[];
    double* sums = (double*)raw;
    float* values = (float*)(sums + count);
    short* index = (short*)(values + count);
    int base = blockIdx.x * count;
    for (int k = threadIdx.x; k < count; k += blockDim.x) {
        values[k] = base + k < n ? x[base + k] : 0.0f;
        index[k] = (short)((k * 7) % count);
    }
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += blockDim.x) sums[k] = (double)values[k] + values[index[k]];
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += blockDim.x)
        if (base + k < n) out[base + k] = (float)sums[count - 1 - k];
}
"""


def inputs_shared(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(-30_000, 30_000, size).astype(np.int32)}


# per block: 100 elements, then 4000 of them: 14 bytes each, 56000 bytes, more than 48 KB
DYNAMIC = {"dynamic": 100, "opt_in": 4000}


def launch_shared(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    out = gpu.empty(size, np.int64)
    gpu.launch("shared_types", blocks_for(size, 64), 64, gpu.to_device(x), out, np.int32(size))
    results = {"types": gpu.to_host(out)}
    floats = gpu.to_device(x.astype(np.float32))
    for name, count in DYNAMIC.items():
        y, kernel = gpu.empty(size, np.float32), gpu.kernel("shared_dynamic")
        if count * 14 > 48 * 1024:
            gpu.allow_shared(kernel, count * 14)
        grid = blocks_for(size, count)
        gpu.launch(kernel, grid, 128, floats, y, np.int32(size), np.int32(count), shmem=count * 14)
        results[name] = gpu.to_host(y)
    return results


def reference_shared(size: int, x: np.ndarray) -> Arrays:
    v = np.zeros(blocks_for(size, 64) * 64, np.int64)
    v[:size] = x
    v = v.reshape(-1, 64)[:, ::-1].ravel()[:size]
    types = (v & 255) + v * 1000 + (v * 3).astype(np.int16) - v + (v & 1) * 10**9
    results = {"types": types}
    for name, count in DYNAMIC.items():
        padded = np.zeros(blocks_for(size, count) * count)
        padded[:size] = x
        rows = padded.reshape(-1, count)
        sums = rows + rows[:, (np.arange(count) * 7) % count]
        results[name] = sums[:, ::-1].ravel()[:size].astype(np.float32)
    return results


# ---------------------------------------------------------------------- __device__ and __constant__ variables
GLOBALS = r"""
__device__ int counter = 100;
__device__ float table[6] = {1.5f, -2.0f, 3.25f, 0.0f, 1e-3f};        // the last one is zero
__device__ unsigned char letters[] = "GPU";
__device__ struct { int a; double b; short c[3]; } record = {7, -0.125, {1, 2, 3}};
__device__ int* pointer_to_counter = &counter;
__device__ unsigned long long big = 0x123456789ABCDEF0ull;
__device__ double grid2d[2][3] = {{1, 2, 3}, {4, 5, 6}};
__constant__ short steps[8] = {1, -1, 2, -2, 4, -4, 8, -8};
__constant__ double precise[3] = {3.14159265358979312, 1e300, -0.0};
__constant__ unsigned char sbox[16] = {12, 5, 6, 11, 9, 0, 10, 13, 3, 14, 15, 8, 4, 7, 1, 2};
__constant__ float4 planes[2] = {{1, 0, 0, 2}, {0, 1, 0, -3}};
__constant__ int from_host[4];
__device__ int written[4];

__global__ void read_globals(double* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = steps[i % 8] + table[i % 6] + letters[i % 4] + record.c[i % 3] * record.a + record.b;
    v += *pointer_to_counter + sbox[(i / 3) % 16] + precise[0] * (i % 2) + grid2d[i % 2][i % 3];
    v += planes[i % 2].x * 10 + planes[i % 2].w + (double)(big >> 60) + from_host[i % 4];
    out[i] = v;
}

__global__ void write_globals(int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(pointer_to_counter, 2);
    if (i < 4) written[i] = i * 11 + from_host[i];
}

// Next to a run that fails half way, the next one must start from the same values.
__global__ void reset_globals(int* __restrict__ last)
{
    *last = counter;
    counter = 100;
}
"""
HOST_VALUES = np.array([1000, -2000, 3000, 4000], np.int32)


def nothing_but_size(size: int, rng: np.random.Generator) -> Arrays:
    return {}


def launch_globals(gpu: Runner, size: int) -> Arrays:
    gpu.copy_in(gpu.get_global("from_host"), HOST_VALUES)
    last, out, n = gpu.zeros(1, np.int32), gpu.empty(size, np.float64), np.int32(size)
    gpu.launch("reset_globals", 1, 1, last)
    gpu.launch("read_globals", blocks_for(size, 64), 64, out, n)
    gpu.launch("write_globals", blocks_for(max(size, 4), 64), 64, n)
    gpu.launch("reset_globals", 1, 1, last)
    written = gpu.empty(4, np.int32)
    written.buffer.copy_from(gpu.get_global("written"), stream=gpu.stream)
    return {"out": gpu.to_host(out), "counter": gpu.to_host(last), "written": gpu.to_host(written)}


def reference_globals(size: int) -> Arrays:
    i = np.arange(size)
    table = np.array([1.5, -2.0, 3.25, 0.0, 1e-3, 0.0], np.float32)
    letters, c = np.frombuffer(b"GPU\0", np.uint8), np.array([1, 2, 3])
    sbox = np.array([12, 5, 6, 11, 9, 0, 10, 13, 3, 14, 15, 8, 4, 7, 1, 2])
    first = np.array([1, -1, 2, -2, 4, -4, 8, -8])[i % 8] + table[i % 6]  # int + float: float32 in C
    v = (first.astype(np.float32) + letters[i % 4]).astype(np.float32) + (c[i % 3] * 7).astype(np.float32)
    v = v.astype(np.float64) - 0.125
    grid2d = np.array([[1, 2, 3], [4, 5, 6]])
    v = v + (100 + sbox[(i // 3) % 16] + np.pi * (i % 2) + grid2d[i % 2, i % 3])
    v = v + (np.array([10 + 2, -3])[i % 2] + 1 + HOST_VALUES[i % 4])
    return {
        "out": v,
        "counter": np.array([100 + 2 * size], np.int32),
        "written": np.arange(4, dtype=np.int32) * 11 + HOST_VALUES,
    }


CASES = [
    Case("vector_types", VECTORS, ("vectors",), inputs_vectors, launch_vectors, reference_vectors, (1, 33, 1000)),
    Case("bytes_shorts_bools", BYTES, ("bytes",), inputs_bytes, launch_bytes, reference_bytes, (1, 31, 33, 2000)),
    Case(
        "shared_memory",
        SHARED,
        ("shared_types", "shared_dynamic"),
        inputs_shared,
        launch_shared,
        reference_shared,
        (1, 33, 5000),
    ),
    Case(
        "device_variables",
        GLOBALS,
        ("read_globals", "write_globals", "reset_globals"),
        nothing_but_size,
        launch_globals,
        reference_globals,
        (1, 33, 500),
    ),
]
