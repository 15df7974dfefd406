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

Run:      ./run 8.3.2     or     python ch08_memory/s8_3_2_pcie_and_nvlink.py [--size N] [--quick] [--plot]
Look at:  the measured rate as a share of the link's; both directions against one; with two or more GPUs, the direct way
          against the way through the host, pair by pair. Without a GPU: the links' rates, and what was recorded.
"""

import contextlib
import functools
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Buffer, Device, DeviceMemoryResource, LaunchConfig, ...
from common.gpu import Buffer, Device, DeviceMemoryResource, LaunchConfig, LegacyPinnedMemoryResource, launch
from common.report import new_figure, save_figure, si, table
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
# PCI-SIG, PCI Express Base Specification: GT/s of a lane in each direction; the share of it that is data (8b/10b,
# 128b/130b, 236 of the 256 bytes of a flit); bytes around the data of a packet (framing 4, header 16, CRC 4)
PCIE = {1: (2.5, 8 / 10, 24), 2: (5, 8 / 10, 24)} | {g: (rate, 128 / 130, 24) for g, rate in ((3, 8), (4, 16), (5, 32))}
PCIE[6] = 64, 236 / 256, 16  # a flit has the framing and the CRC
PAYLOAD = 256  # bytes in a packet: usual on servers
# NVIDIA's architecture white papers (P100, V100, A100, H100, Blackwell): lanes of a link and direction, Gbit/s of a
# lane net of encoding, and an example with its links
NVLINK = {1: (8, 20, "P100", 4), 2: (8, 25, "V100", 6), 3: (4, 50, "A100", 12), 4: (2, 100, "H100, H200", 18)}
NVLINK[5] = 2, 200, "B200", 18
NVLINK_CODES = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}  # the version's first number by NVML's code for it


def pcie_rate(generation, lanes):
    """Bytes per second in each direction behind the encoding. ValueError for a generation that is not in PCIE."""
    if generation not in PCIE or lanes < 1:
        raise ValueError(f"expected a PCIe generation of {list(PCIE)} and some lanes, got {generation} and {lanes}")
    rate, encoding, _ = PCIE[generation]
    return rate * 1e9 * lanes * encoding / 8


def nvlink_rate(version, links):
    """Bytes per second in each direction. ValueError for a version (its first number) that is not in NVLINK."""
    if version not in NVLINK or links < 1:
        raise ValueError(f"expected an NVLink version of {list(NVLINK)} and some links, got {version} and {links}")
    lanes, gigabits, _, _ = NVLINK[version]
    return lanes * gigabits * 1e9 / 8 * links


def show_theory():
    """The tables of both, in GB/s for each direction."""
    rows = []
    for g, (rate, encoding, around) in PCIE.items():
        rates = [pcie_rate(g, lanes) / 1e9 for lanes in (1, 4, 8, 16)]
        cells = [f"{r:.1f}" for r in (*rates, rates[-1] * PAYLOAD / (PAYLOAD + around))]
        rows.append((f"PCIe {g}", f"{rate:g}", f"{encoding:.1%}", *cells))
    columns = "link", "GT/s a lane", "encoding", "×1", "×4", "×8", "×16", f"×16, packets of {PAYLOAD} B"
    table("PCIe, GB/s in each direction: lanes × rate × encoding / 8 (PCI-SIG, Base Specification)", columns, rows)
    rows = []
    for v, (lanes, gigabits, example, links) in NVLINK.items():
        rates = [f"{nvlink_rate(v, n) / 1e9:.0f}" for n in (1, links)]
        rows.append((f"NVLink {v}", lanes, gigabits, rates[0], example, links, rates[1]))
    columns = "link", "lanes a link", "Gbit/s a lane", "a link", "for example", "its links", "together"
    table("NVLink, GB/s in each direction: lanes × rate / 8 (NVIDIA, architecture white papers)", columns, rows)


# %% What NVML says about the links of a GPU
NOT_TOLD = "not told"


def ask(question, *arguments):
    """NVML's answer, or why there is none: a GPU, a driver or a container may refuse any question."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return getattr(pynvml, question)(*arguments)
    except Exception as error:  # NVML's own, no pynvml, a pynvml without this question, an argument that was not told
        return f"{NOT_TOLD} ({type(error).__name__})"


def nvml_handle(index):
    return ask("nvmlDeviceGetHandleByPciBusId", Device(index).pci_bus_id)


