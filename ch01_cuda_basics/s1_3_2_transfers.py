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
from cuda.bindings import runtime

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


def words_of(array):
    """The array. ValueError unless it is contiguous uint32, at least one."""
    if (array := np.asarray(array)).dtype != np.uint32 or array.size == 0 or not array.flags.c_contiguous:
        raise ValueError(f"expected contiguous uint32 that are not empty, got {array.dtype} {array.shape}")
    return array


def there_and_back(words, kind=pinned):
    """Copy uint32 words to the device and back: (what came back, the checksum taken on the device).

    The copies are enqueued; the host waits once, for an event behind them. ValueError for other arrays.
    """
    words, (device, stream) = words_of(words), gpu.open_device()
    (source, _), (target, out) = kind(words), kind(np.zeros_like(words))
    d_words = device.allocate(words.nbytes, stream=stream)
    d_words.copy_from(source, stream=stream)
    d_words.copy_to(target, stream=stream)
    done = stream.record()
    done.sync()  # until here `source` must not be changed, and `out` not be read
    return out.copy(), checksum(d_words, stream)


# %% A rectangle of an image
NO_DRIVER = "2D copies and pitched memory: they are the driver's, which the simulator does not have"


def on_host(part):
    """One side of a 2D copy, a NumPy array or a rectangle cut out of one: (a Buffer from its first byte to its last,
    bytes from row to row). In device memory it is a Buffer with its pitch."""
    (height, width), (pitch, _) = part.shape, part.strides
    return Buffer.from_handle(part.ctypes.data, (height - 1) * pitch + width * part.itemsize, owner=part), pitch


def copy_rows(target, source, width, height, stream):
    """Copy `height` rows of `width` bytes from one side to the other, with a copy for each row."""
    for y in range(height):
        to, from_ = (Buffer.from_handle(int(b.handle) + y * pitch, width, owner=b) for b, pitch in (target, source))
        to.copy_from(from_, stream=stream)


def copy_2d(target, source, width, height, stream):
    """As `copy_rows`, in one call. Unavailable on the simulator, which has no driver."""
    if gpu.SIMULATED:
        raise Unavailable(NO_DRIVER)
    (to, to_pitch), (from_, from_pitch) = target, source
    kind = runtime.cudaMemcpyKind.cudaMemcpyDefault  # the addresses tell where they lie
    ends = int(to.handle), to_pitch, int(from_.handle), from_pitch
    gpu.checked(runtime.cudaMemcpy2DAsync(*ends, width, height, kind, int(stream.handle)))


def cut(image, top, left, shape):
    """The rectangle of that shape, as a view. ValueError unless the image is contiguous uint32 (height, width) and the
    rectangle, which has to have at least one pixel, lies inside."""
    image = words_of(image)
    can_be = image.ndim == 2 and min(top, left) >= 0 and min(shape) > 0
    part = image[top : top + shape[0], left : left + shape[1]] if can_be else None
    if part is None or part.shape != tuple(shape):  # a slice ends where the image does
        raise ValueError(f"expected a rectangle inside, got {tuple(shape)} at ({top}, {left}) of {image.shape}")
    return part


def rectangle(image, top, left, shape, how=copy_rows):
    """Copy a rectangle to the device and into its place in an image of zeros: (that image, the checksum on the device).
    ValueError as `cut` says."""
    part, out, (device, stream) = cut(image, top, left, shape), np.zeros_like(image), gpu.open_device()
    d_part, width, height = device.allocate(part.nbytes, stream=stream), 4 * shape[1], shape[0]
    how((d_part, width), on_host(part), width, height, stream)
    how(on_host(cut(out, top, left, shape)), (d_part, width), width, height, stream)
    return out, checksum(d_part, stream)  # which waits


def pitched_and_back(image):
    """(the image after a round trip through pitched device memory, the pitch in bytes): there every row begins at an
    address that suits wide loads, whatever the width is. ValueError as `cut` says, Unavailable on the simulator."""
    image, (_, stream) = cut(image, 0, 0, np.shape(image)), gpu.open_device()
    if gpu.SIMULATED:
        raise Unavailable(NO_DRIVER)
    out, width, height = np.zeros_like(image), 4 * image.shape[1], image.shape[0]
    address, pitch = gpu.checked(runtime.cudaMallocPitch(width, height))
    pitched = Buffer.from_handle(int(address), pitch * height), pitch
    copy_2d(pitched, on_host(image), width, height, stream)
    copy_2d(on_host(out), pitched, width, height, stream)
    stream.sync()
    gpu.checked(runtime.cudaFree(address))
    return out, pitch


