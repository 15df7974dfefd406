# %%
"""1.4.2 线程块与网格组织 — Laying out blocks and grids

本节用一步雅可比迭代（二维五点、三维七点）比较线程块的形状：占用率相同，速度可以差很多，原因在一个线程束触及多少扇区。
One Jacobi step (5 points in 2D, 7 in 3D) with blocks of many shapes: at equal occupancy their speeds are far apart.

要点
  一个线程束沿 x 排 32 个线程，一次请求触及 4 个 32 字节的扇区；块越窄，触及的扇区越多，最坏每个线程一个。
  占用率计算器只看寄存器、共享内存和线程数，不看地址，也不看块的个数：64 个线程的块，占用率也是 100%，但每块的工作太少，
  发放线程块的速率成了瓶颈。所以先取 128 到 256 个线程，再让块沿 x 至少一个线程束宽。
  网格的 y、z 方向最多 65535 个块；宽高不整齐时右边、下边有空闲线程。用跨步循环可以突破前者。
Key idea
  Take blocks of 128 to 256 threads, for smaller ones end before the next can be dealt out, and at least a warp wide
  along the last axis; then let each thread take several rows and keep in registers what the next row needs again. The
  occupancy calculator knows nothing of addresses, nor of how many blocks there are.

Run:      ./run 1.4.2     or     python ch01_cuda_basics/s1_4_2_block_and_grid_layout.py [--size N] [--quick] [--plot]
Look at:  sectors per request by hand and as counted, against the shape; on a GPU (or as recorded) what it does to the
          speed, and that the occupancy does not explain it; the error of a grid that is too tall, and its cure.
"""

import functools
import math

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, launch
from common.gpu import Device, LaunchConfig, launch
from common.profile import show_counts
from common.report import brief, new_figure, save_figure, si, table
from common.results import Row
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// The new value of a point: the mean of its neighbours. Points on the border keep theirs.
// One thread for each point, x along the rows.
extern "C" __global__ void jacobi_2d(const float* __restrict__ in, float* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const long long i = (long long)y * width + x;
    const bool border = x == 0 || x == width - 1 || y == 0 || y == height - 1;
    out[i] = border ? in[i] : 0.25f * ((in[i - width] + in[i + width]) + (in[i - 1] + in[i + 1]));
}

// A grid may have only 65535 blocks in y. Here it need not cover the rows: each thread strides through them.
extern "C" __global__ void jacobi_2d_stride(const float* __restrict__ in, float* __restrict__ out,
                                            int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x >= width) return;
    for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < height; y += gridDim.y * blockDim.y) {
        const long long i = (long long)y * width + x;
        const bool border = x == 0 || x == width - 1 || y == 0 || y == height - 1;
        out[i] = border ? in[i] : 0.25f * ((in[i - width] + in[i + width]) + (in[i - 1] + in[i + 1]));
    }
}

// The version to ship. A thread takes four neighbours in x and ROWS rows. It asks for rows ahead of those it needs, so
// that many loads are on their way. Neighbours in x come from the lanes beside: so of the 32 lanes of a warp only the
// inner 30 have results, and warps overlap by two. Rows begin `pitch` numbers apart, a multiple of 4, in memory aligned
// to 16 bytes; blockDim.x is 32.
template <int ROWS>
__global__ void jacobi_2d_float4(const float* __restrict__ in, float* __restrict__ out,
                                 int width, int height, int pitch)
{
    const int quads = pitch / 4, lane = threadIdx.x, q = blockIdx.x * 30 + lane - 1;
    const int first = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS;
    if (first >= height) return;  // a warp lies in one row, so all its lanes go or stay
    const float4* column = reinterpret_cast<const float4*>(in) + min(max(q, 0), quads - 1);
    float4 row[ROWS + 2];
    #pragma unroll
    for (int k = 0; k < ROWS + 2; ++k) row[k] = column[(long long)min(max(first + k - 1, 0), height - 1) * quads];
    #pragma unroll
    for (int k = 1; k <= ROWS; ++k) {
        const float4 above = row[k - 1], here = row[k], below = row[k + 1];
        const float left = __shfl_up_sync(0xffffffff, here.w, 1), right = __shfl_down_sync(0xffffffff, here.x, 1);
        float4 mean;
        mean.x = 0.25f * ((above.x + below.x) + (left + here.y));
        mean.y = 0.25f * ((above.y + below.y) + (here.x + here.z));
        mean.z = 0.25f * ((above.z + below.z) + (here.y + here.w));
        mean.w = 0.25f * ((above.w + below.w) + (here.z + right));
        const int y = first + k - 1, last = width - 1 - 4 * q;  // which of the four is the last column, if one is
        if (y == 0 || y == height - 1) mean = here;
        if (q == 0 || last == 0) mean.x = here.x;
        if (last == 1) mean.y = here.y;
        if (last == 2) mean.z = here.z;
        if (last == 3) mean.w = here.w;
        if (lane > 0 && lane < 31 && q < quads && y < height)
            reinterpret_cast<float4*>(out)[(long long)y * quads + q] = mean;
    }
}

