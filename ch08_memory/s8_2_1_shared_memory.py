# %%
"""8.2.1 共享内存的定义与初步使用 — Shared memory

本节用矩阵转置一级级地用好共享内存：图块、存储体冲突、补列、异或换位、块的次序、异步拷贝；再用直方图申请 48 KiB 以上。
A matrix transpose climbs the ladder of shared memory: a tile, its bank conflicts, padding, an XOR swizzle, the order of
the tiles, asynchronous copies. Then a histogram that needs more than the 48 KiB that a block gets without asking.

要点
  转置的读写总有一边是跨步的；先合作读入共享内存的图块，同步之后再按列取出，两边的全局访问就都连续了。
  存储体有 32 个，各宽 4 字节：线程束读图块的一列，32 个字同在一个存储体，要排 32 次；补一列或按行号异或，就错开了。
  线程块按输出的次序编号：同时运行的块合起来写出整行；写得零碎比读得零碎更费。动态共享内存超过 48 KiB 须先申请。
Key idea
  Shared memory is where a block changes the order of its data, so that both of its sides see long pieces of memory.
  Bank conflicts are a matter of where the tile keeps an element; what is left is the order in which tiles are taken.

Run:      ./run 8.2.1     or     python ch08_memory/s8_2_1_shared_memory.py [--size N] [--quick] [--plot]
Look at:  sectors of a store and wavefronts of a shared load, by hand and counted; on a GPU the share of a copy's speed
          that each rung reaches, also where rows are not aligned; what is refused before the kernel's limit is raised.
"""

import functools

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from common.gpu import Device, LaunchConfig, Program, ProgramOptions, launch
from common.report import brief, save_figure, table
from common.results import Row
from common.simt.counters import counting
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
#include <cuda_pipeline.h>  // __pipeline_memcpy_async: cp.async

// `in` has height rows of width floats, out[x][y] = in[y][x] has width rows of height. The first four: blocks of 32 x 8
// threads for a tile of 32 x 32, so a thread has 4 elements.

// No shared memory: a warp reads a piece of a row, and writes a column, each lane to another row of `out`.
extern "C" __global__ void transpose_naive(const float* __restrict__ in, float* __restrict__ out, int height, int width)
{
    const int x = blockIdx.x * 32 + threadIdx.x;
    for (int y = blockIdx.y * 32 + threadIdx.y; y < min(height, (int)blockIdx.y * 32 + 32); y += 8)
        if (x < width) out[(long long)x * height + y] = in[(long long)y * width + x];
}

// Where a tile of 32 x 32 keeps an element. The bank of a word is its index modulo 32.
enum Layout { ROWS, PADDED, SWIZZLED };

template <Layout LAYOUT> __device__ int place(int row, int column)
{
    if (LAYOUT == PADDED) return row * 33 + column;            // one column more: each row begins one bank later
    if (LAYOUT == SWIZZLED) return row * 32 + (column ^ row);  // the same banks, in another order for each row
    return row * 32 + column;                                  // a column lies in a single bank
}

// Through a tile in shared memory: reads rows of `in`, writes rows of `out`. What is left is the column of the tile.
template <Layout LAYOUT>
__global__ void transpose_tiled(const float* __restrict__ in, float* __restrict__ out, int height, int width)
{
    __shared__ float tile[32 * 33];
    const int left = blockIdx.x * 32, top = blockIdx.y * 32, lane = threadIdx.x;
    #pragma unroll
    for (int row = threadIdx.y; row < 32; row += 8)
        if (top + row < height && left + lane < width)
            tile[place<LAYOUT>(row, lane)] = in[(long long)(top + row) * width + left + lane];
    __syncthreads();  // the tile is whole, before anybody reads what others have brought
    #pragma unroll
    for (int column = threadIdx.y; column < 32; column += 8)
        if (left + column < width && top + lane < height)
            out[(long long)(left + column) * height + top + lane] = tile[place<LAYOUT>(lane, column)];
}

// The rungs below have tiles of 64 x 64, 256 threads, and blocks that are numbered down the matrix. Blocks that run
// together have numbers that follow each other: so they write whole rows of `out`, and read pieces of many of `in`.
// The other way round, as above, is slower: pieces cost memory more when they are written.
constexpr int TILE = 64, SECTOR = 8;  // floats in a sector, the 32 bytes that memory deals in

