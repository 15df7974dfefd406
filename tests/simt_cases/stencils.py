"""Neighbours: 2D blur with constant memory, conv2d, 3D stencil, N-body, a lattice Boltzmann step."""

from __future__ import annotations

import numpy as np

from .elementwise import nothing
from .harness import Arrays, Case, Runner, Tol, blocks_for

# -------------------------------------------------------------------------------------------------- blur
BLUR = r"""
__constant__ float weights[25];               // filled by the host before the launch

__global__ void blur(const unsigned char* __restrict__ in, unsigned char* __restrict__ out, int width, int height)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0.0f;
    for (int dy = -2; dy <= 2; ++dy)
        for (int dx = -2; dx <= 2; ++dx) {
            int sx = min(max(x + dx, 0), width - 1), sy = min(max(y + dy, 0), height - 1);
            sum += weights[(dy + 2) * 5 + dx + 2] * in[sy * width + sx];
        }
    out[y * width + x] = (unsigned char)(sum + 0.5f);
}
"""
GAUSS = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]).astype(np.float32) / 256  # exact in float32


def inputs_image(size: tuple[int, int], rng: np.random.Generator) -> Arrays:
    width, height = size
    return {"image": rng.integers(0, 256, (height, width)).astype(np.uint8)}


def launch_blur(gpu: Runner, size: tuple[int, int], image: np.ndarray) -> Arrays:
    width, height = size
    gpu.copy_in(gpu.get_global("weights"), GAUSS)
    out = gpu.empty(image.shape, np.uint8)
    grid = blocks_for(width, 16), blocks_for(height, 16)
    gpu.launch("blur", grid, (16, 16), gpu.to_device(image), out, np.int32(width), np.int32(height))
    return {"out": gpu.to_host(out)}


def reference_blur(size: tuple[int, int], image: np.ndarray) -> Arrays:
    width, height = size
    padded = np.pad(image, 2, mode="edge").astype(np.float64)
    total = sum(GAUSS[j, i] * padded[j : j + height, i : i + width] for j in range(5) for i in range(5))
    return {"out": np.floor(total + 0.5).astype(np.uint8)}


# ------------------------------------------------------------------------------------------------- conv2d
CONV = r"""
#define TILE 16
#define RADIUS 1

// A tile of outputs needs its tile of inputs and a rim of RADIUS: all of it goes through shared memory.
__global__ void conv2d(const float* __restrict__ in, const float* __restrict__ filter, float* __restrict__ out,
                       int channels, int height, int width)
{
    __shared__ float tile[TILE + 2 * RADIUS][TILE + 2 * RADIUS];
    int tx = threadIdx.x, ty = threadIdx.y, filters = gridDim.z, f = blockIdx.z;
    int x = blockIdx.x * TILE + tx, y = blockIdx.y * TILE + ty;
    float sum = 0.0f;
    for (int c = 0; c < channels; ++c) {
        for (int j = ty; j < TILE + 2 * RADIUS; j += TILE)
            for (int i = tx; i < TILE + 2 * RADIUS; i += TILE) {
                int sx = (int)blockIdx.x * TILE + i - RADIUS, sy = (int)blockIdx.y * TILE + j - RADIUS;
                bool inside = sx >= 0 && sx < width && sy >= 0 && sy < height;
                tile[j][i] = inside ? in[(c * height + sy) * width + sx] : 0.0f;
            }
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < 3; ++j)
            #pragma unroll
            for (int i = 0; i < 3; ++i) sum += filter[((f * channels + c) * 3 + j) * 3 + i] * tile[ty + j][tx + i];
        __syncthreads();
    }
    if (x < width && y < height && f < filters) out[(f * height + y) * width + x] = sum;
}
"""


def inputs_conv(size: tuple[int, int, int, int], rng: np.random.Generator) -> Arrays:
    channels, filters, height, width = size
    return {
        "image": rng.standard_normal((channels, height, width)).astype(np.float32),
        "filters": rng.standard_normal((filters, channels, 3, 3)).astype(np.float32),
    }