// Three dimensions: the mean of six neighbours, one thread for each point.
extern "C" __global__ void jacobi_3d(const float* __restrict__ in, float* __restrict__ out,
                                     int width, int height, int depth)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= width || y >= height || z >= depth) return;
    const long long plane = (long long)width * height, i = z * plane + (long long)y * width + x;
    const bool border = x == 0 || x == width - 1 || y == 0 || y == height - 1 || z == 0 || z == depth - 1;
    out[i] = border ? in[i]
                    : (1.0f / 6.0f) * (((in[i - plane] + in[i + plane]) + (in[i - width] + in[i + width])) +
                                       (in[i - 1] + in[i + 1]));
}

// The version to ship: as jacobi_2d_float4, with a box of ROWS x PLANES quads for each thread. Launch bounds: without
// them the compiler takes so many registers that fewer warps, and so fewer loads, are on their way.
template <int ROWS, int PLANES>
__global__ void __launch_bounds__(256, 3) jacobi_3d_float4(const float* __restrict__ in, float* __restrict__ out,
                                                           int width, int height, int depth, int pitch)
{
    const int quads = pitch / 4, lane = threadIdx.x, q = blockIdx.x * 30 + lane - 1, last = width - 1 - 4 * q;
    const int y0 = (blockIdx.y * blockDim.y + threadIdx.y) * ROWS, z0 = blockIdx.z * PLANES;
    if (y0 >= height) return;
    const long long plane = (long long)quads * height;
    const float4* column = reinterpret_cast<const float4*>(in) + min(max(q, 0), quads - 1);
    float4 box[PLANES + 2][ROWS + 2];
    #pragma unroll
    for (int k = 0; k < PLANES + 2; ++k)
        #pragma unroll
        for (int j = 0; j < ROWS + 2; ++j) {
            const int y = min(max(y0 + j - 1, 0), height - 1), z = min(max(z0 + k - 1, 0), depth - 1);
            const bool edge = (k == 0 || k == PLANES + 1) && (j == 0 || j == ROWS + 1);  // which nobody needs
            if (!edge) box[k][j] = column[z * plane + (long long)y * quads];
        }
    #pragma unroll
    for (int k = 1; k <= PLANES; ++k)
        #pragma unroll
        for (int j = 1; j <= ROWS; ++j) {
            const float4 before = box[k - 1][j], north = box[k][j - 1], here = box[k][j];
            const float4 after = box[k + 1][j], south = box[k][j + 1];
            const float left = __shfl_up_sync(0xffffffff, here.w, 1), right = __shfl_down_sync(0xffffffff, here.x, 1);
            float4 mean;
            mean.x = (1.0f / 6.0f) * (((before.x + after.x) + (north.x + south.x)) + (left + here.y));
            mean.y = (1.0f / 6.0f) * (((before.y + after.y) + (north.y + south.y)) + (here.x + here.z));
            mean.z = (1.0f / 6.0f) * (((before.z + after.z) + (north.z + south.z)) + (here.y + here.w));
            mean.w = (1.0f / 6.0f) * (((before.w + after.w) + (north.w + south.w)) + (here.z + right));
            const int y = y0 + j - 1, z = z0 + k - 1;
            if (y == 0 || y == height - 1 || z == 0 || z == depth - 1) mean = here;
            if (q == 0 || last == 0) mean.x = here.x;
            if (last == 1) mean.y = here.y;
            if (last == 2) mean.z = here.z;
            if (last == 3) mean.w = here.w;
            if (lane > 0 && lane < 31 && q < quads && y < height && z < depth)
                reinterpret_cast<float4*>(out)[z * plane + (long long)y * quads + q] = mean;
        }
}
"""
FLOAT4, FLOAT4_3D = "jacobi_2d_float4<4>", "jacobi_3d_float4<2,4>"  # with the rows, and planes, of a thread
compiled = functools.cache(lambda: gpu.compile_module(KERNEL, (FLOAT4, FLOAT4_3D)))


# %% The reference
def reference(values):
    """The mean of the 4 or 6 neighbours of each inner point in float64; the border as it is."""
    out = values.astype(np.float64)
    inner = (slice(1, -1),) * values.ndim
    if min(values.shape) > 2:
        near = (np.roll(out, shift, axis) for axis in range(values.ndim) for shift in (1, -1))
        out[inner] = (sum(near) / (2 * values.ndim))[inner]
    return out


# %% The launches
POINTS = {  # of a thread, along x, y, z; of 32 lanes with 4 each, 30 have results
    "jacobi_2d": (1, 1),
    FLOAT4: (3.75, 4),
    "jacobi_3d": (1, 1, 1),
    FLOAT4_3D: (3.75, 2, 4),
}
PITCHED = tuple(name for name in POINTS if POINTS[name][0] > 1)


def by_name(block):
    """32×8 for (32, 8)."""
    return "×".join(map(str, block))


def grid_for(shape, block, points):
    """Blocks, x first, that cover an array of this shape: rounded up in each dimension."""
    return tuple(int(-(-n // (threads * each))) for n, threads, each in zip(shape[::-1], block, points, strict=True))


def start(stream, name, block, shape, d_in, d_out, grid=None):
    """Launch a kernel for arrays of this shape, whose rows are pitched where it wants that. Only jacobi_2d_stride
    takes a grid that does not cover the array."""
    extent = [*shape[::-1], *[d_in.shape[-1]] * (name in PITCHED)]
    config = LaunchConfig(grid=grid or grid_for(shape, block, POINTS[name]), block=block)
    launch(stream, config, compiled().get_kernel(name), d_in.buffer, d_out.buffer, *map(np.int32, extent))


def padded(values, name):
    """The rows filled up to a multiple of 128 bytes where the kernel wants them pitched: no sector has parts of two."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % 32 if name in PITCHED else 0)])