// For matrices of any shape. Where 8 does not divide the height, rows of `out` begin inside a sector, and two blocks
// would write parts of the same one. So each row is written from where a sector begins: a column of the tile is shifted
// up by 0 to 7 rows, and the block reads 8 rows more. All loads of a thread are on their way before its first store.
extern "C" __global__ void __launch_bounds__(256)
transpose_aligned(const float* __restrict__ in, float* __restrict__ out, int height, int width)
{
    __shared__ float tile[(TILE + SECTOR) * TILE];
    const int more = height % SECTOR ? SECTOR : 0, down = (height + more + TILE - 1) / TILE;
    const int left = blockIdx.x / down * TILE, top = blockIdx.x % down * TILE - more;
    float v[18];
    #pragma unroll
    for (int k = 0; k < 18; ++k) {
        const int row = threadIdx.y + k / 2 * 8, column = threadIdx.x + k % 2 * 32, y = top + row;
        const bool inside = row < TILE + more && y >= 0 && y < height && left + column < width;
        v[k] = inside ? in[(long long)y * width + left + column] : 0.0f;
    }
    #pragma unroll
    for (int k = 0; k < 18; ++k) {
        const int row = threadIdx.y + k / 2 * 8, column = threadIdx.x + k % 2 * 32;
        if (row < TILE + more) tile[row * TILE + (column ^ row % 32)] = v[k];
    }
    __syncthreads();  // the tile is whole
    const auto row_of = [&](int k, int x) {  // where this thread reads column x of the matrix, in the tile's rows
        return (int)threadIdx.x + k % 2 * 32 + more - x % SECTOR * (height % SECTOR) % SECTOR;
    };
    #pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int column = threadIdx.y + k / 2 * 8, row = row_of(k, left + column);
        v[k] = tile[row * TILE + (column ^ row % 32)];
    }
    #pragma unroll
    for (int k = 0; k < 16; ++k) {
        const int x = left + threadIdx.y + k / 2 * 8, y = top + row_of(k, x);
        if (y >= 0 && y < height && x < width) out[(long long)x * height + y] = v[k];
    }
}

// Sixteen bytes a lane, for heights and widths that 4 divides. A thread reads 4 x 4 elements and turns them in
// registers, where that costs nothing; then quads change places through the tile. Blocks of 16 x 16 threads.
extern "C" __global__ void __launch_bounds__(256)
transpose_float4(const float* __restrict__ in, float* __restrict__ out, int height, int width)
{
    __shared__ float4 tile[TILE][TILE / 4];  // already turned: row c is column c of the matrix's tile
    const int down = (height + TILE - 1) / TILE, left = blockIdx.x / down * TILE, top = blockIdx.x % down * TILE;
    const int q = threadIdx.x, p = threadIdx.y;
    float4 v[4] = {};
    if (left + 4 * q < width && top + 4 * p < height)
        #pragma unroll
        for (int k = 0; k < 4; ++k)
            v[k] = *reinterpret_cast<const float4*>(&in[(long long)(top + 4 * p + k) * width + left + 4 * q]);
    // Rows 4q to 4q + 3 of the tile swap their quads by q: the 8 lanes that store together use 8 different places.
    tile[4 * q + 0][p ^ q % 8] = {v[0].x, v[1].x, v[2].x, v[3].x};
    tile[4 * q + 1][p ^ q % 8] = {v[0].y, v[1].y, v[2].y, v[3].y};
    tile[4 * q + 2][p ^ q % 8] = {v[0].z, v[1].z, v[2].z, v[3].z};
    tile[4 * q + 3][p ^ q % 8] = {v[0].w, v[1].w, v[2].w, v[3].w};
    __syncthreads();  // the tile is whole
    const int quad = threadIdx.x;  // 4 rows of the matrix
    #pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = tile[threadIdx.y + 16 * k][quad ^ (threadIdx.y + 16 * k) / 4 % 8];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        const int column = threadIdx.y + 16 * k;
        if (left + column < width && top + 4 * quad < height)
            *reinterpret_cast<float4*>(&out[(long long)(left + column) * height + top + 4 * quad]) = v[k];
    }
}

