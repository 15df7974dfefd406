# %%
"""1.4.1 线程并行度与调度模型 — Thread parallelism and the scheduling model

本节让每个线程块写下它在哪个 SM 上、何时运行；用三种资源限制驻留块数，并测出“波次”造成的阶梯。
Each block records where it ran; three resources limit how many are resident; and waves of blocks make a staircase.

要点
  一个线程块整个留在一个 SM 上，直到结束；SM 的线程、寄存器、共享内存与块数上限决定同时驻留多少块（占用率）。
  块数超过 SM 数 × 每 SM 驻留块数时，多出的块要等前面的结束：时间随块数呈阶梯状，最后一波不满就浪费。
  驻留多不等于快：受延迟限制时，驻留块免费；受吞吐限制时，同一 SM 上的块互相争抢运算单元。
Key idea
  A block stays on its SM until it ends, and as many blocks are resident as the scarcest resource allows. Blocks come in
  waves of (SMs × blocks per SM): one block more than fits costs a whole wave, if its work is bound by latency.

Run:      ./run 1.4.1     or     python ch01_cuda_basics/s1_4_1_scheduling_model.py [--size BLOCKS] [--quick] [--plot]
Look at:  the limits by hand beside the driver's answer and, on a GPU, beside the blocks seen at the same time; the
          jumps of the staircase beside the predicted ones. Without a GPU: what was recorded on the GPU that it names.
"""

from functools import cache, partial

import numpy as np

from common import gpu, results, timing
from common.cli import check_fits, header, not_run, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, launch
from common.gpu import Device, LaunchConfig, launch
from common.report import new_figure, save_figure, si, table
from common.results import Row
from common.verify import check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
// Where and when a block ran: its SM, the slot of its first warp there, and nanoseconds on a clock that all SMs share.
struct Record { unsigned sm, slot; unsigned long long start, stop; };

// 0 unless compiled with -DTIMED: the simulator has no clock.
__device__ __forceinline__ unsigned long long now()
{
    unsigned long long ns = 0;
#ifdef TIMED
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) :: "memory");
#endif
    return ns;
}

// `rounds` steps of s = 1664525 s + 1013904223 in each of CHAINS numbers, which begin with the thread's state and the
// numbers after it; their sum is the new state. A step needs the one before it, but the chains are independent: with
// one chain a warp mostly waits, with many it keeps the multipliers busy, and needs a register for each.
template <int CHAINS>
__device__ __forceinline__ void work(unsigned* __restrict__ state, long long n, Record* __restrict__ records,
                                     int rounds)
{
    const unsigned long long start = now();
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned first = i < n ? state[i] : 0;  // no thread returns: all have to come to the barrier
    unsigned s[CHAINS];
    #pragma unroll
    for (int k = 0; k < CHAINS; ++k) s[k] = first + k;
    #pragma unroll 1
    for (int r = 0; r < rounds; ++r)
        #pragma unroll
        for (int k = 0; k < CHAINS; ++k) s[k] = 1664525u * s[k] + 1013904223u;
    unsigned sum = 0;
    #pragma unroll
    for (int k = 0; k < CHAINS; ++k) sum += s[k];
    if (i < n) state[i] = sum;
    __syncthreads();  // so that `stop` is when the last warp has finished
    if (threadIdx.x == 0) {
        Record mine = {0, 0, start, now()};
        asm("mov.u32 %0, %%smid;" : "=r"(mine.sm));
        asm("mov.u32 %0, %%warpid;" : "=r"(mine.slot));
        records[blockIdx.x] = mine;
    }
}

extern "C" __global__ void one_chain(unsigned* __restrict__ state, long long n, Record* __restrict__ records,
                                     int rounds)
{
    work<1>(state, n, records, rounds);
}

