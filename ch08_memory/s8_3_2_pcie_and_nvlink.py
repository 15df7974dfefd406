# %%
"""8.3.2 PCIe与NVLink数据传输 — PCIe and NVLink

本节测量主机与 GPU 之间（PCIe）、GPU 与 GPU 之间（NVLink 或 PCIe）的带宽和延迟，并与由线数、速率和编码算出的上限对照。
Bandwidth and latency between host and GPU and between GPUs, one way and both ways, against what lanes, their rate and
their encoding allow.

要点
  链路速率 = 线数 × 每线速率 × 编码效率，每个方向各一份：两个方向用两个流可以同时跑，同一方向的两个拷贝只会平分带宽。
  点对点（P2P）访问打开之后，拷贝不经过主机，核函数也能直接读写另一块 GPU 的内存；打不开时，只能经主机内存中转。
  带宽大不等于延迟小：一次远程访问约为本地的数倍，所以要靠大量并发的访问，或者成块的拷贝，来填满链路。
Key idea
  Lanes × rate × encoding is what a link can do, in each direction. Use pinned memory and both directions; between GPUs
  enable peer access, and the same copy, or a kernel's plain loads and stores, take the direct way.

Run:      ./run 8.3.2     or     python ch08_memory/s8_3_2_pcie_and_nvlink.py [--size N] [--quick]
Look at:  the measured rate as a share of the link's; both directions against one; with two or more GPUs, the direct way
          against the way through the host, pair by pair. Without a GPU: the links' rates, and what was recorded.
"""

import contextlib
import functools

import numpy as np
from tqdm import tqdm

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, Device, DeviceMemoryResource, LaunchConfig, ...
from common.gpu import Buffer, Device, DeviceMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.report import si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ("gpu",)

# %% The kernels
KERNEL = r"""
// to = from. The addresses may be of this GPU, of a peer's memory or of pinned host memory: loads and stores find the
// way themselves. 16 bytes a thread at a time; both are aligned to 16 bytes, as every allocation is.
extern "C" __global__ void copy_words(const unsigned* __restrict__ from, unsigned* __restrict__ to, long long n)
{
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long q = first; q < n / 4; q += stride)
        reinterpret_cast<uint4*>(to)[q] = reinterpret_cast<const uint4*>(from)[q];
    const long long i = n / 4 * 4 + first;
    if (i < n) to[i] = from[i];
}

// One thread follows `steps` links of a ring, each load waiting for the one before it: what it takes is their latency.
// A link is the number of the next cell; cells lie 32 words (one line of 128 bytes) apart.
extern "C" __global__ void follow(const unsigned* __restrict__ ring, unsigned cell, int steps, unsigned* last)
{
    for (int k = 0; k < steps; ++k) cell = ring[32ll * cell];
    *last = cell;
}
"""
BLOCK, LINE = 256, 32  # threads, words


@functools.cache
def compiled(index):
    """KERNEL for the GPU of that number, which is current."""
    return gpu.compile_module(KERNEL)


# %% What the links can do, by their published figures
# PCI-SIG, PCI Express Base Specification; NVIDIA's architecture white papers (P100, V100, A100, H100, Blackwell).
# Gbit/s of a lane in each direction; the share of them that is data (8b/10b, 128b/130b, 236 of the 256 bytes of a flit;
# NVIDIA states rates of data); lanes of a link; an example and its links; and of PCIe the bytes around the data of a
# packet: framing 4, header 16, CRC 4, of which a flit has the framing and the CRC already.
LINKS = {
    "PCIe 1": (2.5, 8 / 10, 16, "×16", 1, 24),
    "PCIe 2": (5, 8 / 10, 16, "×16", 1, 24),
    "PCIe 3": (8, 128 / 130, 16, "×16", 1, 24),
    "PCIe 4": (16, 128 / 130, 16, "×16", 1, 24),
    "PCIe 5": (32, 128 / 130, 16, "×16", 1, 24),
    "PCIe 6": (64, 236 / 256, 16, "×16", 1, 16),
    "NVLink 1": (20, 1, 8, "P100", 4, 0),
    "NVLink 2": (25, 1, 8, "V100", 6, 0),
    "NVLink 3": (50, 1, 4, "A100", 12, 0),
    "NVLink 4": (100, 1, 2, "H100, H200", 18, 0),
    "NVLink 5": (200, 1, 2, "B200", 18, 0),
}
PAYLOAD = 256  # bytes of data in a packet: usual on servers
NVLINK_CODES = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # the version's first number by NVML's code for it