// Two stages, for matrices of any shape: while a block writes one tile, the next is on its way from global to shared
// memory, without registers in between (cp.async: sm_80 and newer). A block takes every gridDim.x-th tile.
extern "C" __global__ void __launch_bounds__(256)
transpose_async(const float* __restrict__ in, float* __restrict__ out, int height, int width)
{
    __shared__ float tile[2][TILE * TILE];
    const int down = (height + TILE - 1) / TILE, tiles = down * ((width + TILE - 1) / TILE);
    const auto fetch = [&](int number, int stage) {
        if (number < tiles) {
            #pragma unroll
            for (int k = 0; k < 16; ++k) {
                const int row = threadIdx.y + k / 2 * 8, column = threadIdx.x + k % 2 * 32;
                const long long y = number % down * TILE + row, x = number / down * TILE + column;
                const bool inside = y < height && x < width;  // else 4 bytes of zeros (the last argument), nothing read
                __pipeline_memcpy_async(&tile[stage][row * TILE + (column ^ row % 32)],
                                        &in[inside ? y * width + x : 0], 4, inside ? 0 : 4);
            }
        }
        __pipeline_commit();  // also where there was nothing to fetch: each round counts one commit
    };
    fetch(blockIdx.x, 0);
    for (int number = blockIdx.x, stage = 0; number < tiles; number += gridDim.x, stage ^= 1) {
        fetch(number + gridDim.x, stage ^ 1);
        __pipeline_wait_prior(1);  // all of my copies but those of the last commit have come
        __syncthreads();           // and everybody else's
        float v[16];
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
            const int column = threadIdx.y + k / 2 * 8, row = threadIdx.x + k % 2 * 32;
            v[k] = tile[stage][row * TILE + (column ^ row % 32)];
        }
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
            const int column = threadIdx.y + k / 2 * 8, row = threadIdx.x + k % 2 * 32;
            const long long y = number % down * TILE + row, x = number / down * TILE + column;
            if (y < height && x < width) out[x * height + y] = v[k];
        }
        __syncthreads();  // nobody needs this stage any more: the next round fetches into it
    }
}

// counts[k] += how often k < bins occurs among the keys: all counting in global memory, where keys that are alike meet.
extern "C" __global__ void histogram_global(const unsigned* __restrict__ keys, unsigned* __restrict__ counts,
                                            long long n, int bins)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        if (keys[i] < bins) atomicAdd(&counts[keys[i]], 1u);
}