def launch_conv(gpu: Runner, size, image: np.ndarray, filters: np.ndarray) -> Arrays:
    channels, count, height, width = size
    out = gpu.empty((count, height, width), np.float32)
    grid = blocks_for(width, 16), blocks_for(height, 16), count
    shape = np.int32(channels), np.int32(height), np.int32(width)
    gpu.launch("conv2d", grid, (16, 16), gpu.to_device(image), gpu.to_device(filters), out, *shape)
    return {"out": gpu.to_host(out)}


def reference_conv(size, image: np.ndarray, filters: np.ndarray) -> Arrays:
    _, count, height, width = size
    padded = np.pad(image.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    out = np.zeros((count, height, width))
    for j in range(3):
        for i in range(3):
            out += np.einsum("fc,chw->fhw", filters[:, :, j, i], padded[:, j : j + height, i : i + width])
    return {"out": out.astype(np.float32)}


# --------------------------------------------------------------------------------------------- 3D stencil
STENCIL = r"""
__global__ void laplace3d(const float* __restrict__ u, float* __restrict__ v, int nx, int ny, int nz, float c)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) return;
    long long plane = (long long)nx * ny, i = z * plane + (long long)y * nx + x;
    if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) {
        v[i] = u[i];                           // the boundary stays
        return;
    }
    float around = u[i - 1] + u[i + 1] + u[i - nx] + u[i + nx] + u[i - plane] + u[i + plane];
    v[i] = u[i] + c * (around - 6.0f * u[i]);
}
"""


def inputs_stencil(size: tuple[int, int, int], rng: np.random.Generator) -> Arrays:
    return {"u": rng.standard_normal(size[::-1]).astype(np.float32)}


def launch_stencil(gpu: Runner, size: tuple[int, int, int], u: np.ndarray) -> Arrays:
    a, b = gpu.to_device(u), gpu.empty(u.shape, np.float32)
    grid = tuple(blocks_for(n, k) for n, k in zip(size, (16, 4, 2), strict=True))
    for _ in range(2):
        gpu.launch("laplace3d", grid, (16, 4, 2), a, b, *map(np.int32, size), np.float32(0.1))
        a, b = b, a
    return {"u": gpu.to_host(a)}


def reference_stencil(size: tuple[int, int, int], u: np.ndarray) -> Arrays:
    c, u = np.float64(np.float32(0.1)), u.astype(np.float64)
    for _ in range(2):
        v, inner = u.copy(), (slice(1, -1),) * 3
        around = np.zeros_like(u[inner])
        for axis in range(3):
            for shift in (-1, 1):
                around += np.roll(u, shift, axis)[inner]
        v[inner] = u[inner] + c * (around - 6 * u[inner])
        u = v
    return {"u": u.astype(np.float32)}


# ------------------------------------------------------------------------------------------------- N-body
NBODY = r"""
#define BODIES 64
#define SOFTENING 0.01f

// Every body feels every other; a block loads BODIES of them at a time into shared memory.
__global__ void nbody_forces(const float4* __restrict__ body, float3* __restrict__ acceleration, int n)
{
    __shared__ float4 tile[BODIES];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 self = i < n ? body[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int first = 0; first < n; first += BODIES) {
        int j = first + threadIdx.x;
        tile[threadIdx.x] = j < n ? body[j] : make_float4(0, 0, 0, 0);     // mass 0 pulls nobody
        __syncthreads();
        for (int k = 0; k < BODIES; ++k) {
            float dx = tile[k].x - self.x, dy = tile[k].y - self.y, dz = tile[k].z - self.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + SOFTENING);
            float pull = tile[k].w * inverse * inverse * inverse;
            ax += pull * dx;
            ay += pull * dy;
            az += pull * dz;
        }
        __syncthreads();
    }
    if (i < n) acceleration[i] = make_float3(ax, ay, az);
}
"""


def inputs_nbody(size: int, rng: np.random.Generator) -> Arrays:
    body = rng.standard_normal((size, 4)).astype(np.float32)
    body[:, 3] = rng.uniform(0.5, 1, size)
    return {"body": body}


def launch_nbody(gpu: Runner, size: int, body: np.ndarray) -> Arrays:
    out = gpu.empty((size, 3), np.float32)
    gpu.launch("nbody_forces", blocks_for(size, 64), 64, gpu.to_device(body), out, np.int32(size))
    return {"acceleration": gpu.to_host(out)}


def reference_nbody(size: int, body: np.ndarray) -> Arrays:
    p, m = body[:, :3].astype(np.float64), body[:, 3].astype(np.float64)
    d = p[None, :, :] - p[:, None, :]
    pull = m / ((d**2).sum(axis=2) + np.float32(0.01)) ** 1.5
    return {"acceleration": (pull[:, :, None] * d).sum(axis=1).astype(np.float32)}


# --------------------------------------------------------------------------------------- lattice Boltzmann
LBM = r"""
__constant__ int cx[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1};
__constant__ int cy[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
__constant__ float w[9] = {4.f / 9, 1.f / 9, 1.f / 9, 1.f / 9, 1.f / 9, 1.f / 36, 1.f / 36, 1.f / 36, 1.f / 36};

// D2Q9, periodic: pull the nine populations from the neighbours, relax them towards equilibrium (BGK).
__global__ void lbm_step(const float* __restrict__ in, float* __restrict__ out, int nx, int ny, float omega)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= nx || y >= ny) return;
    int cells = nx * ny, cell = y * nx + x;
    float f[9], rho = 0, ux = 0, uy = 0;
    #pragma unroll
    for (int q = 0; q < 9; ++q) {
        int sx = (x - cx[q] + nx) % nx, sy = (y - cy[q] + ny) % ny;
        f[q] = in[q * cells + sy * nx + sx];
        rho += f[q];
        ux += cx[q] * f[q];
        uy += cy[q] * f[q];
    }
    ux /= rho;
    uy /= rho;
    float speed = 1.0f - 1.5f * (ux * ux + uy * uy);
    #pragma unroll
    for (int q = 0; q < 9; ++q) {
        float cu = 3.0f * (cx[q] * ux + cy[q] * uy);
        float equilibrium = w[q] * rho * (speed + cu + 0.5f * cu * cu);
        out[q * cells + cell] = f[q] + omega * (equilibrium - f[q]);
    }
}
"""
CX = np.array([0, 1, 0, -1, 0, 1, -1, -1, 1])
CY = np.array([0, 0, 1, 0, -1, 1, 1, -1, -1])
W = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)