def require(possible, expected, got):
    if not possible:
        raise ValueError(f"expected {expected}, got {got}")


def link_rate(link, lanes):
    """Bytes per second in each direction. ValueError for a link that is not in LINKS, and without lanes."""
    require(link in LINKS and lanes > 0, f"some lanes of {', '.join(LINKS)}", f"{lanes} of {link}")
    gigabits, share = LINKS[link][:2]
    return gigabits * 1e9 * share / 8 * lanes


def show_theory():
    """The table of LINKS, with GB/s for each direction."""
    rows = []
    for link, (gigabits, share, lanes, example, links, around) in LINKS.items():
        full = link_rate(link, lanes * links) / 1e9
        packets = f"{full * PAYLOAD / (PAYLOAD + around):.1f}" if around else ""
        data = f"{share:.1%}" if share < 1 else ""
        rows.append((link, f"{gigabits:g}", data, lanes, example, links, f"{full:.1f}", packets))
    print("What links can do, GB/s in each direction: Gbit/s × share that is data (NVLink's: all) × lanes × links / 8")
    columns = "link", "Gbit/s a lane", "data", "lanes", "example", "links", "GB/s", f"in packets of {PAYLOAD} bytes"
    table("", columns, rows)


# %% What NVML says about the links of a GPU
NOT_TOLD = "not told"