// Each block counts for itself, in `bins` counters whose memory the launch gives, and adds them to the others' at last.
extern "C" __global__ void histogram_shared(const unsigned* __restrict__ keys, unsigned* __restrict__ counts,
                                            long long n, int bins)
{
    extern __shared__ unsigned mine[];
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (int b = threadIdx.x; b < bins; b += blockDim.x) mine[b] = 0;
    __syncthreads();  // all counters are 0
    for (long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x; first < n; first += 4 * stride) {
        unsigned key[4];  // four loads on their way: so few threads would otherwise wait for memory
        #pragma unroll
        for (int k = 0; k < 4; ++k) key[k] = first + k * stride < n ? keys[first + k * stride] : bins;
        #pragma unroll
        for (int k = 0; k < 4; ++k)
            if (key[k] < bins) atomicAdd(&mine[key[k]], 1u);
    }
    __syncthreads();  // all have counted
    for (int b = threadIdx.x; b < bins; b += blockDim.x)
        if (mine[b]) atomicAdd(&counts[b], mine[b]);
}
"""
TILED, PADDED, SWIZZLED = TEMPLATES = [f"transpose_tiled<{layout}>" for layout in ("ROWS", "PADDED", "SWIZZLED")]
ALIGNED, FLOAT4, ASYNC = "transpose_aligned", "transpose_float4", "transpose_async"
RUNGS = ("transpose_naive", *TEMPLATES, ALIGNED, FLOAT4, ASYNC)
TILE = {rung: 32 if rung in RUNGS[:4] else 64 for rung in RUNGS}
MIN_CC = {ASYNC: (8, 0)}
HISTOGRAMS = "histogram_global", "histogram_shared"
FREE = 48 << 10  # bytes of dynamic shared memory that any launch may ask for


@functools.cache
def compiled():
    """KERNEL, compiled once for the current device."""
    options = ProgramOptions(std="c++17", arch=f"sm_{Device().arch}", include_path=gpu.include_folders())
    return Program(KERNEL, "c++", options).compile("cubin", name_expressions=TEMPLATES)


# %% Transpose
def rungs_for(height, width):
    """The rungs that can transpose such a matrix on this device."""
    able = [rung for rung in RUNGS if Device().compute_capability >= MIN_CC.get(rung, (0, 0))]
    too_high = -(-height // 32) > 65_535  # for gridDim.y; the other rungs number their blocks in one dimension
    unable = {FLOAT4} if height % 4 or width % 4 else set()
    unable |= set(RUNGS[:4]) if too_high else set()
    return [rung for rung in able if rung not in unable]


def call_of(rung, shape, d_in, d_out):
    """A function that enqueues the transpose of a matrix of that shape on the stream it is given."""
    across, down = (-(-extent // TILE[rung]) for extent in reversed(shape))
    if rung == ALIGNED and shape[0] % 8:
        down = -(-(shape[0] + 8) // TILE[rung])  # its tiles are shifted
    kernel, block, grid = compiled().get_kernel(rung), (32, 8), across * down
    if TILE[rung] == 32:
        grid = across, down
    elif rung == FLOAT4:
        block = 16, 16
    elif rung == ASYNC:  # as many blocks as fit at once; each takes many tiles
        grid = min(grid, 6 * Device().properties.multiprocessor_count)
    config, sizes = LaunchConfig(grid=grid, block=block), map(np.int32, shape)
    arguments = d_in.buffer, d_out.buffer, *sizes
    return lambda s: launch(s, config, kernel, *arguments)


def transpose(matrix, rung=None):
    """float32 (width, height) from (height, width), by one of RUNGS (none given: the one to ship for that shape).
    ValueError unless float32, two-dimensional, contiguous, not empty, and of a shape that the rung takes."""
    if matrix.dtype != np.float32 or matrix.ndim != 2 or matrix.size == 0 or not matrix.flags.c_contiguous:
        raise ValueError(f"expected float32 (height, width), contiguous, not empty; got {matrix.dtype} {matrix.shape}")
    able = rungs_for(*matrix.shape)
    rung = rung or (FLOAT4 if FLOAT4 in able else ALIGNED)
    if rung not in able:
        raise ValueError(f"{rung!r} does not take {matrix.shape} here; these do: {', '.join(able)}")
    _, stream = gpu.open_device()
    d_in, d_out = gpu.to_device(matrix, stream), gpu.empty(matrix.shape[::-1], np.float32, stream)
    call_of(rung, matrix.shape, d_in, d_out)(stream)
    return d_out.to_host(stream)


# %% More than 48 KiB: a histogram
def histogram_call(name, n, bins, d_keys, d_counts):
    """A function that enqueues a histogram of n keys. ValueError where a block cannot have the shared memory for it."""
    properties, shared = Device().properties, 4 * bins if name == "histogram_shared" else 0
    most = properties.max_shared_memory_per_block_optin
    if shared > most:
        raise ValueError(
            f"{bins:,} bins need {shared:,} bytes of shared memory; a block can have {most:,}: {most // 4:,} bins"
        )
    kernel = compiled().get_kernel(name)
    if shared > FREE:
        gpu.allow_shared_memory(kernel, shared)  # PyCUDA: function.set_attribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
    blocks = min(2, properties.max_shared_memory_per_multiprocessor // (shared + 1024))  # that fit on a multiprocessor
    grid = min(-(-n // 1024), blocks * properties.multiprocessor_count)
    config = LaunchConfig(grid=grid, block=1024, shmem_size=shared)
    return lambda s: launch(s, config, kernel, d_keys.buffer, d_counts.buffer, np.int64(n), np.int32(bins))


def histogram(keys, bins, name="histogram_shared"):
    """uint32 (bins,): how often each of 0 … bins - 1 occurs among uint32 keys (n,); others are passed over.
    ValueError for other keys, for no bins, and for more than shared memory holds."""
    if keys.dtype != np.uint32 or keys.ndim != 1 or keys.size == 0 or not keys.flags.c_contiguous:
        raise ValueError(f"expected uint32 keys (n,), contiguous, n > 0; got {keys.dtype} {keys.shape}")
    if bins < 1:
        raise ValueError(f"expected at least one bin, got {bins}")
    _, stream = gpu.open_device()
    d_keys, d_counts = gpu.to_device(keys, stream), gpu.zeros(bins, np.uint32, stream)
    histogram_call(name, keys.size, bins, d_keys, d_counts)(stream)
    return d_counts.to_host(stream)


def show_limits():
    """What a block may have, and what a launch with more than 48 KiB says before the kernel's limit is raised."""
    device, stream = gpu.open_device()
    limits = device.properties
    rows = [
        ("a block, without asking", limits.max_shared_memory_per_block),
        ("a block, when the kernel's limit is raised", limits.max_shared_memory_per_block_optin),
        ("a multiprocessor", limits.max_shared_memory_per_multiprocessor),
        ("of that, taken by the system for each block", limits.reserved_shared_memory_per_block),
    ]
    table("Shared memory", ("what for", "bytes"), [(what, f"{nbytes:,}") for what, nbytes in rows])
    kernel, asked = compiled.__wrapped__().get_kernel("histogram_shared"), FREE + 4  # compiled anew: nobody asked yet
    arguments = *(gpu.zeros(1, np.uint32, stream).buffer for _ in range(2)), np.int64(1), np.int32(1)
    config = LaunchConfig(grid=1, block=32, shmem_size=asked)
    may = kernel.attributes.max_dynamic_shared_size_bytes
    print(f"histogram_shared may have {may:,} bytes of dynamic shared memory")
    try:
        launch(stream, config, kernel, *arguments)
    except gpu.CUDAError as refused:
        print(f"a launch with {asked:,} is refused: {brief(refused)}")
    gpu.allow_shared_memory(kernel, asked)  # cuKernelSetAttribute(…MAX_DYNAMIC_SHARED_SIZE_BYTES, asked, …)
    launch(stream, config, kernel, *arguments)
    stream.sync()
    print("allowed (cuKernelSetAttribute), the same launch runs")