def jacobi(values, block, name=None, grid=None):
    """One step for float32 values in 2 or 3 dimensions, not empty. `block` has x first, and as many extents; for the
    kernels in PITCHED 32 in x and 1 in z. Only jacobi_2d_stride takes a grid, and needs one. ValueError if not so,
    CUDAError for a block or grid the GPU refuses.
    """
    name = name or f"jacobi_{values.ndim}d"
    if values.dtype != np.float32 or values.size == 0 or not 2 <= values.ndim == len(block) <= 3:
        raise ValueError(f"expected float32 and a block of 2 or 3 extents, got {values.dtype} {values.shape}, {block}")
    if min(block) < 1 or len(POINTS.get(name, block)) != len(block):
        raise ValueError(f"{name} does not take {values.shape} in blocks of {block}")
    if name in PITCHED and (block[0] != 32 or block[2:] not in ((), (1,))):
        raise ValueError(f"{name} needs blocks of 32 threads in x, got {block}, and of one in z")
    if (grid is not None) != (name == "jacobi_2d_stride"):
        raise ValueError("jacobi_2d_stride needs a grid, and no other kernel takes one")
    if grid is not None and (values.ndim != 2 or np.ravel(grid)[0] * block[0] < values.shape[1]):
        raise ValueError(
            f"jacobi_2d_stride strides in y only: {grid} blocks of {block} do not cover {values.shape} in x"
        )
    _, stream = gpu.open_device()
    d_in = gpu.to_device(padded(values, name), stream)
    d_out = gpu.empty(d_in.shape, np.float32, stream)
    start(stream, name, block, values.shape, d_in, d_out, grid)
    return d_out.to_host(stream)[..., : values.shape[-1]]


