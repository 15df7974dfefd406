# %%
"""1.3.3 共享内存与常量内存的使用 — Shared and constant memory

本节用一个 5 × 5 卷积走完一级级台阶：全局内存、常量内存里的滤波器、共享内存里的图块，最后把一列像素留在寄存器里。
One 5 × 5 convolution as a ladder: all from global memory, the filter in constant memory, a tile of the image in shared
memory, and last a window of the image in registers.

要点
  常量内存 64 KiB，经专用缓存读取：一个线程束读同一地址只要一次，读不同地址则要排队；展开后系数直接是指令的操作数。
  共享内存由线程块共用：先合作把图块连同边缘（halo）读进来，__syncthreads() 之后再各取所需，每个像素只从全局内存读一次。
  共享内存的大小可在启动时给出（动态共享内存）；超过 48 KiB 要先申请。最快的还是寄存器：相邻通道用 shuffle 交换。
Key idea
  What all threads read alike belongs into constant memory, what neighbours read again into shared memory, and what one
  thread reads again into registers: the nearer the data, the more loads it can serve.

Run:      ./run 1.3.3     or     python ch01_cuda_basics/s1_3_3_shared_and_constant_memory.py [--size N] [--plot]
Look at:  what each rung buys: on a GPU its share of the speed of a copy and its gain over the rung before, without one
          the requests and sectors that it needs; what a divergent index into constant memory costs.
"""

import functools
import itertools

import numpy as np

from common import gpu, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import LaunchConfig, launch
from common.gpu import LaunchConfig, launch
from common.profile import show_counts
from common.pycuda import load as load_pycuda
from common.report import save_figure
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
constexpr int R = 2, TAPS = 2 * R + 1;  // radius and width of the filter
__constant__ float taps[TAPS * TAPS];   // the host writes it before the launch; kernels only read it

// out[y][x] is the sum of filter[R + dy][R + dx] * in[y + dy][x + dx]; pixels outside the image count as 0.
__device__ float pixel(const float* __restrict__ in, int x, int y, int width, int height)
{
    return x >= 0 && x < width && y >= 0 && y < height ? in[(long long)y * width + x] : 0.0f;
}

// Everything from global memory: 25 numbers of the filter and 25 pixels for each result.
extern "C" __global__ void conv_global(const float* __restrict__ in, float* __restrict__ out, int width, int height,
                                       const float* __restrict__ filter)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0.0f;
    for (int dy = -R; dy <= R; ++dy)
        for (int dx = -R; dx <= R; ++dx)
            sum += filter[(R + dy) * TAPS + R + dx] * pixel(in, x + dx, y + dy, width, height);
    out[(long long)y * width + x] = sum;
}

// The filter from constant memory: all threads read the same number at the same time.
extern "C" __global__ void conv_constant(const float* __restrict__ in, float* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float sum = 0.0f;
    #pragma unroll
    for (int dy = -R; dy <= R; ++dy)
        #pragma unroll
        for (int dx = -R; dx <= R; ++dx)
            sum += taps[(R + dy) * TAPS + R + dx] * pixel(in, x + dx, y + dy, width, height);
    out[(long long)y * width + x] = sum;
}

// The image through a tile in shared memory, whose size the launch says: (tile_x + 2R) x (tile_y + 2R) floats. The
// threads of a block, whatever its shape, walk over the tile to fill it, and again for its tile_x x tile_y results.
__device__ void through_tile(const float* __restrict__ in, float* __restrict__ out, int width, int height,
                             int tile_x, int tile_y, const float* __restrict__ filter)
{
    extern __shared__ float tile[];
    const int across = tile_x + 2 * R, down = tile_y + 2 * R;
    const int left = blockIdx.x * tile_x, top = blockIdx.y * tile_y;
    for (int j = threadIdx.y; j < down; j += blockDim.y)
        for (int i = threadIdx.x; i < across; i += blockDim.x)
            tile[j * across + i] = pixel(in, left + i - R, top + j - R, width, height);
    __syncthreads();  // the tile is whole, before anybody reads what others have brought
    for (int j = threadIdx.y; j < tile_y && top + j < height; j += blockDim.y)
        for (int i = threadIdx.x; i < tile_x && left + i < width; i += blockDim.x) {
            float sum = 0.0f;
            #pragma unroll
            for (int dy = 0; dy < TAPS; ++dy)
                #pragma unroll
                for (int dx = 0; dx < TAPS; ++dx)
                    sum += filter[dy * TAPS + dx] * tile[(j + dy) * across + i + dx];
            out[(long long)(top + j) * width + left + i] = sum;
        }
}

// The tile alone: the filter still comes from global memory.
extern "C" __global__ void conv_shared(const float* __restrict__ in, float* __restrict__ out, int width, int height,
                                       int tile_x, int tile_y, const float* __restrict__ filter)
{
    through_tile(in, out, width, height, tile_x, tile_y, filter);
}

