# %%
"""1.1.2 核心计算单元：线程、块与网格 — Threads, blocks and grids

本节让每个线程写下自己是谁（网格中的序号、块、块内序号、线程束、束内通道），再用二维网格处理一幅边缘不整齐的图像。
Every thread writes who it is, in one, two and three dimensions; then a 2D grid turns an image gray.

要点
  块内线程先按 x、再按 y、再按 z 编号；相邻的 32 个线程组成一个线程束（warp），束内通道叫 lane。
  二维、三维只是编号方式：x 对应数组的最后一维，这样一个线程束访问连续的内存。
  图像的宽和高很少是块的整数倍，右边和下边多出来的线程要用条件拦住。
Key idea
  A thread knows its place from blockIdx, threadIdx and blockDim. Let x run along the last axis of the array, so that
  the 32 threads of a warp touch neighbouring memory, and guard every dimension.

Run:      ./run 1.1.2     or     python ch01_cuda_basics/s1_1_2_threads_blocks_grids.py [--size N] [--plot]
Look at:  the picture of the warps in a small 2D grid; the number of a thread against the index of its element;
          on a GPU, what the shape of the block does to the speed of one and the same kernel.
"""

import functools
import math

import numpy as np

from common import gpu, timing
from common.cli import check_fits, header, parser, run_main

# in your own code: from cuda.core import LaunchConfig, launch
from common.gpu import LaunchConfig, launch
from common.report import save_figure, table
from common.results import Row, measure
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
struct Who { int global, block, thread, warp, lane; };

// A block numbers its threads x first, then y, then z, and a grid its blocks in the same way. 32 neighbours in the
// numbering of the block are a warp. The lane is asked of the hardware: it is what the arithmetic says, thread % 32.
__device__ Who who_am_i()
{
    Who me;
    me.thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    me.block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    me.global = me.block * (blockDim.x * blockDim.y * blockDim.z) + me.thread;
    me.warp = me.thread / 32;
    asm("mov.u32 %0, %%laneid;" : "=r"(me.lane));
    return me;
}

extern "C" __global__ void who_1d(Who* out, int width)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x < width) out[x] = who_am_i();
}

extern "C" __global__ void who_2d(Who* out, int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[(long long)y * width + x] = who_am_i();
}

extern "C" __global__ void who_3d(Who* out, int width, int height, int depth)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    const int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x < width && y < height && z < depth) out[((long long)z * height + y) * width + x] = who_am_i();
}

// One thread for each pixel: 0.299 R + 0.587 G + 0.114 B in fixed point, where the weights 77, 150 and 29 make 256.
extern "C" __global__ void gray(const unsigned char* __restrict__ rgb, unsigned char* __restrict__ out,
                                int width, int height)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const long long i = (long long)y * width + x;
    out[i] = (77 * rgb[3 * i] + 150 * rgb[3 * i + 1] + 29 * rgb[3 * i + 2] + 128) >> 8;
}

// Four pixels from three words. Memory holds, from the lowest byte up,
//     a: R0 G0 B0 R1    b: G1 B1 R2 G2    c: B2 R3 G3 B3
// and __dp4a multiplies four bytes with four weights, of which the fourth is 0, and adds them up.
__device__ __forceinline__ unsigned gray_of_4(unsigned a, unsigned b, unsigned c)
{
    const unsigned weights = 77 | 150 << 8 | 29 << 16;
    const unsigned p0 = __dp4a(a, weights, 128u) >> 8;
    const unsigned p1 = __dp4a(__byte_perm(a, b, 0x6543), weights, 128u) >> 8;  // bytes 3 to 6 of a and b
    const unsigned p2 = __dp4a(__byte_perm(b, c, 0x5432), weights, 128u) >> 8;
    const unsigned p3 = __dp4a(c >> 8, weights, 128u) >> 8;
    return p0 | p1 << 8 | p2 << 16 | p3 << 24;
}