def inputs_lbm(size: tuple[int, int], rng: np.random.Generator) -> Arrays:
    return {"f": (W[:, None, None] * rng.uniform(0.8, 1.2, (9, size[1], size[0]))).astype(np.float32)}


def launch_lbm(gpu: Runner, size: tuple[int, int], f: np.ndarray) -> Arrays:
    a, b = gpu.to_device(f), gpu.empty(f.shape, np.float32)
    grid = blocks_for(size[0], 32), blocks_for(size[1], 4)
    for _ in range(3):
        gpu.launch("lbm_step", grid, (32, 4), a, b, *map(np.int32, size), np.float32(1.2))
        a, b = b, a
    return {"f": gpu.to_host(a)}


def reference_lbm(size: tuple[int, int], f: np.ndarray) -> Arrays:
    f = f.astype(np.float64)
    for _ in range(3):
        f = np.stack([np.roll(f[q], (CY[q], CX[q]), (0, 1)) for q in range(9)])
        rho = f.sum(axis=0)
        ux, uy = np.tensordot(CX, f, 1) / rho, np.tensordot(CY, f, 1) / rho
        cu = 3 * (CX[:, None, None] * ux + CY[:, None, None] * uy)
        equilibrium = W[:, None, None] * rho * (1 - 1.5 * (ux**2 + uy**2) + cu + 0.5 * cu**2)
        f = f + np.float32(1.2) * (equilibrium - f)
    return {"f": f.astype(np.float32)}