def ask(question, *arguments):
    """NVML's answer, or why there is none: a GPU, a driver or a container may refuse any question."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return getattr(pynvml, f"nvmlDeviceGet{question}")(*arguments)
    except Exception as error:  # NVML's own, no pynvml, a pynvml without this question, an argument that was not told
        return f"{NOT_TOLD} ({type(error).__name__})"


def nvml_handle(index):
    return ask("HandleByPciBusId", Device(index).pci_bus_id)


def links_at_work(index):
    """What NVML says of a GPU's links while it copies, for an idle PCIe link is slower: {"PCIe", "NVLink": (in words,
    bytes per second each way or None where that is not known)}."""
    handle = nvml_handle(index)  # NVML takes its time to start: not while it copies
    with current(index) as (_, stream):
        source, target = pinned(64 << 20), gpu.empty(64 << 20, np.uint8, stream).buffer
        for _ in range(20):
            target.copy_from(source, stream=stream)
        questions = "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth"
        generation, lanes, *most = (ask(question, handle) for question in questions)
        stream.sync()
    active = [k for k in range(36) if ask("NvLinkState", handle, k) == 1]  # NVML knows no more than 36
    version = NVLINK_CODES.get(ask("NvLinkVersion", handle, active[0]), NOT_TOLD) if active else 0
    pcie, nvlink = f"PCIe {generation}", f"NVLink {version}"
    rate = link_rate(pcie, lanes) if pcie in LINKS and isinstance(lanes, int) and lanes > 0 else None
    all_links = link_rate(nvlink, LINKS[nvlink][2] * len(active)) if nvlink in LINKS else None
    words = f"{pcie} ×{lanes} while it copies, at most {most[0]} ×{most[1]}"
    return {"PCIe": (words, rate), "NVLink": (f"{nvlink}, {len(active)} links" if active else "no NVLink", all_links)}


# %% Memory, here and there
def device_count():
    return len(Device.get_all_devices())


@contextlib.contextmanager
def current(index):
    """A GPU (by its number) and a stream of it inside the `with`, where it is current; then the one before is again."""
    before = Device()
    try:
        yield gpu.open_device(index)
    finally:
        before.set_current()


def pinned(nbytes):
    """A Buffer of page-locked host memory, which every GPU can use."""
    return LegacyPinnedMemoryResource().allocate(nbytes)


def allocate(index, nbytes):
    """A Buffer of a GPU's memory pool, which all GPUs may use that can: the pool is opened to them by
    cuMemPoolSetAccess. (For what cuMemAlloc gives it is cuCtxEnablePeerAccess.)"""
    with current(index) as (device, stream):
        pool = DeviceMemoryResource(device)
        if peers := [k for k in range(device_count()) if k != index and direct(k, index)]:
            pool.peer_accessible_by.update(peers)
        buffer = pool.allocate(nbytes, stream=stream)
        stream.sync()  # the pool allocates in the order of this stream; others know nothing of it
        return buffer


def direct(a, b):
    """Whether kernels on GPU a may use the memory of GPU b."""
    return a == b or Device(a).can_access_peer(Device(b))


# %% From GPU to GPU: each function enqueues on a's stream, where GPU a is current
CHUNKS = 16


class Side:
    """One of the two: a GPU with memory to send from and to receive into, a stream, and an event for its work."""

    def __init__(self, index, nbytes):
        self.index, self.out, self.into = index, allocate(index, nbytes), allocate(index, nbytes)
        with current(index) as (device, self.stream):
            self.done = device.create_event()


def both_directions(a, b, host):
    """From a to b and from b to a at the same time, on a stream of each."""
    b.stream.wait(a.stream.record())
    b.into.copy_from(a.out, stream=a.stream)
    a.into.copy_from(b.out, stream=b.stream)
    b.stream.record(b.done)  # an event of b's own: a new one would be of the current GPU, a
    a.stream.wait(b.done)


def copy_words(a, source, target):
    """The kernel, on GPU a, from one Buffer to another, wherever they lie."""
    n = source.size // 4
    blocks = min(8 * Device(a.index).properties.multiprocessor_count, -(-n // (4 * BLOCK)))
    kernel = compiled(a.index).get_kernel("copy_words")
    launch(a.stream, LaunchConfig(grid=blocks, block=BLOCK), kernel, source, target, np.int64(n))


def through_host(a, b, host):
    """From a to b in chunks through pinned memory: while one comes down from a, the one before it goes up to b."""
    step = 16 * -(-host.size // (16 * CHUNKS))
    for first in range(0, host.size, step):
        size = min(step, host.size - first)
        memory = a.out, host, b.into
        source, chunk, target = (Buffer.from_handle(int(m.handle) + first, size, owner=m) for m in memory)
        source.copy_to(chunk, stream=a.stream)
        b.stream.wait(a.stream.record())  # this chunk has arrived
        target.copy_from(chunk, stream=b.stream)
    b.stream.record(b.done)
    a.stream.wait(b.done)  # who waits for a's stream has the last chunk too


COPY, BOTH, HOST = "peer copy", "peer copy, both directions", "through the host"
WRITES, READS = "kernel writes", "kernel reads"
# From a to b, READS from b to a. A copy is direct where peer access is on, else the driver stages it through the host;
# to a kernel the peer's memory is memory like its own.
HOWS = {
    COPY: lambda a, b, host: b.into.copy_from(a.out, stream=a.stream),
    BOTH: both_directions,
    WRITES: lambda a, b, host: copy_words(a, a.out, b.into),
    READS: lambda a, b, host: copy_words(a, b.out, a.into),
    HOST: through_host,
}


def reference(words, others, how):
    """What arrives at b and at a, where words lie at a and others at b before, and zeros where they receive."""
    return (words if how != READS else 0 * words), (others if how in (BOTH, READS) else 0 * others)


def possible(a, b):
    """Those of HOWS that GPU a can do with GPU b: all, or what needs no peer access."""
    return [how for how in HOWS if how not in (WRITES, READS) or direct(a, b)]


def as_words(words):
    """The array; ValueError unless contiguous uint32, shape (n,), not empty."""
    words = np.asarray(words)
    fits = words.dtype == np.uint32 and words.ndim == 1 and words.size and words.flags.c_contiguous
    require(fits, "a contiguous uint32 vector that is not empty", f"{words.dtype} {words.shape}")
    return words


def across(words, others, a, b, how=COPY):
    """Send uint32 words, shape (n,), from GPU a and others, as many, from GPU b, as `how` (one of HOWS) does it: what
    has arrived at b and at a, as in `reference`. ValueError for other arguments, Unavailable without peer access."""
    words, others, gpus = as_words(words), as_words(others), range(device_count())
    require(words.size == others.size, "vectors of one length", f"{words.size} and {others.size}")
    require(a in gpus and b in gpus, f"GPUs of {list(gpus)}", f"{a} and {b}")
    require(how in HOWS, f"one of {'; '.join(HOWS)}", repr(how))
    if how not in possible(a, b):
        raise Unavailable(f"{how}: GPU {a} cannot use the memory of GPU {b}")
    sides, host = (Side(a, words.nbytes), Side(b, words.nbytes)), pinned(words.nbytes)
    for one, sent in zip(sides, (words, others), strict=True):
        one.into.fill(0, stream=one.stream)
        gpu.copy_to_buffer(one.out, sent, one.stream)  # which waits for the stream
    with current(a):
        HOWS[how](*sides, host)
        sides[0].stream.sync()
    at_a, at_b = (gpu.DeviceArray(one.into, words.size, np.uint32).to_host(one.stream) for one in sides)
    return at_b, at_a


# %% The latency of one load
CELLS, STEPS, JUMP = 4096, 1024, 1021  # a ring of cells: behind cell k comes cell k + JUMP, modulo their number


def ring_in(place, cells):
    """A Buffer with a ring, a line of 32 words for each cell, of which the first counts; `place`: a GPU's number, or
    "host"."""
    ring = np.zeros((cells, LINE), np.uint32)
    ring[:, 0] = (np.arange(cells) + JUMP) % cells
    buffer = pinned(ring.nbytes) if place == "host" else allocate(place, ring.nbytes)
    with current(0 if place == "host" else place) as (_, stream):
        gpu.copy_to_buffer(buffer, ring, stream)
    return buffer


def reference_follow(cells, steps):
    """The cell after `steps` links from cell 0."""
    return np.uint32(steps * JUMP % cells)


def start_follow(stream, ring, steps, d_last):
    """One thread of the GPU of that stream follows a ring, wherever that lies."""
    kernel = compiled(stream.device.device_id).get_kernel("follow")
    launch(stream, LaunchConfig(grid=1, block=1), kernel, ring, np.uint32(0), np.int32(steps), d_last)


def last_cell(cells, steps, a, place):
    """The cell (uint32) that GPU a finds `steps` links behind cell 0 of a ring in `place`. ValueError for other
    arguments, Unavailable without peer access."""
    gpus = range(device_count())
    require(1 <= cells < 2**32 and 0 <= steps < 2**31, "some cells and no negative steps", f"{cells} and {steps}")
    require(a in gpus and (place == "host" or place in gpus), f"GPUs of {list(gpus)} or host", f"{a} and {place}")
    if place != "host" and not direct(a, place):
        raise Unavailable(f"loads from a peer: GPU {a} cannot use the memory of GPU {place}")
    ring = ring_in(place, cells)
    with current(a) as (_, stream):
        last = gpu.empty(1, np.uint32, stream)
        start_follow(stream, ring, steps, last.buffer)
        return last.to_host(stream)[0]


# %% Verify
def random_words(n, seed=832):
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)


def pairs(count):
    """(a, b) of all GPUs, row by row."""
    return [(a, b) for a in range(count) for b in range(count) if a != b]


def verify(n):
    """The checks of all copies and loads, on n words. Raises Mismatch if one is wrong."""
    words, others, checks = random_words(n), random_words(n, 833), []
    for a, b in pairs(device_count()) or [(0, 0)]:  # with one GPU, from itself to itself
        for how in possible(a, b):
            arrived, expected = across(words, others, a, b, how), reference(words, others, how)
            checks.append(check(f"GPU {a} and {b}, {how}", np.stack(arrived), np.stack(expected)))
        if not direct(a, b):
            not_run(f"kernels that use a peer's memory: GPU {a} cannot use that of GPU {b}")
    for a in range(device_count()):
        for place in ["host", *[b for b in range(device_count()) if direct(a, b)]]:
            last = last_cell(256, 100, a, place)
            checks.append(check(f"GPU {a} follows a ring in: {place}", last, reference_follow(256, 100)))
    return checks


# %% Measure
def some_memory():
    """256 MiB; less on a small GPU."""
    return min(256 << 20, gpu.free_memory() // 16 >> 20 << 20)


def rate(nbytes, taken, link):
    """The columns of a copy: GB/s, and its share of what the link can do, where that is known."""
    speed = nbytes / taken.seconds
    return {"GB/s": speed / 1e9} | ({"% of link": 100 * speed / link} if link else {})


def benchmark() -> list[Row]:
    """Host and first GPU: copies each way and both, against torch; latencies. Then all pairs of GPUs."""
    device, stream = gpu.open_device()
    row = functools.partial(Row.from_timing, section="8.3.2", yardsticks=timing.yardsticks(device, stream))
    verify(100_003)
    links = [links_at_work(index) for index in range(device_count())]
    rows = host_rows(row, links[0]["PCIe"][1]) + latency_rows(row)
    for a, b in tqdm(pairs(device_count()), desc="pairs", delay=5, leave=False):
        rows += pair_rows(row, links, a, b)
    return rows


def host_rows(row, link):
    """Between pinned and device memory, by events: ours and torch's in one run."""
    import torch

    nbytes, rows = some_memory(), []
    with timing.torch_stream() as stream:
        second, host = stream.device.create_stream(), [pinned(nbytes) for _ in range(2)]
        on_device = [gpu.empty(nbytes, np.uint8, stream).buffer for _ in range(2)]
        t_host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        t_device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")

        def at_once(s, copy):
            second.wait(s.record())
            on_device[0].copy_from(host[0], stream=s)
            copy(on_device[1], host[1], stream=second)
            s.wait(second.record())

        calls = {
            "pinned to device": lambda s: on_device[0].copy_from(host[0], stream=s),
            "torch, pinned to device": lambda s: t_device.copy_(t_host, non_blocking=True),
            "device to pinned": lambda s: on_device[0].copy_to(host[0], stream=s),
            "torch, device to pinned": lambda s: t_host.copy_(t_device, non_blocking=True),
            "both directions at once": lambda s: at_once(s, Buffer.copy_to),
            "two to the device at once": lambda s: at_once(s, Buffer.copy_from),
        }
        times = timing.benchmark(calls, stream)
    for name, taken in times.items():
        peer = ("torch", times[f"torch, {name}"]) if f"torch, {name}" in times else None
        figures = rate(2 * nbytes if "at once" in name else nbytes, taken, link)
        rows.append(row(name=name, size=f"{nbytes >> 20} MiB", dtype="bytes", timing=taken, peer=peer, figures=figures))
    return rows