extern "C" __global__ void many_chains(unsigned* __restrict__ state, long long n, Record* __restrict__ records,
                                       int rounds)
{
    work<64>(state, n, records, rounds);
}
"""
CHAINS = {"one_chain": 1, "many_chains": 64}
RECORD = np.dtype([("sm", "u4"), ("slot", "u4"), ("start", "u8"), ("stop", "u8")])
CASES = {  # what limits the resident blocks: kernel, threads a block, bytes of dynamic shared memory
    "blocks": ("one_chain", 32, 0),
    "threads": ("one_chain", 1024, 0),
    "registers": ("many_chains", 256, 0),
    "shared memory": ("one_chain", 128, 100 << 10),  # nobody uses it, but it is taken
}

ASKED = "simulator" if gpu.SIMULATED else "driver"  # whose occupancy calculator answers


# %% The references
def reference(state, chains, rounds):
    """What `work` leaves in state, uint32."""
    s = state[:, None] + np.arange(chains, dtype=np.uint32)
    for _ in range(rounds):
        s = np.uint32(1664525) * s + np.uint32(1013904223)
    return s.sum(axis=1, dtype=np.uint32)


def limits(properties, threads, registers, shared):
    """How many blocks an SM holds by each of its resources, as the driver allots them from compute capability 8.0 on:
    blocks of `threads` threads of `registers` registers with `shared` bytes, on a device of these properties."""
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256  # registers come in units of 256 for a warp
    of_block = -(-(shared + properties.reserved_shared_memory_per_block) // 128) * 128  # 128 bytes for a block
    return {
        "blocks": properties.max_blocks_per_multiprocessor,
        "threads": properties.max_threads_per_multiprocessor // 32 // warps,
        "registers": properties.max_registers_per_multiprocessor // 4 // of_warp * 4 // warps,  # an SM has 4 parts
        "shared memory": properties.max_shared_memory_per_multiprocessor // of_block,
    }


# %% The launches
@cache
def get_kernel(name):
    """A kernel of KERNEL, with its clock where there is one; it may take as much shared memory as a case wants."""
    (kernel,) = gpu.compile_kernels(KERNEL, name, **({} if gpu.SIMULATED else {"define_macro": "TIMED"}))
    gpu.allow_shared_memory(kernel, max(shared for _, _, shared in CASES.values()))
    return kernel


def start(stream, case, blocks, d_state, d_records, rounds):
    """Put a launch of that case into the stream."""
    name, threads, shared = CASES[case]
    config = LaunchConfig(grid=blocks, block=threads, shmem_size=shared)
    numbers = np.int64(d_state.size), d_records.buffer, np.int32(rounds)
    launch(stream, config, get_kernel(name), d_state.buffer, *numbers)


def run(case, state, rounds):
    """(new state, the records of the blocks) after `rounds` steps. ValueError unless state is uint32, shape (n,), and
    not empty."""
    if state.dtype != np.uint32 or state.ndim != 1 or state.size == 0:
        raise ValueError(f"expected uint32 of shape (n,) that is not empty, got {state.dtype} {state.shape}")
    _, stream = gpu.open_device()
    d_state, d_records = gpu.to_device(state, stream), gpu.empty(-(-state.size // CASES[case][1]), RECORD, stream)
    d_records.buffer.fill(0xFF, stream=stream)  # no SM has such a number
    start(stream, case, d_records.size, d_state, d_records, rounds)
    return d_state.to_host(stream), d_records.to_host(stream)


def resident(case):
    """(registers of a thread, `limits` by hand, the answer of the driver's calculator, or of the simulator's) for the
    blocks of a case."""
    (name, threads, shared), (device, _) = CASES[case], gpu.open_device()
    attributes, occupancy = get_kernel(name).attributes, get_kernel(name).occupancy
    by_hand = limits(device.properties, threads, attributes.num_regs, attributes.shared_size_bytes + shared)
    return attributes.num_regs, by_hand, occupancy.max_active_blocks_per_multiprocessor(threads, shared)


def most_at_once(records):
    """The most blocks of one SM that ran at the same time."""
    times, change = np.r_[records["start"], records["stop"]], np.repeat([1, -1], len(records))
    order = np.lexsort((change, times, np.tile(records["sm"], 2)))  # at one time, those that end come first
    return int(np.cumsum(change[order]).max())  # the changes on each SM add up to 0


# %% Verify and measure
def random_state(n):
    return np.random.default_rng(141).integers(0, 2**32, n, dtype=np.uint32)


def verify(blocks, rounds):
    """The checks of all cases with that many blocks. Raises Mismatch if one is wrong."""
    checks, sms = [], Device().properties.multiprocessor_count
    for case, (name, threads, _) in CASES.items():
        state = random_state(blocks * threads)
        (out, records), (_, by_hand, answer) = run(case, state, rounds), resident(case)
        checks += [
            check(f"{name}, blocks of {threads}: each ran once", out, reference(state, CHAINS[name], rounds)),
            check("the SMs that they recorded exist", records["sm"] < sms, np.full(blocks, True)),
            check(f"resident blocks, by hand and by the {ASKED}", min(by_hand.values()), answer),
        ]
    return checks


STAIRS = {"latency-bound": "shared memory", "throughput-bound": "registers"}  # a staircase: the case it is made of


def benchmark() -> list[Row]:
    """The time of more and more blocks of constant work, four steps of each staircase, and what is predicted."""
    (device, stream), sms, rows = gpu.open_device(), Device().properties.multiprocessor_count, []
    row = partial(Row.from_timing, section="1.4.1", dtype="u32", yardsticks=timing.yardsticks(device, stream))
    verify(2 * sms + 3, 100)
    for stairs, case in STAIRS.items():
        wave = sms * resident(case)[2]
        step = wave if stairs == "latency-bound" else sms  # where pipes are full, each further block of an SM costs
        counts = [k * step + extra for k in range(4) for extra in (1, step // 2, step)]
        d_state = gpu.to_device(random_state(counts[-1] * CASES[case][1]), stream)
        some = partial(start, case=case, d_state=d_state, d_records=gpu.empty(counts[-1], RECORD, stream))
        one = timing.benchmark({"": partial(some, blocks=step, rounds=1000)}, stream)[""]
        rounds = int(1000 * 200e-6 / one.seconds)  # for 200 µs a step
        times = timing.benchmark({n: partial(some, blocks=n, rounds=rounds) for n in counts}, stream)
        for n, taken in times.items():
            figures = {
                "波次 waves": -(-n // wave),
                "利用率 efficiency": n / (-(-n // wave) * wave),
                "预测级数 predicted steps": -(-n // step),
                "实测级数 measured steps": taken.seconds / times[step].seconds,
            }
            rows.append(row(name=stairs, size=f"{n} blocks", timing=taken, figures=figures))
    return rows


# %% Show
def show_placement():
    """How many blocks of each case an SM holds, by hand, when asked, and as seen; and where they went."""
    properties, rows = Device().properties, []
    sms = properties.multiprocessor_count
    for case, (name, threads, shared) in CASES.items():
        registers, by_hand, answer = resident(case)
        rounds = 2 if gpu.SIMULATED else 200_000 // CHAINS[name]
        _, records = run(case, random_state(3 * answer * sms * threads), rounds)
        seen, of_sm = "no clock" if gpu.SIMULATED else most_at_once(records), np.bincount(records["sm"], minlength=sms)
        occupancy = f"{answer * threads / properties.max_threads_per_multiprocessor:.0%}"
        got = f"{len(records)}: {of_sm.min()} to {of_sm.max()}"
        rows.append((case, threads, registers, shared, *by_hand.values(), answer, seen, occupancy, got))
    columns = ("limited by", "threads", "registers", "shared", *(f"by {limit}" for limit in CASES), ASKED, "seen")
    table("Blocks that an SM holds at a time", (*columns, "occupancy", "launched: on an SM"), rows)


def report(rows):
    """Print each staircase, and its measured jumps where the prediction has them."""
    for stairs in STAIRS:
        found = {int(row.size.split()[0]): row for row in rows if row.name == stairs}  # by blocks
        lines = [(n, si(r.seconds, "s"), *(f"{x:.3g}" for x in r.figures.values())) for n, r in found.items()]
        table(f"Blocks of constant work, {stairs}", ("blocks", "time", *rows[0].figures), lines)
        full = [n for n in found if n + 1 in found]  # blocks that just fit into a number of steps
        jumps = [f"{n} → {n + 1} blocks {found[n + 1].seconds / found[n].seconds:.2f}×" for n in full]
        expected = ", ".join(f"{(k + 1) / k:.2f}×" for k in range(1, len(full) + 1))
        print(f"{stairs}, one block more than fits: {', '.join(jumps)} (predicted {expected})")


def plot(rows, source):
    """The staircases, measured and predicted; on a GPU also when each block ran on the first SMs."""
    figure, axes = new_figure(f"Waves of blocks ({source})", "blocks", "time / time of one step")
    for stairs in STAIRS:
        points = [(int(row.size.split()[0]), *row.figures.values()) for row in rows if row.name == stairs]
        blocks, _, _, predicted, measured = zip(*points, strict=True)
        (line,) = axes.plot(blocks, measured, linestyle="", label=f"{stairs}, measured")
        axes.step(blocks, predicted, where="pre", color=line.get_color(), marker="", alpha=0.5, label="predicted")
    axes.legend()
    save_figure(figure, "s1_4_1_scheduling_model")
    if not gpu.SIMULATED:
        (_, threads, _), per_sm = CASES["shared memory"], resident("shared memory")[2]
        blocks = 5 * per_sm * Device().properties.multiprocessor_count // 2
        _, records = run("shared memory", random_state(blocks * threads), 20_000)
        records = records[records["sm"] < 12]
        begin, end = ((records[when] - records["start"].min()) / 1e3 for when in ("start", "stop"))
        figure, axes = new_figure(f"When blocks ran: {blocks} on the whole GPU", "µs", "SM")
        place = records["sm"] + 0.9 * (records["slot"] // (threads // 32)) / per_sm  # slots are those of warps
        axes.barh(place, end - begin, 0.8 / per_sm, left=begin, align="edge", edgecolor="black")
        save_figure(figure, "s1_4_1_timeline")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=100, quick_size=35, plot=True).parse_args(argv)
    header(__doc__, gpu.open_device()[0])
    check_fits(4100 * options.size)
    checks_table(verify(options.size, rounds=20))
    show_placement()
    if gpu.SIMULATED:
        not_run("when each block ran: the simulator has no clock")
    rows, source = results.measured_or_recorded("1.4.1", benchmark, options.bench)
    if not rows:
        return 0
    report(rows)
    if options.plot:
        plot(rows, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