# ------------------------------------------------------------------------------- who am I: 3D grid and block
WHO = r"""
__global__ void who_am_i(unsigned* __restrict__ out, int nx, int ny, int nz)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) return;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x, lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    unsigned* row = out + 6 * ((z * ny + y) * nx + x);
    row[0] = thread;
    row[1] = block;
    row[2] = lane;
    row[3] = threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16;
    row[4] = blockDim.x * blockDim.y * blockDim.z;
    row[5] = gridDim.x * gridDim.y * gridDim.z + warpSize;
}
"""
WHO_BLOCK = (5, 3, 7)  # 105 threads: the last of four warps has nine


def launch_who(gpu: Runner, size: tuple[int, int, int]) -> Arrays:
    nx, ny, nz = size
    out = gpu.empty((nz, ny, nx, 6), np.uint32)
    grid = tuple(blocks_for(n, k) for n, k in zip(size, WHO_BLOCK, strict=True))
    gpu.launch("who_am_i", grid, WHO_BLOCK, out, *map(np.int32, size))
    return {"out": gpu.to_host(out)}


def reference_who(size: tuple[int, int, int]) -> Arrays:
    gx, gy, gz = (blocks_for(n, k) for n, k in zip(size, WHO_BLOCK, strict=True))
    z, y, x = np.indices(size[::-1])
    bx, by, bz = WHO_BLOCK
    thread = ((z % bz) * by + y % by) * bx + x % bx
    block = ((z // bz) * gy + y // by) * gx + x // bx
    packed = x % bx | (y % by) << 8 | (z % bz) << 16
    columns = [thread, block, thread % 32, packed, np.full_like(x, bx * by * bz), np.full_like(x, gx * gy * gz + 32)]
    return {"out": np.stack(columns, axis=-1).astype(np.uint32)}


CASES = [
    Case("blur_constant", BLUR, ("blur",), inputs_image, launch_blur, reference_blur, ((1, 1), (31, 5), (70, 45))),
    Case(
        "conv2d",
        CONV,
        ("conv2d",),
        inputs_conv,
        launch_conv,
        reference_conv,
        ((1, 1, 1, 1), (2, 3, 17, 33), (3, 4, 30, 45)),
        {"out": Tol(1e-5, 2e-5)},
    ),
    Case(
        "stencil3d",
        STENCIL,
        ("laplace3d",),
        inputs_stencil,
        launch_stencil,
        reference_stencil,
        ((1, 1, 1), (5, 31, 3), (33, 17, 12)),
        {"u": Tol(1e-5, 1e-6)},
        gpu={"u": Tol(1e-6, 1e-6, "the compiler may fuse the plain adds and multiplies left in the PTX")},
    ),
    Case(
        "nbody",
        NBODY,
        ("nbody_forces",),
        inputs_nbody,
        launch_nbody,
        reference_nbody,
        (1, 31, 33, 300),
        {"acceleration": Tol(1e-4, 1e-3, "sums of 300 pulls of either sign")},
        gpu={"acceleration": Tol(1e-5, 1e-4, "rsqrt.approx differs in the last bit; sums of either sign")},
    ),
    Case(
        "lattice_boltzmann",
        LBM,
        ("lbm_step",),
        inputs_lbm,
        launch_lbm,
        reference_lbm,
        ((1, 1), (31, 7), (65, 40), (250, 160)),
        {"f": Tol(1e-5, 1e-6)},
        gpu={"f": Tol(1e-6, 1e-7, "the compiler may fuse the plain adds and multiplies left in the PTX")},
    ),
    Case("who_am_i_3d", WHO, ("who_am_i",), nothing, launch_who, reference_who, ((1, 1, 1), (31, 2, 9), (20, 11, 15))),
]