def links_now(index):
    """What NVML says of a GPU's links at this moment: PCIe's [generation, lanes] "now" and at "most", each a number or
    why there is none; NVLink's "version" and how many links are "active"; bytes per second each way of "pcie" and
    "nvlink", None where that is not known."""
    handle = nvml_handle(index)
    names = "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkGeneration", "MaxPcieLinkWidth"
    facts = [ask(f"nvmlDeviceGet{name}", handle) for name in names]
    active = [k for k in range(36) if ask("nvmlDeviceGetNvLinkState", handle, k) == 1]  # NVML knows no more than 36
    version = NVLINK_CODES.get(ask("nvmlDeviceGetNvLinkVersion", handle, active[0]), 0) if active else 0
    pcie = pcie_rate(*facts[:2]) if facts[0] in PCIE and isinstance(facts[1], int) else None
    nvlink = nvlink_rate(version, len(active)) if version in NVLINK else None
    told = {"now": facts[:2], "most": facts[2:], "version": version, "active": len(active)}
    return {**told, "pcie": pcie, "nvlink": nvlink}


def links_at_work(index):
    """`links_now` of a GPU while it copies: PCIe slows down when nothing is sent."""
    nvml_handle(index)  # NVML takes its time to start: not while it copies
    with current(index) as (_, stream):
        source, target = pinned(64 << 20), gpu.empty(64 << 20, np.uint8, stream).buffer
        for _ in range(40):
            target.copy_from(source, stream=stream)
        links = links_now(index)
        stream.sync()
    return links


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


@functools.cache
def pool(index):
    """A GPU's memory pool, open to its peers (cuMemPoolSetAccess; for what cuMemAlloc gives: cuCtxEnablePeerAccess)."""
    device = Device(index)
    peers = [k for k in range(device_count()) if k != index and Device(k).can_access_peer(device)]
    memory = DeviceMemoryResource(device)
    if peers:
        memory.peer_accessible_by.update(peers)
    return memory


def allocate(index, nbytes):
    """A Buffer on a GPU, ready for all GPUs to use."""
    with current(index) as (_, stream):
        buffer = pool(index).allocate(nbytes, stream=stream)
        stream.sync()  # the pool allocates in the order of this stream; others know nothing of it
        return buffer


# %% From GPU to GPU: each function enqueues on a's stream, where GPU a is current
CHUNKS = 16


@dataclass
class Side:
    """One of the two: a GPU with memory to send from and to receive into, a stream, and events for that stream."""

    index: int
    out: Buffer
    into: Buffer
    stream: gpu.Stream
    events: list


def side(index, nbytes):
    """A Side for nbytes."""
    with current(index) as (device, stream):
        events = [device.create_event() for _ in range(CHUNKS)]
    return Side(index, allocate(index, nbytes), allocate(index, nbytes), stream, events)


def both_directions(a, b, host):
    """From a to b and from b to a at the same time, on a stream of each."""
    a.stream.record(a.events[0])
    b.stream.wait(a.events[0])
    b.into.copy_from(a.out, stream=a.stream)
    a.into.copy_from(b.out, stream=b.stream)
    b.stream.record(b.events[0])
    a.stream.wait(b.events[0])