# %% By hand
def sectors_per_request(width, block):
    """Distinct 32-byte sectors that the first warp of a block touches when each thread loads its point of a row-major
    float32 array that is `width` wide: 4 is the least for 32 threads."""
    thread = np.arange(min(32, block[0] * block[1]))
    x, y = thread % block[0], thread // block[0]
    return np.unique((y * width + x) * 4 // 32).size


def idle_threads(shape, block):
    """The share of the threads launched that have no point, if each is to take one."""
    return 1 - math.prod(shape) / math.prod(grid_for(shape, block, (1, 1)) + block)


def occupancy(name, block):
    """Threads that are resident on an SM, of those that it can hold: what the calculator says."""
    threads = math.prod(block)
    blocks = compiled().get_kernel(name).occupancy.max_active_blocks_per_multiprocessor(threads, 0)
    return blocks * threads / Device().properties.max_threads_per_multiprocessor


SHAPES = [(1 << x, 1 << y) for y in range(11) for x in range(11) if 6 <= x + y <= 10]  # 64 to 1024 threads
SHOWN = [(64, 1), (32, 2), (32, 4), *(shape for shape in SHAPES if shape[0] * shape[1] == 256)]


def show_shapes(shape):
    """What can be said without a clock of blocks of 64, 128 and 256 threads."""
    rows = []
    for b in SHOWN:
        found = f"{occupancy('jacobi_2d', b):.0%}", sectors_per_request(shape[1], b), f"{idle_threads(shape, b):.1%}"
        rows.append((by_name(b), *found))
    columns = "block", "occupancy (calculator)", "sectors per request (by hand)", "idle threads"
    table(f"jacobi_2d on {shape[1]} × {shape[0]} points", columns, rows)
    best = compiled().get_kernel("jacobi_2d").occupancy.max_potential_block_size(0, 0)
    print(f"max_potential_block_size: {best.max_block_size} threads; of their shape it says nothing\n")


# %% A grid that is too tall
TALL = 70_001  # rows; one block for each is more than the 65535 that a grid may have in y


def tall_grid():
    """(the error of a grid with too many blocks in y, the check of jacobi_2d_stride on the same array)."""
    values = random_values((TALL, 3))
    try:
        jacobi(values, (32, 1))
    except gpu.CUDAError as error:
        found = jacobi(values, (32, 1), "jacobi_2d_stride", (1, 512))
        return brief(error, 200), check("jacobi_2d_stride, a taller array", found, reference(values), **CLOSE)
    raise Mismatch(f"a grid of {TALL} blocks in y was accepted")


# %% Verify and measure
# A sum of six numbers below 1 is off by at most 9 · 2^-24: of that one sixth, and the roundings of 1/6 and the product
CLOSE = {"atol": 3 * 2.0**-24}


def random_values(shape):
    return np.random.default_rng(142).random(shape, dtype=np.float32)


def verify(n):
    """The checks of all variants on about n x n, and on a cube of as many points. Raises Mismatch if one is wrong."""
    side = round(n ** (2 / 3))
    plane, cube = random_values((n, n + 5)), random_values((side, side + 1, side + 3))
    cases = (
        ("jacobi_2d", plane, ((32, 8), (1, 256), (256, 1), (8, 32))),
        (FLOAT4, plane, ((32, 1), (32, 4))),
        ("jacobi_3d", cube, ((32, 4, 2), (8, 8, 4))),
        (FLOAT4_3D, cube, ((32, 4, 1),)),
    )
    return [
        check(f"{name}, block {by_name(block)}", jacobi(values, block, name), reference(values), **CLOSE)
        for name, values, blocks in cases
        for block in blocks
    ]


def benchmark() -> list[Row]:
    """All block shapes on a ragged 2D array, the last rung, and the 3D variants."""
    device, stream = gpu.open_device()
    yardsticks, rows = timing.yardsticks(device, stream), []
    verify(251)
    n = min(16_000, int((gpu.free_memory() / 64) ** 0.5))  # four float32 arrays in a quarter of what is free
    side = round(n ** (2 / 3))
    in_2d = {"jacobi_2d": SHAPES, FLOAT4: ((32, 1), (32, 4), (32, 8))}
    in_3d = {"jacobi_3d": ((32, 8, 1), (32, 4, 2), (8, 8, 4), (4, 4, 16)), FLOAT4_3D: ((32, 4, 1), (32, 8, 1))}
    for shape, variants in (((n - 1, n + 1), in_2d), ((side, side + 1, side - 1), in_3d)):
        values, calls = random_values(shape), {}
        for name, blocks in variants.items():
            d_in = gpu.to_device(padded(values, name), stream)
            arrays = {"shape": shape, "d_in": d_in, "d_out": gpu.empty(d_in.shape, np.float32, stream)}
            calls |= {(name, block): functools.partial(start, name=name, block=block, **arrays) for block in blocks}
        times = timing.benchmark(calls, stream)
        what = {"section": "1.4.2", "size": "x".join(map(str, shape[::-1])), "dtype": "f32", "yardsticks": yardsticks}
        for (name, block), taken in times.items():
            figures = {"occupancy %": round(100 * occupancy(name, block), 1)}
            if name == "jacobi_2d":
                figures |= {"sectors/request": sectors_per_request(shape[1], block)}
            label = f"{name}, block {by_name(block)}"
            rows.append(Row.from_timing(name=label, timing=taken, bytes=8 * values.size, figures=figures, **what))
    return rows


# %% Read the figures
def times_by_shape(rows):
    """{(threads in x, in y): row} of jacobi_2d."""
    named = ((row, row.name.partition(", block ")) for row in rows)
    return {tuple(map(int, b.split("×"))): row for row, (name, _, b) in named if name == "jacobi_2d"}


def report(rows):
    """Shapes against their speed, the calculator against the best, and the rungs above."""
    shapes = times_by_shape(rows)
    lines = []
    for b in SHOWN:
        found = shapes[b].figures
        numbers = f"{found['occupancy %']:.0f}%", f"{found['sectors/request']:.0f}", f"{shapes[b].of_copy:.1%}"
        rate = math.prod(grid_for(tuple(map(int, shapes[b].size.split("x")))[::-1], b, (1, 1))) / shapes[b].seconds
        lines.append((by_name(b), math.prod(b), *numbers, si(rate, "/s")))
    columns = "block", "threads", "occupancy", "sectors per request", "of copy", "blocks started"
    table("Does the speed follow the addresses, or the number of blocks that start in a second?", columns, lines)
    best, worst = (pick(shapes, key=lambda b: shapes[b].seconds) for pick in (min, max))
    for what, b in (("fastest", best), ("slowest", worst)):
        row = shapes[b]
        print(f"{what} shape: {by_name(b)}, {row.of_copy:.1%} of copy at {row.figures['occupancy %']:.0f}% occupancy")
    others = [row for row in rows if not row.name.startswith("jacobi_2d,")]
    table("The other kernels", ("kernel", "size", "of copy"), [(r.name, r.size, f"{r.of_copy:.1%}") for r in others])


def plot(rows, source):
    """The share of copy for each block shape, as a map."""
    shapes = times_by_shape(rows)
    figure, axes = new_figure(f"jacobi_2d: % of copy by block shape ({source})", "threads in x", "threads in y")
    share = np.full((11, 11), np.nan)
    for block, row in shapes.items():
        x, y = (extent.bit_length() - 1 for extent in block)
        share[y, x] = 100 * row.of_copy
        axes.text(x, y, f"{share[y, x]:.0f}", ha="center", va="center", color="w")
    figure.colorbar(axes.imshow(share, cmap="cividis", origin="lower"), label="% of copy")
    axes.set_xticks(range(11), [1 << k for k in range(11)])
    axes.set_yticks(range(11), [1 << k for k in range(11)])
    axes.grid(False)
    save_figure(figure, "s1_4_2_block_and_grid_layout")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=509, quick_size=61, plot=True).parse_args(argv)
    n = options.size
    header(__doc__, gpu.open_device()[0])
    check_fits(8 * n * (n + 8))
    checks = verify(n)
    error, tall = tall_grid()
    checks_table([*checks, tall])
    print(f"a grid of {TALL} blocks in y: {error}\n")
    show_shapes((n, n + 5))
    if gpu.SIMULATED:
        values = random_values((n, n + 5))
        show_counts("Counted", {f"block {x}×{y}": lambda b=(x, y): jacobi(values, b) for x, y in SHOWN})
        print("By hand is the first warp alone; counted are all: those at the ragged right edge ask for fewer sectors,")
        print("and a row that begins inside a sector costs one more.\n")
    rows, source = results.measured_or_recorded("1.4.2", benchmark, options.bench)
    if not rows:
        return 0
    report(rows)
    if options.plot:
        plot(rows, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