// Both: the image through shared memory, the filter from constant memory.
extern "C" __global__ void conv_tile(const float* __restrict__ in, float* __restrict__ out, int width, int height,
                                     int tile_x, int tile_y)
{
    through_tile(in, out, width, height, tile_x, tile_y, taps);
}

// The version to ship. A thread takes four neighbours in x and ROWS rows. It asks for rows ahead of those it needs, so
// that many loads are on their way; a row goes into the sums of all its results that need it, so it reads none twice.
// The two columns on either side come from the lanes beside: so of the 32 lanes of a warp only the inner 30 have
// results, and warps overlap by two. Rows begin `pitch` floats apart, a multiple of 4, in memory aligned to 16 bytes;
// blockDim.x is 32.
extern "C" __global__ void conv_registers(const float* __restrict__ in, float* __restrict__ out,
                                          int width, int height, int pitch)
{
    constexpr int ROWS = 8;
    const int quads = pitch / 4, lane = threadIdx.x, q = blockIdx.x * 30 + lane - 1;
    const int first = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (first >= height) return;  // a warp lies in one row, so all its lanes go or stay
    const int there = q < 0 ? 0 : width - 4 * q;  // how many of the four pixels are inside
    float4 row[ROWS + 2 * R];
    #pragma unroll
    for (int k = 0; k < ROWS + 2 * R; ++k) {
        const int y = first + k - R;
        row[k] = {};
        if (there > 0 && y >= 0 && y < height) row[k] = reinterpret_cast<const float4*>(in)[(long long)y * quads + q];
        if (there < 2) row[k].y = 0.0f;  // what lies between the row's end and the next one
        if (there < 3) row[k].z = 0.0f;
        if (there < 4) row[k].w = 0.0f;
    }
    float sum[ROWS][4] = {};
    #pragma unroll
    for (int k = 0; k < ROWS + 2 * R; ++k) {
        const float4 v = row[k];
        const float window[8] = {
            __shfl_up_sync(0xffffffff, v.z, 1), __shfl_up_sync(0xffffffff, v.w, 1), v.x, v.y, v.z, v.w,
            __shfl_down_sync(0xffffffff, v.x, 1), __shfl_down_sync(0xffffffff, v.y, 1)};
        #pragma unroll
        for (int dy = 0; dy < TAPS; ++dy)
            if (const int r = k - dy; r >= 0 && r < ROWS)  // known when this is compiled: all loops are unrolled
                #pragma unroll
                for (int dx = 0; dx < TAPS; ++dx)
                    #pragma unroll
                    for (int j = 0; j < 4; ++j) sum[r][j] += taps[dy * TAPS + dx] * window[j + dx];
        const int done = k - 2 * R;  // the result whose last row this was
        if (done >= 0 && first + done < height && lane > 0 && lane < 31 && q < quads)
            reinterpret_cast<float4*>(out)[(long long)(first + done) * quads + q] =
                {sum[done][0], sum[done][1], sum[done][2], sum[done][3]};
    }
}

// What an index that differs between the lanes costs: each thread adds up `reads` numbers of a table of 1024. With
// spread = 0 the lanes of a warp read one address at a time; with spread = 1 they read 32.
__constant__ float numbers[1024];