// The version to ship. No pixel needs another one, so the image is one long row: a grid-stride loop in which a thread
// takes 16 pixels with three loads of 16 bytes and one store of 16.
extern "C" __global__ void gray_by_16(const unsigned char* __restrict__ rgb, unsigned char* __restrict__ out,
                                      long long pixels)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    const bool aligned = ((unsigned long long)rgb | (unsigned long long)out) % 16 == 0;
    const long long groups = aligned ? pixels / 16 : 0;

    const uint4* words = reinterpret_cast<const uint4*>(rgb);
    for (long long g = first; g < groups; g += stride) {
        const uint4 a = words[3 * g], b = words[3 * g + 1], c = words[3 * g + 2];
        reinterpret_cast<uint4*>(out)[g] = {gray_of_4(a.x, a.y, a.z), gray_of_4(a.w, b.x, b.y),
                                            gray_of_4(b.z, b.w, c.x), gray_of_4(c.y, c.z, c.w)};
    }
    for (long long i = 16 * groups + first; i < pixels; i += stride)
        out[i] = (77 * rgb[3 * i] + 150 * rgb[3 * i + 1] + 29 * rgb[3 * i + 2] + 128) >> 8;
}
"""
WHO = ("thread in grid", "block", "thread in block", "warp", "lane")  # the members of Who


# %% The references
def reference_who(shape, block):
    """What the threads of `who` should write."""
    depth, height, width = (1, 1, *shape)[-3:]
    bx, by, bz = (*block, 1, 1)[:3]
    z, y, x = np.indices((depth, height, width))
    blocks_x, blocks_y = -(-width // bx), -(-height // by)
    number = (z // bz * blocks_y + y // by) * blocks_x + x // bx  # of the block
    thread = (z % bz * by + y % by) * bx + x % bx
    who = np.stack([number * (bx * by * bz) + thread, number, thread, thread // 32, thread % 32], axis=-1)
    return who.astype(np.int32).reshape(*shape, len(WHO))


def reference_gray(rgb):
    """uint8 (height, width, 3) to uint8 (height, width): luma as ITU-R BT.601 weighs it, in 8-bit fixed point."""
    red, green, blue = np.moveaxis(rgb.astype(np.int64), -1, 0)
    return ((77 * red + 150 * green + 29 * blue + 128) // 256).astype(np.uint8)


# %% The launches
compiled = functools.cache(lambda: gpu.compile_module(KERNEL))


def grid_for(extent, block):
    """Blocks that cover `extent` elements in each dimension, x first: rounded up. ValueError for other blocks."""
    if len(extent) != len(block) or min(block) < 1:
        raise ValueError(f"expected a block of {len(extent)} positive extents, got {block}")
    return tuple(-(-elements // threads) for elements, threads in zip(extent, block, strict=True))


def who(shape, block):
    """Who handles each element of an array of 1, 2 or 3 dimensions: int32, shape + (5,), last axis as in WHO.

    `block` has x first. ValueError if the two make no sense, CUDAError for a block that the GPU refuses.
    """
    if not 1 <= len(shape) == len(block) <= 3 or min(*shape, *block) < 1 or math.prod(shape) >= 2**31:
        limits = "1 to 3 positive extents, fewer than 2^31 elements, and as many extents in the block"
        raise ValueError(f"expected {limits}, got {shape} and {block}")
    _, stream = gpu.open_device()
    d_out = gpu.empty((*shape, len(WHO)), np.int32, stream)
    extent = shape[::-1]  # x runs along the last axis
    config = LaunchConfig(grid=grid_for(extent, block), block=block)
    launch(stream, config, compiled().get_kernel(f"who_{len(shape)}d"), d_out.buffer, *map(np.int32, extent))
    return d_out.to_host(stream)


def image_on_device(rgb, stream):
    """The image in device memory, and memory for one byte per pixel. ValueError unless uint8, (height, width, 3)."""
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.size == 0:
        raise ValueError(f"expected a uint8 image of shape (height, width, 3), got {rgb.dtype} {rgb.shape}")
    return gpu.to_device(rgb, stream), gpu.empty(rgb.shape[:2], np.uint8, stream)


def gray(rgb, block=(32, 8)):
    """uint8 (height, width, 3) to (height, width), one thread for each pixel. A block 32 wide has a warp in each row.

    `block` has x first. ValueError for another image, CUDAError for a block that the GPU refuses.
    """
    _, stream = gpu.open_device()
    d_rgb, d_out = image_on_device(rgb, stream)
    height, width, _ = rgb.shape
    config = LaunchConfig(grid=grid_for((width, height), block), block=block)
    kernel = compiled().get_kernel("gray")
    launch(stream, config, kernel, d_rgb.buffer, d_out.buffer, np.int32(width), np.int32(height))
    return d_out.to_host(stream)


def gray_by_16(rgb):
    """As `gray`; one thread for 16 pixels, and the image as one row."""
    _, stream = gpu.open_device()
    d_rgb, d_out = image_on_device(rgb, stream)
    config = LaunchConfig(grid=grid_for((d_out.size,), (16 * 256,)), block=256)
    launch(stream, config, compiled().get_kernel("gray_by_16"), d_rgb.buffer, d_out.buffer, np.int64(d_out.size))
    return d_out.to_host(stream)


# %% Verify and measure
def random_image(height, width):
    return np.random.default_rng(112).integers(0, 256, (height, width, 3), dtype=np.uint8)


def verify(n):
    """The checks of all variants, on arrays and an image of about n x n. Raises Mismatch if one is wrong."""
    cases = [((n * n,), (256,)), ((n, n + 5), (16, 16)), ((n // 8 + 1, 11, n), (8, 4, 4))]
    checks = [check(f"who_{len(s)}d, block {b}", who(s, b), reference_who(s, b)) for s, b in cases]
    image = random_image(n, n + 5)
    checks += [check(f"gray, block {b}", gray(image, b), reference_gray(image)) for b in ((32, 8), (8, 32))]
    return [*checks, check("gray_by_16", gray_by_16(image), reference_gray(image))]


def benchmark() -> list[Row]:
    """One kernel with blocks of four shapes, and gray_by_16, on an image of 16384 x 16384 (smaller on a small GPU)."""
    device, stream = gpu.open_device()
    yardsticks = timing.yardsticks(device, stream)
    verify(251)
    n = min(16384, math.isqrt(gpu.free_memory() // 16) // 1024 * 1024)  # 4 bytes a pixel in a quarter of what is free
    d_rgb, d_out = image_on_device(random_image(n, n), stream)
    kernel, by_16 = (compiled().get_kernel(name) for name in ("gray", "gray_by_16"))

    def shaped(block):
        config = LaunchConfig(grid=grid_for((n, n), block), block=block)
        return lambda s: launch(s, config, kernel, d_rgb.buffer, d_out.buffer, np.int32(n), np.int32(n))

    variants = {f"gray, block {x}×{y}": shaped((x, y)) for x, y in ((1, 256), (8, 32), (32, 8), (256, 1))}
    config = LaunchConfig(grid=n * n // (16 * 256), block=256)
    variants["gray_by_16"] = lambda s: launch(s, config, by_16, d_rgb.buffer, d_out.buffer, np.int64(n * n))
    times = timing.benchmark(variants, stream)
    what = {"section": "1.1.2", "size": f"{n}x{n}", "dtype": "u8", "bytes": 4 * n * n, "yardsticks": yardsticks}
    return [Row.from_timing(name=name, timing=taken, **what) for name, taken in times.items()]


# %% Show
def warps_as_text(shape, block):
    """The warp that handles each element of a 2D array, one digit each (0 to 9), with gaps between the blocks."""
    warp = who(shape, block)[..., WHO.index("warp")]
    columns, rows = range(0, shape[1], block[0]), range(0, shape[0], block[1])
    line = [" ".join("".join(map(str, row[x : x + block[0]])) for x in columns) for row in warp]
    return "\n\n".join("\n".join(line[y : y + block[1]]) for y in rows)


def plot():
    """A small array coloured by warp, and a photograph (from scikit-learn) with the blocks that cover it."""
    from matplotlib.figure import Figure
    from sklearn.datasets import load_sample_image

    figure = Figure(figsize=(12, 4), layout="constrained")
    photo = load_sample_image("china.jpg")[:, :630]
    left, middle, right = figure.subplots(1, 3)
    for axes, title, image, (x, y) in (
        (left, "21 × 40 elements by warp, blocks of 16 × 8", who((21, 40), (16, 8))[..., WHO.index("warp")], (16, 8)),
        (middle, "427 × 630 pixels, blocks of 32 × 32", photo, (32, 32)),
        (right, "after gray_by_16", gray_by_16(photo), (630, 427)),
    ):
        axes.imshow(image, cmap="gray" if title.startswith("after") else "cividis")
        axes.set(title=title, xlabel="x", ylabel="y")
        axes.set_xticks(np.arange(0, image.shape[1] + x, x) - 0.5, minor=True)
        axes.set_yticks(np.arange(0, image.shape[0] + y, y) - 0.5, minor=True)
        axes.grid(which="minor", color="#D55E00", linewidth=0.8)
    save_figure(figure, "s1_1_2_threads_blocks_grids")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=509, quick_size=125, plot=True).parse_args(argv)
    n, (device, _) = options.size, gpu.open_device()
    header(__doc__, device)
    check_fits(28 * n * (n + 8))

    print("\n10 rows of 20 elements, blocks of 8 x 8 threads: the warps\n")
    print(warps_as_text((10, 20), (8, 8)), end="\n\n")
    rows = []
    for shape, block, elements in (
        ((1000,), (256,), ((0,), (31,), (32,), (999,))),
        ((10, 20), (8, 8), ((0, 7), (0, 8), (9, 19))),
        ((3, 10, 20), (8, 4, 2), ((0, 0, 8), (2, 9, 19))),
    ):
        members = who(shape, block)
        rows += [(f"{list(e)} of {list(shape)}", "×".join(map(str, block)), *members[e]) for e in elements]
    table("Who handles what (element with its last index as x)", ("element", "block shape", *WHO), rows)
    checks_table(verify(n))
    if options.plot:
        plot()
    measure(benchmark, options.bench)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
