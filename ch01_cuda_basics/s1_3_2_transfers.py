# %%
"""1.3.2 数据传输：从主机内存到设备内存的数据拷贝 — Copying between host and device

本节测量可分页内存与锁页内存、两个方向、各种大小的拷贝，并用“固定开销 + 字节数 ÷ 带宽”拟合；再看二维拷贝与异步拷贝。
Copies of many sizes, pageable and pinned, both ways, with a model fitted to them; 2D copies; what "asynchronous" means.

要点
  锁页内存由 DMA 直接搬运，能跑满总线，也才真正异步；可分页内存要先搬到驱动自己的缓冲区，调用时主机就得等。
  一次拷贝的时间约为 t0 + n / B：小于 t0 × B 的拷贝，时间几乎都是固定开销，应当合并成大块再传。
  图像的一块矩形每行之间有间隔（pitch）：一次二维拷贝胜过逐行拷贝。异步拷贝未完成之前，主机不能改动缓冲区。
Key idea
  Pinned memory, few large copies, both directions at once. Copy nothing that can stay where it is; and do not touch
  what a copy still reads: wait for its event first.

Run:      ./run 1.3.2     or     python ch01_cuda_basics/s1_3_2_transfers.py [--size N] [--quick] [--plot]
Look at:  t0 and B of each kind of copy, and pinned against torch's; one 2D copy against a copy for each row; after what
          time a call returns. Without a GPU: what was recorded on the GPU that it names.
"""

import time
from functools import cache, partial

import numpy as np

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import Buffer, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.gpu import Buffer, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.pycuda import load as load_pycuda
from common.report import plot_curves, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernel
KERNEL = r"""
// Two sums over n words, modulo 2^64: of the words, and of each word times its number (from 1). The second tells when
// words have changed places. They say on the device what has arrived there. `words` is aligned to 16 bytes.
extern "C" __global__ void checksum(const unsigned* __restrict__ words, long long n, unsigned long long* sums)
{
    unsigned long long plain = 0, weighted = 0;
    auto add = [&](unsigned word, long long i) {
        plain += word;
        weighted += word * (unsigned long long)(i + 1);
    };
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long q = first; q < n / 4; q += stride) {
        const uint4 v = reinterpret_cast<const uint4*>(words)[q];
        add(v.x, 4 * q);
        add(v.y, 4 * q + 1);
        add(v.z, 4 * q + 2);
        add(v.w, 4 * q + 3);
    }
    if (first < n % 4) add(words[n / 4 * 4 + first], n / 4 * 4 + first);

    for (int offset = 16; offset > 0; offset /= 2) {
        plain += __shfl_down_sync(0xffffffff, plain, offset);
        weighted += __shfl_down_sync(0xffffffff, weighted, offset);
    }
    __shared__ unsigned long long of_block[2];  // so that a block, not each warp, adds to `sums`
    if (threadIdx.x < 2) of_block[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&of_block[0], plain);
        atomicAdd(&of_block[1], weighted);
    }
    __syncthreads();
    if (threadIdx.x < 2) atomicAdd(&sums[threadIdx.x], of_block[threadIdx.x]);
}
"""
BLOCK = 256
compiled = cache(lambda: gpu.compile_module(KERNEL))


# %% The reference
def reference(words):
    """The two sums of uint32 words, as uint64 modulo 2^64."""
    wide, number = words.ravel().astype(np.uint64), np.arange(1, words.size + 1, dtype=np.uint64)
    return np.array([wide.sum(), (wide * number).sum()])


# %% Host memory of both kinds, and what arrives on the device
def pageable(array):
    """The array as it is: (a Buffer over it, the array)."""
    return Buffer.from_handle(array.ctypes.data, array.nbytes, owner=array), array


def pinned(array):
    """A copy in page-locked memory: (the Buffer, a NumPy array that sees it and needs the Buffer alive)."""
    buffer = LegacyPinnedMemoryResource().allocate(array.nbytes)
    view = np.from_dlpack(buffer).view(array.dtype).reshape(array.shape)
    view[:] = array
    return buffer, view