def load_rows(row, rings, size, stream):
    """The time of one load: {name: a Buffer with a ring}, each followed by one thread of the stream's GPU."""
    last = gpu.empty(1, np.uint32, stream).buffer
    calls = {k: functools.partial(start_follow, ring=r, steps=STEPS, d_last=last) for k, r in rings.items()}
    times = {k: [t / STEPS for t in taken.samples] for k, taken in timing.benchmark(calls, stream).items()}
    return [row(name=f"one load: {k}", size=size, dtype="u32", timing=timing.Timing.of(t)) for k, t in times.items()]


def latency_rows(row):
    """A copy of 4 bytes, from call to end; one load from the GPU's own memory (not in L2) and from the host's."""
    with current(0) as (_, stream):
        host, d_word = pinned(4), gpu.empty(1, np.uint32, stream).buffer

        def waits(function):
            function(host, stream=stream)
            stream.sync()

        calls = {"to the device": lambda: waits(d_word.copy_from), "from the device": lambda: waits(d_word.copy_to)}
        times = timing.wall_clock(calls, samples=100)
        rows = [row(name=f"copy {k}", size="4 bytes", dtype="bytes", timing=taken) for k, taken in times.items()]
        rings = {"own memory": ring_in(0, CELLS), "pinned host memory": ring_in("host", CELLS)}
        return rows + load_rows(row, rings, "GPU 0", stream)