# %% The same through PyCUDA
def there_and_back_pycuda(words):
    """As `there_and_back`, from pinned memory; only the words. Unavailable without PyCUDA."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda
    words, cuda = words_of(words), load_pycuda().driver
    source, out = (cuda.pagelocked_empty(words.shape, np.uint32) for _ in range(2))
    source[:] = words
    d_words, stream = cuda.mem_alloc(words.nbytes), cuda.Stream()
    cuda.memcpy_htod_async(d_words, source, stream)
    cuda.memcpy_dtoh_async(out, d_words, stream)
    stream.synchronize()
    return out.copy()


def rectangle_pycuda(image, top, left, shape):
    """A rectangle as it arrives on the device, by PyCUDA's Memcpy2D. ValueError as `cut` says, Unavailable without
    PyCUDA, and on the simulator."""
    part = np.zeros_like(cut(image, top, left, shape), order="C")
    if gpu.SIMULATED:
        raise Unavailable(NO_DRIVER)
    cuda = load_pycuda().driver
    d_part, copy = cuda.mem_alloc(part.nbytes), cuda.Memcpy2D()
    copy.set_src_host(image)
    copy.src_pitch, copy.src_x_in_bytes, copy.src_y = 4 * image.shape[1], 4 * left, top
    copy.set_dst_device(d_part)
    copy.dst_pitch, copy.width_in_bytes, copy.height = 4 * shape[1], 4 * shape[1], shape[0]
    copy(aligned=True)
    cuda.memcpy_dtoh(part, d_part)
    return part


# %% Verify and measure
def random_words(*shape):
    return np.random.default_rng(132).integers(0, 2**32, shape, dtype=np.uint32)


def verify(n):
    """The checks of all copies, on n words and a rectangle. Raises Mismatch if one is wrong."""
    words, image, where = random_words(n), random_words(50, 77), (7, 9, (31, 33))
    part, shown = cut(image, *where), np.zeros_like(image)
    cut(shown, *where)[:] = part
    calls = {  # what gives (what came back, what arrived), or the first of the two; and what these should be
        "pageable": (partial(there_and_back, words, pageable), words, reference(words)),
        "pinned": (partial(there_and_back, words, pinned), words, reference(words)),
        "pinned, PyCUDA": (lambda: [there_and_back_pycuda(words)], words),
        "rectangle, rows": (partial(rectangle, image, *where), shown, reference(part)),
        "rectangle, 2D": (partial(rectangle, image, *where, copy_2d), shown, reference(part)),
        "rectangle, PyCUDA": (lambda: [rectangle_pycuda(image, *where)], part),
        "pitched": (partial(pitched_and_back, image), image),
    }
    checks, missing = [], []
    for name, (call, *expected) in calls.items():
        try:
            found = zip((f"{name}: back", f"{name}: arrived"), call(), expected, strict=False)
            checks += [check(*of_one) for of_one in found]
        except Unavailable as reason:
            missing.append(str(reason))
    for line in dict.fromkeys(missing):  # each once
        print(line)
    return checks


SIZES = {f"2^{log}": 1 << log for log in range(10, 29, 2)}  # bytes that are copied
LARGEST, LARGE = "2^28", 1 << 28


def as_rows(row, times, size, nbytes=None, dtype="bytes", peers=None):
    """The rows of `times`, with their rate where they copy `nbytes`; `peers` has what a name is compared with."""
    rows = []
    for name, taken in times.items():
        peer, moved = (peers or {}).get(name), 2 * nbytes if nbytes and name.startswith("both") else nbytes
        compared = {"peer": (peer, times[peer])} if peer in times else {}
        figures = {"GB/s": moved / taken.seconds / 1e9} if moved else None
        rows.append(row(name=name, size=size, dtype=dtype, timing=taken, figures=figures, **compared))
    return rows


def benchmark() -> list[Row]:
    """Copies of 1 KiB to 256 MiB; pinned against torch; both directions at once; a rectangle; when calls return."""
    device, stream = gpu.open_device()
    row, rows = partial(Row.from_timing, section="1.3.2", yardsticks=timing.yardsticks(device, stream)), []
    verify(100_003)
    data = random_words(LARGE // 4)
    ordinary, locked = pageable(data)[0], pinned(data)[0]
    d_words, d_other = (device.allocate(LARGE, stream=stream) for _ in range(2))
    for size, nbytes in SIZES.items():
        whole = (ordinary, locked, d_words, d_other)  # the first bytes of each:
        host, page_locked, words, other = (Buffer.from_handle(int(b.handle), nbytes, owner=b) for b in whole)
        ways = {
            "pageable to device": (words, host),
            "device to pageable": (host, words),
            "pinned to device": (words, page_locked),
            "device to pinned": (page_locked, words),
            "device to device": (other, words),
        }
        times = timing.wall_clock({name: partial(copy_and_wait, *ends, stream) for name, ends in ways.items()})
        rows += as_rows(row, times, size, nbytes)
    events = f"{LARGEST}, events"
    check_it = partial(start_checksum, d_words=d_words, sums=gpu.zeros(2, np.uint64, stream))
    (taken,) = timing.benchmark({"": check_it}, stream).values()
    rows.append(row(name="checksum", size=events, dtype="bytes", timing=taken, bytes=LARGE))
    times = against_torch(data)
    rows += as_rows(row, times, events, LARGE, peers={name: f"torch, {name}" for name in times})
    times = rectangles(stream)
    by_rows = dict.fromkeys(times, next(iter(times)))
    rows += as_rows(row, times, "1024x1024 of 4096x4096", 4 * 1024 * 1024, "u32", by_rows)
    times = returns(stream, {"pageable": ordinary, "pinned": locked}, d_words)
    return rows + as_rows(row, times, f"{LARGEST}, host's clock")


def copy_and_wait(target, source, stream):
    target.copy_from(source, stream=stream)
    stream.sync()


def against_torch(data):
    """The timings of copies from and to pinned memory, and both at once, by events: ours and torch's in one run."""
    import torch

    with timing.torch_stream() as stream:
        locked, other = pinned(data)[0], pinned(data)[0]
        d_words, d_other = (gpu.to_device(data, stream).buffer for _ in range(2))
        t_locked = torch.from_numpy(data.view(np.int32)).pin_memory()
        t_device = t_locked.cuda()
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
        return timing.benchmark(calls, stream)