def start_checksum(stream, d_words, sums):
    """Add the two sums of a Buffer of words to `sums`, a DeviceArray of two uint64."""
    n = d_words.size // 4
    most = 8 * stream.device.properties.multiprocessor_count  # blocks of 256 threads that can run at a time
    config = LaunchConfig(grid=min(most, -(-n // (4 * BLOCK))), block=BLOCK)
    launch(stream, config, compiled().get_kernel("checksum"), d_words, np.int64(n), sums.buffer)


def checksum(d_words, stream):
    """The two sums of a Buffer of words, computed on the device: uint64, shape (2,)."""
    sums = gpu.zeros(2, np.uint64, stream)
    start_checksum(stream, d_words, sums)
    return sums.to_host(stream)


def check_words(words):
    """ValueError unless words are contiguous uint32, at least one."""
    if words.dtype != np.uint32 or words.size == 0 or not words.flags.c_contiguous:
        raise ValueError(f"expected contiguous uint32 that are not empty, got {words.dtype} {words.shape}")


def there_and_back(words, kind=pinned):
    """Copy uint32 words to the device and back: (what came back, the checksum taken on the device).

    The copies are enqueued; the host waits once, for an event behind them. ValueError for other arrays.
    """
    check_words(words)
    device, stream = gpu.open_device()
    (source, _), (target, out) = kind(words), kind(np.zeros_like(words))
    d_words = device.allocate(words.nbytes, stream=stream)
    d_words.copy_from(source, stream=stream)
    d_words.copy_to(target, stream=stream)
    done = stream.record()
    done.sync()  # until here `source` must not be changed, and `out` not be read
    return out.copy(), checksum(d_words, stream)


# %% A rectangle of an image
NO_DRIVER = "2D copies and pitched memory: they are the driver's, which the simulator does not have"


def place(array, top=0, left=0):
    """An end of a 2D copy in a 2D host array: (address, bytes from row to row, what owns the memory)."""
    return array.ctypes.data + top * array.strides[0] + left * array.itemsize, array.strides[0], array


def on_device(buffer, pitch):
    """An end of a 2D copy in device memory, `pitch` bytes from row to row."""
    return int(buffer.handle), pitch, buffer


def copy_rows(target, source, width, height, stream):
    """Copy `height` rows of `width` bytes between two ends, with a copy for each row."""
    for y in range(height):
        to, from_ = (Buffer.from_handle(at + y * pitch, width, owner=owner) for at, pitch, owner in (target, source))
        to.copy_from(from_, stream=stream)


def copy_2d(target, source, width, height, stream):
    """As `copy_rows`, in one call: the driver's cuMemcpy2DAsync. Unavailable on the simulator, which has no driver."""
    if gpu.SIMULATED:
        raise Unavailable(NO_DRIVER)
    from cuda.bindings import driver

    kinds = {False: ("Host", driver.CUmemorytype.CU_MEMORYTYPE_HOST)}
    kinds[True] = "Device", driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    copy = driver.CUDA_MEMCPY2D()
    copy.WidthInBytes, copy.Height = width, height
    for end, (address, pitch, owner) in (("dst", target), ("src", source)):
        name, kind = kinds[isinstance(owner, Buffer)]
        setattr(copy, f"{end}MemoryType", kind)
        setattr(copy, f"{end}{name}", address)
        setattr(copy, f"{end}Pitch", pitch)
    gpu.checked(driver.cuMemcpy2DAsync(copy, int(stream.handle)))


def check_rectangle(image, top, left, shape):
    """ValueError unless the image is contiguous uint32 (height, width) and the rectangle, of `shape`, lies inside it."""
    inside = image.ndim == 2 and min(top, left) >= 0 and min(shape) > 0
    inside = inside and top + shape[0] <= image.shape[0] and left + shape[1] <= image.shape[1]
    if image.dtype != np.uint32 or not image.flags.c_contiguous or not inside:
        where = f"{shape} at ({top}, {left})"
        raise ValueError(f"expected contiguous uint32 and a rectangle inside, got {image.dtype} {image.shape}, {where}")


def rectangle(image, top, left, shape, how=copy_rows):
    """Copy a rectangle to the device and into its place in an image of zeros: (that image, the checksum on the device).

    The image is uint32 (height, width). ValueError for another, and where the rectangle, of `shape`, is not inside.
    """
    check_rectangle(image, top, left, shape)
    (device, stream), (height, width), out = gpu.open_device(), (shape[0], 4 * shape[1]), np.zeros_like(image)
    d_rectangle = device.allocate(width * height, stream=stream)
    how(on_device(d_rectangle, width), place(image, top, left), width, height, stream)
    how(place(out, top, left), on_device(d_rectangle, width), width, height, stream)
    return out, checksum(d_rectangle, stream)  # which waits


def pitched_and_back(image):
    """(the image after a round trip through pitched device memory, the pitch in bytes): there every row begins at an
    address that suits wide loads, whatever the width is (cuMemAllocPitch). Unavailable on the simulator."""
    if gpu.SIMULATED:
        raise Unavailable(NO_DRIVER)
    from cuda.bindings import driver

    (height, width), (_, stream), out = image.shape, gpu.open_device(), np.zeros_like(image)
    nbytes = width * image.itemsize
    address, pitch = gpu.checked(driver.cuMemAllocPitch(nbytes, height, 16))  # for loads of 16 bytes
    pitched = on_device(Buffer.from_handle(int(address), pitch * height), pitch)
    copy_2d(pitched, place(image), nbytes, height, stream)
    copy_2d(place(out), pitched, nbytes, height, stream)
    stream.sync()
    gpu.checked(driver.cuMemFree(address))
    return out, pitch


# %% The same through PyCUDA
def there_and_back_pycuda(words):
    """As `there_and_back`, from pinned memory; only the words. Unavailable without PyCUDA."""
    check_words(words)
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda
    cuda = load_pycuda().driver
    source, out = (cuda.pagelocked_empty(words.shape, np.uint32) for _ in range(2))
    source[:] = words
    d_words, stream = cuda.mem_alloc(words.nbytes), cuda.Stream()
    cuda.memcpy_htod_async(d_words, source, stream)
    cuda.memcpy_dtoh_async(out, d_words, stream)
    stream.synchronize()
    return out.copy()


def rectangle_pycuda(image, top, left, shape):
    """As `rectangle`, by PyCUDA's Memcpy2D; only the image. Unavailable without PyCUDA, and on the simulator."""
    check_rectangle(image, top, left, shape)
    if gpu.SIMULATED:
        raise Unavailable(NO_DRIVER)
    cuda, out, width = load_pycuda().driver, np.zeros_like(image), 4 * shape[1]
    d_rectangle, there, back = cuda.mem_alloc(width * shape[0]), cuda.Memcpy2D(), cuda.Memcpy2D()
    there.set_src_host(image)
    there.set_dst_device(d_rectangle)
    there.src_pitch, there.src_x_in_bytes, there.src_y, there.dst_pitch = image.strides[0], 4 * left, top, width
    back.set_src_device(d_rectangle)
    back.set_dst_host(out)
    back.dst_pitch, back.dst_x_in_bytes, back.dst_y, back.src_pitch = out.strides[0], 4 * left, top, width
    for copy in (there, back):
        copy.width_in_bytes, copy.height = width, shape[0]
        copy(aligned=True)
    return out


# %% Verify and measure
def random_words(*shape):
    return np.random.default_rng(132).integers(0, 2**32, shape, dtype=np.uint32)


def verify(n):
    """The checks of all copies, on n words and a rectangle. Raises Mismatch if one is wrong."""
    words, image, missing = random_words(n), random_words(50, 77), {}
    shown = np.zeros_like(image)
    shown[7:38, 9:42] = image[7:38, 9:42]  # the rectangle of 31 x 33
    sums, sums_of_part = reference(words), reference(image[7:38, 9:42])
    calls = {  # what it gives, and what is expected
        "pageable": (partial(there_and_back, words, pageable), (words, sums)),
        "pinned": (partial(there_and_back, words, pinned), (words, sums)),
        "pinned, PyCUDA": (lambda: (there_and_back_pycuda(words),), (words,)),
        "rectangle, rows": (partial(rectangle, image, 7, 9, (31, 33)), (shown, sums_of_part)),
        "rectangle, 2D": (partial(rectangle, image, 7, 9, (31, 33), copy_2d), (shown, sums_of_part)),
        "rectangle, PyCUDA": (lambda: (rectangle_pycuda(image, 7, 9, (31, 33)),), (shown,)),
        "pitched": (lambda: pitched_and_back(image)[:1], (image,)),
    }
    checks = []
    for name, (call, expected) in calls.items():
        try:
            found = zip((f"{name}: back", f"{name}: arrived"), call(), expected, strict=False)
            checks += [check(*of_one) for of_one in found]
        except Unavailable as reason:
            missing[str(reason)] = None
    print("".join(f"{line}\n" for line in missing), end="")
    return checks


LOGS = range(10, 29, 2)  # of the bytes that are copied


def benchmark() -> list[Row]:
    """Copies of 1 KiB to 256 MiB; pinned against torch; both directions at once; a rectangle; when calls return."""
    device, stream = gpu.open_device()
    row = partial(Row.from_timing, section="1.3.2", yardsticks=timing.yardsticks(device, stream))
    verify(100_003)
    largest = random_words(1 << (LOGS[-1] - 2))
    ordinary, locked = pageable(largest)[0], pinned(largest)[0]
    d_words, d_other = (device.allocate(largest.nbytes, stream=stream) for _ in range(2))

    def parts(nbytes):  # the first bytes of each
        return (Buffer.from_handle(int(b.handle), nbytes, owner=b) for b in (ordinary, locked, d_words, d_other))

    def call(target, source):
        target.copy_from(source, stream=stream)
        stream.sync()

    rows, rate = [], lambda n, t: {"GB/s": n / t.seconds / 1e9}
    for log in LOGS:
        host, page_locked, words, other = parts(1 << log)
        ways = {
            "pageable to device": (words, host),
            "device to pageable": (host, words),
            "pinned to device": (words, page_locked),
            "device to pinned": (page_locked, words),
            "device to device": (other, words),
        }
        times = timing.wall_clock({name: partial(call, *ends) for name, ends in ways.items()})
        what = {"size": f"2^{log}", "dtype": "bytes"}
        rows += [row(name=k, timing=t, figures=rate(1 << log, t), **what) for k, t in times.items()]
    check_it = partial(start_checksum, d_words=d_words, sums=gpu.zeros(2, np.uint64, stream))
    (taken,) = timing.benchmark({"": check_it}, stream).values()
    rows.append(row(name="checksum", size=f"2^{LOGS[-1]}, events", dtype="bytes", timing=taken, bytes=largest.nbytes))
    rows += against_torch(row, rate) + rectangles(row, rate, stream)
    return rows + returns(row, stream, ordinary, locked, d_words)


def against_torch(row, rate):
    """256 MiB from and to pinned memory, and both at once, by events: ours and torch's in one run."""
    import torch

    n, rows = 1 << LOGS[-1], []
    with timing.torch_stream() as stream:
        locked, other = (LegacyPinnedMemoryResource().allocate(n) for _ in range(2))
        d_words, d_other = (gpu.empty(n, np.uint8, stream).buffer for _ in range(2))
        t_locked = torch.empty(n, dtype=torch.uint8, pin_memory=True)
        t_device = torch.empty(n, dtype=torch.uint8, device="cuda")
        for memory in (np.from_dlpack(locked), np.from_dlpack(other), t_locked.numpy()):
            memory.view(np.uint8)[:] = np.arange(256, dtype=np.uint8).repeat(n // 256)  # touched before it is timed
        side = stream.device.create_stream()

        def both(s):
            side.wait(s.record())
            d_words.copy_from(locked, stream=s)
            d_other.copy_to(other, stream=side)
            s.wait(side.record())

        calls = {
            "pinned to device": lambda s: d_words.copy_from(locked, stream=s),
            "torch, pinned to device": lambda s: t_device.copy_(t_locked, non_blocking=True),
            "device to pinned": lambda s: d_words.copy_to(locked, stream=s),
            "torch, device to pinned": lambda s: t_locked.copy_(t_device, non_blocking=True),
            "both directions at once": both,
        }
        times = timing.benchmark(calls, stream)
    what = {"size": f"2^{LOGS[-1]}, events", "dtype": "bytes"}
    for name, taken in times.items():
        peer = (f"torch, {name}", times[f"torch, {name}"]) if f"torch, {name}" in times else None
        figures = rate(2 * n if name.startswith("both") else n, taken)
        rows.append(row(name=name, timing=taken, peer=peer, figures=figures, **what))
    return rows


def rectangles(row, rate, stream):
    """A rectangle of 1024 x 1024 in an image of 4096 x 4096, in pinned memory: by rows, in one, and the whole image."""
    buffer, image = pinned(random_words(4096, 4096))
    d_part, d_all = (gpu.empty(shape, np.uint32, stream).buffer for shape in ((1024, 1024), image.shape))

    def part(how):
        how(on_device(d_part, 4096), place(image, 1000, 1000), 4096, 1024, stream)
        stream.sync()

    def everything():
        d_all.copy_from(buffer, stream=stream)
        stream.sync()

    calls = {
        "rectangle, a copy for each row": partial(part, copy_rows),
        "rectangle, one 2D copy": partial(part, copy_2d),
    }
    times = timing.wall_clock(calls | {"the whole image": everything})
    first = next(iter(times.items()))
    return [
        row(name=k, size="1024x1024 of 4096x4096", dtype="u32", timing=t, peer=first, figures=rate(d_part.size, t))
        for k, t in times.items()
    ]


def returns(row, stream, ordinary, locked, d_words):
    """After what time the call of a copy to the device returns, and after what time it is done."""
    rows = []
    for name, source in (("pageable", ordinary), ("pinned", locked)):
        returned, done = [], []
        for _ in range(20):
            began = time.perf_counter()
            d_words.copy_from(source, stream=stream)
            returned.append(time.perf_counter() - began)
            stream.sync()
            done.append(time.perf_counter() - began)
        pairs = {f"{name}: the call has returned": returned, f"{name}: the copy is done": done}
        rows += [
            row(name=k, size=f"2^{LOGS[-1]}, host's clock", dtype="bytes", timing=timing.Timing.of(v[2:]))
            for k, v in pairs.items()
        ]
    return rows


# %% Read the figures
def curves(rows):
    """{kind: {bytes: seconds}} of the copies of many sizes."""
    found = {}
    for r in rows:
        if r.dtype == "bytes" and r.size.removeprefix("2^").isdigit():
            found.setdefault(r.name, {})[1 << int(r.size[2:])] = r.seconds
    return found


def fit(curve):
    """(t0, B) of t = t0 + n / B, by least squares of the relative errors."""
    n, t = np.array(list(curve)), np.array(list(curve.values()))
    t0, per_byte = np.linalg.lstsq(np.stack([1 / t, n / t], axis=1), np.ones(n.size))[0]
    return t0, 1 / per_byte


def report(rows):
    """The model of each kind of copy, and the size from which half of the bandwidth is reached."""
    lines = []
    for name, curve in curves(rows).items():
        t0, bandwidth = fit(curve)
        lines.append((name, si(t0, "s"), si(bandwidth, "B/s"), si(t0 * bandwidth, "B")))
    table("t = t0 + n / B, fitted; half of B is reached at t0 × B", ("copy", "t0", "B", "t0 × B"), lines)
    results.show([r for r in rows if r.name not in curves(rows) or not r.size.removeprefix("2^").isdigit()])
    print("Pinned copies are compared with torch's of the same run, the rectangle with a copy for each of its rows.")
    print("The call of a pageable copy returns when the host's array has been read, that of a pinned one long before:")
    print("only an event behind the copy tells when the array may be changed.")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(4 * options.size)
    checks_table(verify(options.size))
    rows, source = results.measured_or_recorded("1.3.2", benchmark, options.bench)
    if not rows:
        return 0
    report(rows)
    if options.plot:
        rates = {name: {n: n / t for n, t in curve.items()} for name, curve in curves(rows).items()}
        plot_curves(rates, f"Copies, call to return ({source})", "bytes", "bytes per second", "s1_3_2_transfers")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