def pair_rows(row, links, a, b):
    """All that GPU a can do with GPU b, and the latency of a load."""
    with current(a):
        nbytes, size, rows = some_memory(), f"GPU {a} → {b}", []
        mine, theirs, host = Side(a, nbytes), Side(b, nbytes), pinned(nbytes)
        calls = {how: lambda s, how=how: HOWS[how](mine, theirs, host) for how in possible(a, b)}  # s is mine.stream
        times = timing.benchmark(calls, mine.stream, flush_l2=False)
        for how, taken in times.items():
            link = (links[a]["NVLink"][1] if direct(a, b) and how != HOST else None) or links[a]["PCIe"][1]
            figures, peer = rate(nbytes * (1 + (how == BOTH)), taken, link), (HOST, times[HOST])
            rows.append(row(name=how, size=size, dtype="bytes", timing=taken, peer=peer, figures=figures))
        if direct(a, b):
            rows += load_rows(row, {"peer's memory": ring_in(b, CELLS)}, size, mine.stream)
    return rows


# %% Read the figures
def show_matrix(title, cells):
    """A table of {(a, b): text}: a row for each a, a column for each b."""
    gpus = sorted({index for pair in cells for index in pair})
    lines = [(f"GPU {a}", *["—" if a == b else cells.get((a, b), "") for b in gpus]) for a in gpus]
    print(title)
    table("", ("", *[f"GPU {b}" for b in gpus]), lines)