extern "C" __global__ void table_sums(float* __restrict__ out, long long n, int reads, int spread)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float sum = 0.0f;
    for (int k = 0; k < reads; ++k) sum += numbers[(k + spread * (threadIdx.x % 32)) % 1024];
    out[i] = sum;
}
"""
R, TAPS, ROWS = 2, 5, 8  # as in the kernels
TILE, LARGE = (32, 16), (128, 96)  # the second one needs more than 48 KiB of shared memory
compiled = functools.cache(lambda: gpu.compile_module(KERNEL))


# %% The references
def reference(image, filter_):
    """The convolution (as deep learning calls it: not flipped) with a border of zeros, in float64."""
    padded, out = np.pad(image.astype(np.float64), R), np.zeros(image.shape)
    for dy in range(TAPS):
        for dx in range(TAPS):
            out += filter_[dy, dx].astype(np.float64) * padded[dy : dy + image.shape[0], dx : dx + image.shape[1]]
    return out


def reference_table(table_, n, reads, spread):
    """What table_sums adds up, in float64."""
    at = (np.arange(reads) + spread * (np.arange(n) % 32)[:, None]) % table_.size
    return table_.astype(np.float64)[at].sum(axis=1)


# %% The launches
def set_constant(name, values, stream):
    """Write float32 values to a __constant__ array of KERNEL: they count for all launches that follow."""
    gpu.copy_to_buffer(gpu.get_global(compiled(), name), np.ascontiguousarray(values, np.float32), stream)


def call_of(rung, shape, d_in, d_out, d_filter):
    """A function that enqueues one convolution on the stream it is given. `shape` is that of the image: the rows in
    device memory may be longer."""
    (height, width), pitch = shape, d_in.shape[1]
    size = np.int32(width), np.int32(height)
    name, block, shared, more = rung, (32, 8), 0, ()
    grid = -(-width // block[0]), -(-height // block[1])
    if rung == "conv_global":
        more = (d_filter.buffer,)
    elif rung.startswith(("conv_shared", "conv_tile")):
        name, tile = rung.partition(",")[0], LARGE if rung.endswith("large") else TILE
        shared, more = 4 * (tile[0] + 2 * R) * (tile[1] + 2 * R), (np.int32(tile[0]), np.int32(tile[1]))
        more += (d_filter.buffer,) if rung == "conv_shared" else ()
        grid = -(-width // tile[0]), -(-height // tile[1])
    elif rung == "conv_registers":
        block, more = (32, 4), (np.int32(pitch),)
        grid = -(-pitch // 120), -(-height // (block[1] * ROWS))  # 30 of the 32 lanes have results, 4 each
    kernel = compiled().get_kernel(name)
    if shared > 48 << 10:
        gpu.allow_shared_memory(kernel, shared)
    config = LaunchConfig(grid=grid, block=block, shmem_size=shared)
    return lambda s: launch(s, config, kernel, d_in.buffer, d_out.buffer, *size, *more)


RUNGS = "conv_global", "conv_constant", "conv_shared", "conv_tile", "conv_tile, large", "conv_registers"


def checked(image, filter_):
    """ValueError unless a float32 image (height, width), not empty, and a float32 filter of 5 × 5."""
    if image.dtype != np.float32 or image.ndim != 2 or image.size == 0:
        raise ValueError(f"expected a float32 image of shape (height, width), got {image.dtype} {image.shape}")
    if filter_.dtype != np.float32 or filter_.shape != (TAPS, TAPS):
        raise ValueError(f"expected a float32 filter of shape (5, 5), got {filter_.dtype} {filter_.shape}")


def padded(image, rung):
    """The rows filled up to a multiple of 4 floats, for the rung that loads four at a time."""
    return np.pad(image, ((0, 0), (0, -image.shape[1] % 4 if rung == "conv_registers" else 0)))


def convolve(image, filter_, rung="conv_registers"):
    """float32 (height, width) by one of RUNGS. ValueError for other images or filters."""
    checked(image, filter_)
    _, stream = gpu.open_device()
    set_constant("taps", filter_, stream)
    d_in, d_filter = gpu.to_device(padded(image, rung), stream), gpu.to_device(filter_, stream)
    d_out = gpu.empty(d_in.shape, np.float32, stream)
    call_of(rung, image.shape, d_in, d_out, d_filter)(stream)
    return np.ascontiguousarray(d_out.to_host(stream)[:, : image.shape[1]])


def table_sums(table_, n, reads, spread):
    """float32 (n,): what table_sums adds up of a table of 1024 float32."""
    _, stream = gpu.open_device()
    set_constant("numbers", table_, stream)
    d_out = gpu.empty(n, np.float32, stream)
    config = LaunchConfig(grid=-(-n // 256), block=256)
    arguments = d_out.buffer, np.int64(n), np.int32(reads), np.int32(spread)
    launch(stream, config, compiled().get_kernel("table_sums"), *arguments)
    return d_out.to_host(stream)


# %% The same through PyCUDA
def convolve_pycuda(image, filter_):
    """As `convolve`, by conv_constant; Unavailable without PyCUDA."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    checked(image, filter_)
    pycuda, (height, width), image = load_pycuda(), image.shape, np.ascontiguousarray(image)
    module = pycuda.SourceModule(KERNEL, no_extern_c=True, options=["-std=c++17"])
    address, _ = module.get_global("taps")
    pycuda.driver.memcpy_htod(address, np.ascontiguousarray(filter_))
    out = np.empty_like(image)
    arguments = pycuda.driver.In(image), pycuda.driver.Out(out), np.int32(width), np.int32(height)
    grid = -(-width // 32), -(-height // 8)
    module.get_function("conv_constant")(*arguments, block=(32, 8, 1), grid=grid)
    return out


# %% Verify and measure
def random_image(height, width):
    return np.random.default_rng(133).standard_normal((height, width), dtype=np.float32)


def random_filter():
    return np.random.default_rng(331).uniform(-1, 1, (TAPS, TAPS)).astype(np.float32)


# 25 products and 25 sums of numbers below 6, each rounded by at most 2^-24 of a sum below 40
CLOSE = {"atol": 25 * 40 * 2.0**-24}


def verify(n):
    """The checks of all rungs on an image of about n x n. Raises Mismatch if one is wrong."""
    image, filter_, table_ = random_image(n, n + 5), random_filter(), np.arange(1024, dtype=np.float32) / 1024
    outcomes = {rung: convolve(image, filter_, rung) for rung in RUNGS}
    try:
        outcomes["conv_constant, PyCUDA"] = convolve_pycuda(image, filter_)
    except Unavailable as missing:
        print(missing)
    expected = reference(image, filter_)
    checks = [check(name, out, expected, **CLOSE) for name, out in outcomes.items()]
    for name, spread in (("1 address", 0), ("32 addresses", 1)):
        sums, expected = table_sums(table_, 1000, 64, spread), reference_table(table_, 1000, 64, spread)
        checks.append(check(f"table_sums, {name}", sums, expected, rtol=64 * 2.0**-24))
    return checks


def benchmark() -> list[Row]:
    """All rungs and cuDNN (through torch) on a large image; then a table in constant memory, read alike and apart."""
    import torch

    device, _ = gpu.open_device()
    yardsticks = timing.yardsticks(device, device.create_stream())
    verify(251)
    n = min(16_000, int((gpu.free_memory() / 48) ** 0.5) // 4 * 4)  # three images, one of them torch's, in a quarter
    what = {"section": "1.3.3", "dtype": "f32", "yardsticks": yardsticks}
    with timing.torch_stream() as stream, torch.backends.cudnn.flags(benchmark=True, allow_tf32=False):
        filter_ = random_filter()
        set_constant("taps", filter_, stream)
        d_in, d_filter = gpu.to_device(random_image(n, n), stream), gpu.to_device(filter_, stream)
        d_out = gpu.empty((n, n), np.float32, stream)
        calls = {rung: call_of(rung, (n, n), d_in, d_out, d_filter) for rung in RUNGS}
        weights, image = torch.as_tensor(filter_, device="cuda")[None, None], torch.as_tensor(d_in, device="cuda")
        calls["torch conv2d"] = lambda s: torch.nn.functional.conv2d(image[None, None], weights, padding=R)
        times = timing.benchmark(calls, stream)
        peer = "torch conv2d", times["torch conv2d"]
        flops = 2 * TAPS * TAPS * n * n
        what_of = {"size": f"{n}x{n}, 5x5", "bytes": 8 * n * n, "flops": flops, "peer": peer, **what}
        gain = {b: {"× rung before": times[a].seconds / times[b].seconds} for a, b in itertools.pairwise(RUNGS)}
        rows = [Row.from_timing(name=k, timing=t, figures=gain.get(k), **what_of) for k, t in times.items()]

        set_constant("numbers", np.arange(1024) / 1024, stream)
        n, kernel, calls = 1 << 22, compiled().get_kernel("table_sums"), {}
        for spread in (0, 1):
            arguments = LaunchConfig(grid=n // 256, block=256), kernel, d_out.buffer, np.int64(n), np.int32(64)
            name = f"constant, {1 + 31 * spread} address{'es' * spread} a warp"
            calls[name] = lambda s, a=arguments, k=spread: launch(s, *a, np.int32(k))
        times = timing.benchmark(calls, stream)
        alike = next(iter(times.items()))
        return rows + [
            Row.from_timing(name=k, size="2^22 x 64 reads", timing=t, peer=alike, **what) for k, t in times.items()
        ]


# %% Show
def plot():
    """A photograph (from scikit-learn), blurred, and with its edges found: the same kernel with other numbers."""
    from matplotlib.figure import Figure
    from sklearn.datasets import load_sample_image

    photo = load_sample_image("china.jpg").mean(axis=2).astype(np.float32)
    blur = np.outer(*[np.array([1, 4, 6, 4, 1]) / 16] * 2).astype(np.float32)
    edges = np.full((TAPS, TAPS), -1 / 24, np.float32)
    edges[R, R] = 1
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    images = {"before": photo, "5 × 5 binomial filter": convolve(photo, blur), "edges": np.abs(convolve(photo, edges))}
    for axes, (title, image) in zip(figure.subplots(1, 3), images.items(), strict=True):
        axes.imshow(image, cmap="gray")
        axes.set(title=title, xticks=[], yticks=[])
    save_figure(figure, "s1_3_3_shared_and_constant_memory")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=509, quick_size=125, plot=True).parse_args(argv)
    n = options.size
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * n * (n + 8))
    checks_table(verify(n))
    if gpu.SIMULATED:
        image, filter_ = random_image(n, n + 5), random_filter()
        show_counts("What each rung asks of the memory", {r: lambda r=r: convolve(image, filter_, r) for r in RUNGS})
    if options.plot:
        plot()
    if measure(benchmark, options.bench):
        print("cuDNN, behind torch's conv2d, is made for many channels: with one, measure by the copy")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