# %% By hand and counted
# What 32 floats cost, which is what a warp takes, 4 bytes a lane: sectors (32 bytes) loaded from and stored to global
# memory, and wavefronts (steps) of shared memory to store and to load them. 32 floats side by side are 4 sectors, in 32
# rows they are 32; a step of shared memory serves each bank once.
COUNTED = "global_load_sectors", "global_store_sectors", "shared_store_wavefronts", "shared_load_wavefronts"
BY_HAND = {
    "transpose_naive": (4, 32, 0, 0),
    TILED: (4, 4, 1, 32),  # the column of a tile: 32 words of one bank
    PADDED: (4, 4, 1, 1),
    SWIZZLED: (4, 4, 1, 1),
    ALIGNED: (4, 4, 1, 1),
    FLOAT4: (4, 4, 1, 1),  # a request is of 128 floats, and takes four times as much
    ASYNC: (4, 4, 0, 1),  # cp.async is a load from global memory; no instruction stores
}


def banks(layout):
    """The bank of each element of a 32 × 32 tile, as `place` has it."""
    row, column = np.indices((32, 32))
    return {"ROWS": row * 32 + column, "PADDED": row * 33 + column, "SWIZZLED": row * 32 + (column ^ row)}[layout] % 32


def compare(side):
    """Print BY_HAND beside what the simulator counts on side × side floats (64 divides side); Mismatch if not equal."""
    rows, wrong = [], []
    for rung, by_hand in BY_HAND.items():
        with counting() as launches:
            transpose(random_matrix(side, side), rung)
        found = [launches[0].total(name) * 32 / side**2 for name in COUNTED]
        rows.append((rung, *(f"{n:g} ({expected})" for n, expected in zip(found, by_hand, strict=True))))
        if found != list(by_hand):
            wrong.append(f"{rung}: counted {found}, by hand {by_hand}")
    headings = "variant", "load sectors", "store sectors", "shared store wavefronts", "shared load wavefronts"
    table(f"{side} × {side} floats: what each 32 of them cost, as the simulator counts (by hand)", headings, rows)
    if wrong:
        raise Mismatch("\n".join(wrong))


# %% Verify and measure
def random_matrix(height, width):
    return np.random.default_rng(821).standard_normal((height, width), dtype=np.float32)