def copy_words(a, source, target):
    """The kernel, on GPU a, from one Buffer to another, wherever they lie."""
    n = source.size // 4
    blocks = min(8 * Device(a.index).properties.multiprocessor_count, -(-n // (4 * BLOCK)))
    kernel = compiled(a.index).get_kernel("copy_words")
    launch(a.stream, LaunchConfig(grid=blocks, block=BLOCK), kernel, source, target, np.int64(n))


def through_host(a, b, host):
    """From a to b in chunks through pinned memory: while one comes down from a, the one before it goes up to b."""
    step = 16 * -(-host.size // (16 * CHUNKS))
    for arrived, first in zip(a.events, range(0, host.size, step), strict=False):
        size = min(step, host.size - first)
        memory = a.out, host, b.into
        source, chunk, target = (Buffer.from_handle(int(m.handle) + first, size, owner=m) for m in memory)
        source.copy_to(chunk, stream=a.stream)
        a.stream.record(arrived)
        b.stream.wait(arrived)
        target.copy_from(chunk, stream=b.stream)
    b.stream.record(b.events[0])
    a.stream.wait(b.events[0])  # who waits for a's stream has the last chunk too


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


def direct(a, b):
    """Whether kernels on GPU a may use the memory of GPU b."""
    return a == b or Device(a).can_access_peer(Device(b))


def possible(a, b):
    """Those of HOWS that GPU a can do with GPU b: all, or what needs no peer access."""
    return [how for how in HOWS if how not in (WRITES, READS) or direct(a, b)]


def check_words(*arrays):
    """ValueError unless contiguous uint32 of one shape (n,), not empty."""
    for words in arrays:
        if words.dtype != np.uint32 or words.ndim != 1 or words.size == 0 or not words.flags.c_contiguous:
            raise ValueError(f"expected a contiguous uint32 vector that is not empty, got {words.dtype} {words.shape}")
        if words.size != arrays[0].size:
            raise ValueError(f"expected vectors of one length, got {arrays[0].size} and {words.size}")


def across(words, others, a, b, how=COPY):
    """Send uint32 words, shape (n,), from GPU a and others, as many, from GPU b, as `how` (one of HOWS) does it: what
    has arrived at b and at a, as in `reference`. ValueError for other arguments, Unavailable without peer access."""
    check_words(words, others)
    if how not in HOWS:
        raise ValueError(f"expected one of {', '.join(HOWS)}; got {how!r}")
    if how not in possible(a, b):
        raise Unavailable(f"{how}: GPU {a} cannot use the memory of GPU {b}")
    sides, host = (side(a, words.nbytes), side(b, words.nbytes)), pinned(words.nbytes)
    for one, sent in zip(sides, (words, others), strict=True):
        one.into.fill(0, stream=one.stream)
        gpu.copy_to_buffer(one.out, sent, one.stream)  # which waits for the stream
    with current(a):
        HOWS[how](*sides, host)
        sides[0].stream.sync()
    at_a, at_b = (gpu.DeviceArray(one.into, words.size, np.uint32).to_host(one.stream) for one in sides)
    return at_b, at_a


# %% The latency of one load
CELLS, STEPS = 4096, 1024


def ring_of(cells):
    """A ring through all cells in random order: uint32, a line of 32 words for each cell, of which the first counts."""
    order = np.random.default_rng(832).permutation(cells)
    ring = np.zeros((cells, LINE), np.uint32)
    ring[order, 0] = np.roll(order, -1)
    return ring.ravel()


def reference_follow(ring, steps):
    """The cell after `steps` links from cell 0."""
    cell = 0
    for _ in range(steps):
        cell = int(ring[LINE * cell])
    return cell


def start_follow(stream, ring, steps, d_last):
    """One thread of the GPU of that stream follows a ring, wherever that lies."""
    kernel = compiled(stream.device.device_id).get_kernel("follow")
    launch(stream, LaunchConfig(grid=1, block=1), kernel, ring, np.uint32(0), np.int32(steps), d_last)


def ring_in(place, ring):
    """A Buffer with the ring: `place` is the number of a GPU, or "host"."""
    buffer = pinned(ring.nbytes) if place == "host" else allocate(place, ring.nbytes)
    with current(0 if place == "host" else place) as (_, stream):
        gpu.copy_to_buffer(buffer, ring, stream)
    return buffer


def last_cell(ring, steps, a, place):
    """The cell (int) that GPU a finds `steps` links behind cell 0 of a ring in `place` (see `ring_in`). ValueError for
    what is no ring, Unavailable without peer access."""
    check_words(ring)
    if ring.size % LINE or ring[::LINE].max() >= ring.size // LINE or steps < 0:
        raise ValueError(f"expected cells of {LINE} words that link to each other and steps, got {ring.size}, {steps}")
    if place != "host" and not direct(a, place):
        raise Unavailable(f"loads from a peer: GPU {a} cannot use the memory of GPU {place}")
    buffer = ring_in(place, ring)
    with current(a) as (_, stream):
        last = gpu.empty(1, np.uint32, stream)
        start_follow(stream, buffer, steps, last.buffer)
        return int(last.to_host(stream)[0])


# %% Verify
def random_words(n, seed=832):
    return np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)


def pairs(count):
    """(a, b) of all GPUs, a before b, row by row."""
    return [(a, b) for a in range(count) for b in range(count) if a != b]


def verify(n):
    """The checks of all copies and loads, on n words. Raises Mismatch if one is wrong."""
    words, others, ring, checks = random_words(n), random_words(n, 833), ring_of(256), []
    for a, b in pairs(device_count()) or [(0, 0)]:  # with one GPU, from itself to itself
        for how in possible(a, b):
            arrived, expected = across(words, others, a, b, how), reference(words, others, how)
            checks.append(check(f"GPU {a} and {b}, {how}", np.stack(arrived), np.stack(expected)))
        if not direct(a, b):
            not_run(f"kernels that use a peer's memory: GPU {a} cannot use that of GPU {b}")
    for a in range(device_count()):
        places = ["host", *[b for b in range(device_count()) if direct(a, b)]]
        last = np.array([last_cell(ring, 100, a, place) for place in places])
        expected = np.full(len(places), reference_follow(ring, 100))
        checks.append(check(f"GPU {a} follows a ring in {', '.join(map(str, places))}", last, expected))
    return checks


# %% Measure
LINK = "% of link"


def rate(nbytes, taken, link):
    """The columns of a copy: GB/s, and its share of what the link can do, where that is known."""
    return {"GB/s": nbytes / taken.seconds / 1e9} | ({LINK: 100 * nbytes / taken.seconds / link} if link else {})


def benchmark() -> list[Row]:
    """Host and first GPU: copies each way and both, against torch; latencies. Then all pairs of GPUs."""
    device, stream = gpu.open_device()
    row = functools.partial(Row.from_timing, section="8.3.2", yardsticks=timing.yardsticks(device, stream))
    verify(100_003)
    links = [links_at_work(index) for index in range(device_count())]
    rows = host_rows(row, links[0]["pcie"]) + latency_rows(row)
    return rows + all_pairs(device_count(), functools.partial(pair_rows, row, links))


def host_rows(row, link):
    """256 MiB (less on a small GPU) between pinned and device memory, by events: ours and torch's in one run."""
    import torch

    n, rows = min(256 << 20, gpu.free_memory() // 16 >> 20 << 20), []
    with timing.torch_stream() as stream:
        host = [pinned(n) for _ in range(2)]
        on_device = [gpu.empty(n, np.uint8, stream).buffer for _ in range(2)]
        t_host = torch.empty(n, dtype=torch.uint8, pin_memory=True)
        t_device = torch.empty(n, dtype=torch.uint8, device="cuda")
        for memory in (*map(np.from_dlpack, host), t_host.numpy()):
            memory.view(np.uint8)[:] = np.arange(256, dtype=np.uint8).repeat(n // 256)  # touched before it is timed
        second = stream.device.create_stream()

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
        peer = (f"torch, {name}", times[f"torch, {name}"]) if f"torch, {name}" in times else None
        figures = rate(2 * n if "at once" in name else n, taken, link)
        rows.append(row(name=name, size=f"{n >> 20} MiB", dtype="bytes", timing=taken, peer=peer, figures=figures))
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
        rings = {"own memory": ring_in(0, ring_of(CELLS)), "pinned host memory": ring_in("host", ring_of(CELLS))}
        return rows + load_rows(row, rings, "GPU 0", stream)


def all_pairs(count, measure):
    """The rows that measure(a, b) gives, for all pairs of `count` GPUs in their order."""
    return [row for a, b in tqdm(pairs(count), desc="pairs", delay=5, leave=False) for row in measure(a, b)]


def pair_rows(row, links, a, b):
    """All that GPU a can do with GPU b, with 256 MiB (less where less is free), and the latency of a load."""
    with current(a):
        nbytes, size = min(256 << 20, gpu.free_memory() // 16 >> 20 << 20), f"GPU {a} → {b}"
        mine, theirs, host = side(a, nbytes), side(b, nbytes), pinned(nbytes)
        calls = {how: lambda s, how=how: HOWS[how](mine, theirs, host) for how in possible(a, b)}  # s is mine.stream
        times, rows = timing.benchmark(calls, mine.stream, flush_l2=False), []
        for how, taken in times.items():
            link = (links[a]["nvlink"] if direct(a, b) and how != HOST else None) or links[a]["pcie"]
            figures, peer = rate(nbytes * (1 + (how == BOTH)), taken, link), (HOST, times[HOST])
            rows.append(row(name=how, size=size, dtype="bytes", timing=taken, peer=peer, figures=figures))
        if direct(a, b):
            rows += load_rows(row, {"peer's memory": ring_in(b, ring_of(CELLS))}, size, mine.stream)
    return rows


# %% Read the figures
def matrices(rows):
    """{name: {(a, b): row}} of the rows that are about pairs."""
    found = {}
    for row in rows:
        a, arrow, b = row.size.removeprefix("GPU ").partition(" → ")
        if arrow and a.isdigit() and b.isdigit():
            found.setdefault(row.name, {})[int(a), int(b)] = row
    return found


def show_matrix(title, cells):
    """A table of {(a, b): text}: a row for each a, a column for each b."""
    gpus = sorted({index for pair in cells for index in pair})
    lines = [(f"GPU {a}", *["—" if a == b else cells.get((a, b), "") for b in gpus]) for a in gpus]
    print(title)
    table("", ("", *[f"GPU {b}" for b in gpus]), lines)


def value(row):
    """GB/s of a row, or its time where it has none."""
    gbps = (row.figures or {}).get("GB/s")
    return si(row.seconds, "s") if gbps is None else f"{gbps:.0f}"


def report(rows):
    """The copies between host and GPU against their link, and a matrix for each way between GPUs."""
    found = matrices(rows)
    print(f"{LINK}: of lanes × rate × encoding in one direction, so that both directions at once can reach 200.")
    results.show([row for row in rows if " → " not in row.size])
    for name, cells in found.items():
        what = "GB/s" if any("GB/s" in (row.figures or {}) for row in cells.values()) else "time of one"
        show_matrix(
            f"{name}, {what}: by the row's GPU, with the column's", {pair: value(row) for pair, row in cells.items()}
        )
    if not found:
        print("pairs of GPUs: none in these figures")


LEVELS = {0: "one board", 10: "PCIe switch", 20: "PCIe switches", 30: "host bridge", 40: "CPU", 50: "CPU to CPU"}


def connection(a, b):
    """How two GPUs are connected, by NVML, and whether they have peer access, by CUDA."""
    handles = nvml_handle(a), nvml_handle(b)
    level = LEVELS.get(ask("nvmlDeviceGetTopologyCommonAncestor", *handles), NOT_TOLD)
    nvlink = ask("nvmlDeviceGetP2PStatus", *handles, 2) == 0  # NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK
    return f"{'NVLink' if nvlink else level}, {'direct' if direct(a, b) else 'through the host'}"


def show_links(count):
    """What NVML and CUDA say about the links of each GPU, and how each two are connected."""
    lines = []
    for index in range(count):
        links, engines = links_at_work(index), Device(index).properties.async_engine_count
        now, most = (" ×".join(map(str, links[when])) for when in ("now", "most"))
        pcie, nvlink = (f"{links[kind] / 1e9:.1f}" if links[kind] else "" for kind in ("pcie", "nvlink"))
        nvlinks = f"{links['active']} of version {links['version'] or NOT_TOLD}" if links["active"] else "none"
        lines.append((index, engines, now, most, pcie, nvlinks, nvlink))
    columns = "GPU", "copy engines", "PCIe", "at most", "GB/s", "NVLinks", "GB/s"
    table("Links: PCIe generation × lanes while it copies; GB/s of all lanes in each direction", columns, lines)
    if count > 1:
        show_matrix("Connections", {(a, b): connection(a, b) for a, b in pairs(count)})
    else:
        not_run("peer to peer: it needs two GPUs, here is one")


def plot(rows, source):
    """The matrix of the peer copies; without pairs of GPUs, the copies between host and GPU as bars."""
    cells = matrices(rows).get(COPY, {})
    figure, axes = new_figure(f"{'Peer copies' if cells else 'Host and GPU'}, GB/s ({source})", "", "")
    axes.grid(visible=False)
    if cells:
        n = 1 + max(index for pair in cells for index in pair)
        rates = np.full((n, n), np.nan)
        for (a, b), row in cells.items():
            rates[a, b] = (row.figures or {}).get("GB/s", np.nan)
            axes.text(b, a, value(row), ha="center", va="center", color="white")
        axes.imshow(rates, cmap="cividis", vmin=0, vmax=1.5 * np.nanmax(rates))  # dark enough for white figures
        axes.set(xlabel="to GPU", ylabel="from GPU", xticks=range(n), yticks=range(n))
    else:
        bars = {row.name: row.figures["GB/s"] for row in rows if "GB/s" in (row.figures or {})}
        axes.barh(list(bars), list(bars.values()))
    save_figure(figure, "s8_3_2_pcie_and_nvlink")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=1_000_003, quick_size=100_003, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    show_theory()
    if gpu.SIMULATED:
        rows = results.recorded("8.3.2")
        source = results.source(rows)
        print(f"recorded on {source}, not measured here" if rows else results.NOTHING)
    else:
        check_fits(16 * options.size)
        checks_table(verify(options.size))
        show_links(device_count())
        rows, source = results.measured_or_recorded("8.3.2", benchmark, options.bench)
    if rows:
        report(rows)
        if options.plot:
            plot(rows, source)
    if gpu.SIMULATED:
        raise Unavailable("what links really do: it needs a GPU (pairs of GPUs: two)")
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