def rectangles(stream):
    """The timings of copies of a rectangle of 1024 x 1024 in an image of 4096 x 4096, in pinned memory, to the device:
    by rows, in one, and the whole image."""
    buffer, image = pinned(random_words(4096, 4096))
    part = cut(image, 1000, 1000, (1024, 1024))
    d_part, d_image = (gpu.empty(array.shape, np.uint32, stream).buffer for array in (part, image))

    def copy(how):
        how((d_part, 4096), on_host(part), 4096, 1024, stream)
        stream.sync()

    calls = {
        "rectangle, a copy for each row": partial(copy, copy_rows),
        "rectangle, one 2D copy": partial(copy, copy_2d),
        "the whole image": partial(copy_and_wait, d_image, buffer, stream),
    }
    return timing.wall_clock(calls)


def returns(stream, sources, d_words):
    """The timings of copies to the device: after what time the call returns, and after what time the copy is done."""
    taken = {}
    for name, source in sources.items():
        returned, done = [], []
        for _ in range(22):
            began = time.perf_counter()
            d_words.copy_from(source, stream=stream)
            returned.append(time.perf_counter() - began)
            stream.sync()
            done.append(time.perf_counter() - began)
        taken |= {f"{name}: the call has returned": returned, f"{name}: the copy is done": done}
    return {name: timing.Timing.of(seconds[2:]) for name, seconds in taken.items()}


# %% Read the figures
def curves(rows):
    """{kind: {bytes: seconds}} of the copies of many sizes."""
    found = {}
    for r in rows:
        if r.size in SIZES:
            found.setdefault(r.name, {})[SIZES[r.size]] = r.seconds
    return found


def fit(curve):
    """(t0, B) of t = t0 + n / B, by least squares of the relative errors."""
    n, t = np.array(list(curve)), np.array(list(curve.values()))
    t0, per_byte = np.linalg.lstsq(np.stack([1 / t, n / t], axis=1), np.ones(n.size))[0]
    return t0, 1 / per_byte


def report(rows):
    """The model of each kind of copy, and the size from which half of the bandwidth is reached."""
    fits = {name: fit(curve) for name, curve in curves(rows).items() if len(curve) > 1}
    lines = [(name, si(t0, "s"), si(rate, "B/s"), si(t0 * rate, "B")) for name, (t0, rate) in fits.items()]
    table("t = t0 + n / B, fitted; half of B is reached at t0 × B", ("copy", "t0", "B", "t0 × B"), lines)
    results.show([r for r in rows if r.size not in SIZES])
    print("Rates are of the bytes copied: within the device, memory reads and writes them, and so moves twice as many.")
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