def verify(n):
    """The checks of all rungs, on an aligned and a ragged matrix of about n × n, and of the histograms."""
    checks = []
    for height, width in ((-(-n // 4) * 4, -(-n // 4) * 4 + 8), (n | 1, n + 3 | 1)):
        matrix = random_matrix(height, width)
        for rung in rungs_for(height, width):
            checks.append(check(f"{rung}, {height} × {width}", transpose(matrix, rung), matrix.T))
    keys = np.random.default_rng(128).integers(0, 20_000, 8 * n, dtype=np.uint32)  # 80 000 bytes of counters
    for name in HISTOGRAMS:
        expected = np.bincount(keys, minlength=20_000).astype(np.uint32)
        checks.append(check(f"{name}, 20000 bins", histogram(keys, 20_000, name), expected))
    return checks


def benchmark() -> list[Row]:
    """All rungs, torch's transpose and a copy, where 16 bytes divide the rows and where not; then the histograms."""
    import torch
    from cuda.bindings import driver

    timing.yardsticks(*gpu.open_device())  # now, since they need memory themselves
    verify(251)
    properties, rows = Device().properties, []
    scale = min(1.0, (gpu.free_memory() / 4 / (16 << 28)) ** 0.5)  # what torch needs to compare is in the 16 bytes
    shapes = [tuple(int(extent * scale) // 4 * 4 + odd for extent, odd in shape) for shape in SHAPES]
    with timing.torch_stream() as stream:
        for shape in shapes:
            d_in, d_out = (gpu.empty(extents, np.float32, stream) for extents in (shape, shape[::-1]))
            x, y = (torch.as_tensor(array, device="cuda") for array in (d_in, d_out))
            x.uniform_(-1, 1)
            calls = {rung: call_of(rung, shape, d_in, d_out) for rung in rungs_for(*shape)}
            for name, call in calls.items():
                y.zero_()
                call(stream)
                if not torch.equal(y, x.T):
                    raise Mismatch(f"{name} of {shape} is wrong")
            addresses = int(d_out.buffer.handle), int(d_in.buffer.handle), d_in.nbytes
            calls["torch copy_"] = lambda s, x=x, y=y: y.copy_(x.T)
            calls["cuMemcpyDtoD"] = lambda s, a=addresses: gpu.checked(driver.cuMemcpyDtoDAsync(*a, int(s.handle)))
            rows += rows_of(timing.benchmark(calls, stream), "torch copy_", "x".join(map(str, shape)), 2 * d_in.nbytes)
            del x, y
        n, bins = 1 << 26, min(50_000, properties.max_shared_memory_per_block_optin // 4)
        d_keys, d_counts = gpu.empty(n, np.int32, stream), gpu.zeros(bins, np.uint32, stream)
        torch.as_tensor(d_keys, device="cuda").random_(0, bins)
        calls = {name: histogram_call(name, n, bins, d_keys, d_counts) for name in HISTOGRAMS}
        times = timing.benchmark(calls, stream)
    return rows + rows_of(times, "histogram_global", f"2^26 keys, {bins} bins", 4 * n, "u32")


SHAPES = ((16384, 0), (16384, 0)), ((16000, 1), (12000, 3))  # (extent, how much more); the second is not aligned


def rows_of(times, peer, size, moved, dtype="f32"):
    """The rows of what was timed together."""
    what = {"section": "8.2.1", "size": size, "dtype": dtype, "bytes": moved}
    what |= {"peer": (peer, times[peer]), "yardsticks": timing.yardsticks(*gpu.open_device())}
    return [Row.from_timing(name=name, timing=taken, **what) for name, taken in times.items()]


# %% Show
def plot():
    """The banks of a tile's elements: a column in one colour is a conflict."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, layout in zip(figure.subplots(1, 3), ("ROWS", "PADDED", "SWIZZLED"), strict=True):
        image = axes.imshow(banks(layout), cmap="twilight")
        ways = np.bincount(banks(layout)[:, 0]).max()
        axes.set(title=f"{layout.lower()}: wavefronts of a column: {ways}", xlabel="column of the tile")
    figure.axes[0].set_ylabel("row of the tile")
    figure.colorbar(image, ax=figure.axes, label="bank")
    save_figure(figure, "s8_2_1_shared_memory")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=509, quick_size=125, plot=True).parse_args(argv)
    device, _ = gpu.open_device()
    header(__doc__, device)
    check_fits(9 * (options.size + 12) ** 2)
    for rung, needed in MIN_CC.items():
        if device.compute_capability < needed:
            not_run(f"{rung}: needs sm_{needed[0]}{needed[1]}")
    checks_table(verify(options.size))
    if gpu.SIMULATED:
        compare(128 if options.quick else 256)
    else:
        not_run("counts by the simulator: set CUDA_BOOK_DEVICE=simulator")
    show_limits()
    if options.plot:
        plot()
    rows, _ = results.measured_or_recorded("8.2.1", benchmark, options.bench)
    if rows:
        results.show(rows, "A transpose moves what a copy moves: 'of copy' says what the wrong order still costs")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