def report(rows):
    """The copies between host and GPU against their link, and a matrix for each way between GPUs."""
    matrices = {}
    for row in rows:
        pair = row.size.removeprefix("GPU ").split(" → ")
        if len(pair) == 2:
            what = f"{row.name}, {'GB/s' if row.figures else 'time'}"
            cell = f"{row.figures['GB/s']:.0f}" if row.figures else si(row.seconds, "s")
            matrices.setdefault(what, {})[int(pair[0]), int(pair[1])] = cell
    print(f"""% of link: of what its lanes can do in one direction, so that both directions at once can reach 200.
The headers of PCIe's packets, with {PAYLOAD} bytes of data in each, leave {PAYLOAD / (PAYLOAD + 24):.0%} of it.""")
    results.show([row for row in rows if " → " not in row.size])
    for what, cells in matrices.items():
        show_matrix(f"{what}: by the row's GPU, with the column's", cells)
    if not matrices:
        print("pairs of GPUs: none in these figures")


LEVELS = {0: "one board", 10: "PCIe switch", 20: "PCIe switches", 30: "host bridge", 40: "CPU", 50: "CPU to CPU"}


def connection(a, b):
    """How two GPUs are connected, by NVML, and whether they have peer access, by CUDA."""
    handles = nvml_handle(a), nvml_handle(b)
    level = LEVELS.get(ask("TopologyCommonAncestor", *handles), NOT_TOLD)
    nvlink = ask("P2PStatus", *handles, 2) == 0  # NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK
    return f"{'NVLink' if nvlink else level}, {'direct' if direct(a, b) else 'through the host'}"


def show_links(count):
    """What NVML and CUDA say about the links of each GPU, and how each two are connected."""
    for index in range(count):
        print(f"GPU {index}: {Device(index).properties.async_engine_count} copy engines")
        for words, each_way in links_at_work(index).values():
            print(f"  {words}" + (f": {each_way / 1e9:.1f} GB/s in each direction" if each_way else ""))
    if count > 1:
        show_matrix("Connections", {(a, b): connection(a, b) for a, b in pairs(count)})
    else:
        not_run("peer to peer: it needs two GPUs, here is one")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    show_theory()
    if gpu.SIMULATED:
        rows = results.recorded("8.3.2")
        print(f"recorded on {results.source(rows)}, not measured here" if rows else results.NOTHING)
    else:
        check_fits(16 * options.size)
        checks_table(verify(options.size))
        show_links(device_count())
        rows, _ = results.measured_or_recorded("8.3.2", benchmark, options.bench)
    if rows:
        report(rows)
    if gpu.SIMULATED:
        raise Unavailable("what links really do: it needs a GPU (pairs of GPUs: two)")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
