# %%
"""8.2.2 常量内存的定义与高效使用 — Constant memory

本节量出常量内存的规矩：一个线程束读一个地址只要一次，读几个不同的地址就要排几次队；再看多项式（该用）与查表（不该用）。
The rule of constant memory, counted and measured: one address a warp costs one step, each further address another. Then
a polynomial, where that is just right, and a lookup table, where it is wrong.

要点
  常量内存 64 KiB，主机写、核函数只读，有自己的缓存：线程束读同一个数，一次广播就够；循环展开后，系数就是指令的操作数。
  线程束里有 k 个不同的地址，就要 k 步：下标因线程而异的查表，应放共享内存，或经只读缓存（__ldg）读。
  核函数的参数也在常量内存里：几百个数可以按值传（__grid_constant__ 结构体，至多 4 KiB），不必先拷贝。
Key idea
  Constant memory is for what all threads read at the same time. What decides is how many different addresses the lanes
  of a warp use, not how small the table is or how often it is read.

Run:      ./run 8.2.2     or     python ch08_memory/s8_2_2_constant_memory.py [--size N] [--quick] [--plot]
Look at:  different addresses in a warp, by NumPy, and sectors for the same reads through __ldg; on a GPU how the time
          grows with them, and which place is best for the polynomial and for the lookup table.
"""

import functools

import cuda.core
import numpy as np

from common import gpu, results, timing
from common.cli import Unavailable, check_fits, header, parser, run_main

# in your own code: from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from common.gpu import Device, LaunchConfig, Program, ProgramOptions, launch
from common.profile import show_counts
from common.pycuda import load as load_pycuda
from common.report import brief, plot_curves, table
from common.results import Row
from common.simt.counters import counting
from common.verify import Mismatch, check, checks_table

NEEDS = ()

# %% The kernels
KERNEL = r"""
constexpr int ENTRIES = 256, TERMS = 128;
__constant__ float numbers[ENTRIES];     // the host writes them before the launch; kernels only read them
__constant__ float coefficients[TERMS];
struct Numbers { float value[ENTRIES]; };  // the same by value: the parameters of a kernel lie in constant memory too
struct Coefficients { float value[TERMS]; };

// Each thread adds up `reads` numbers. The lanes of a warp use `distinct` different ones at a time (1, 2, 4, … 32),
// 8 floats apart: each in a sector of its own. `number` is a function that says where they come from.
template <typename From> __device__ void sums(float* out, long long n, int reads, int distinct, const From number)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int first = 8 * (threadIdx.x % distinct);
    float sum = 0.0f;
    for (int k = 0; k < reads; ++k) sum += number((first + k) % ENTRIES);
    out[i] = sum;
}

extern "C" __global__ void sums_constant(float* __restrict__ out, long long n, int reads, int distinct)
{
    sums(out, n, reads, distinct, [](int at) { return numbers[at]; });
}

// From global memory through the read-only cache.
extern "C" __global__ void sums_ldg(float* __restrict__ out, long long n, int reads, int distinct,
                                    const float* __restrict__ from)
{
    sums(out, n, reads, distinct, [=](int at) { return __ldg(from + at); });
}

// __grid_constant__: read it where it lies. Without it, an index known only at run time makes each thread copy it all.
extern "C" __global__ void sums_parameter(float* __restrict__ out, long long n, int reads, int distinct,
                                          const __grid_constant__ Numbers from)
{
    sums(out, n, reads, distinct, [&](int at) { return from.value[at]; });
}

// y = c[0] + c[1] x + c[2] x^2 + ..., four elements a thread, blockDim.x apart. All threads use the same coefficient at
// the same time, and as the loop is unrolled, its address is known: constant memory is then an operand of the FMA.
template <typename From> __device__ void polynomial(const float* x, float* y, long long n, const From coefficient)
{
    const long long first = (long long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
    float v[4], sum[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) {
        v[j] = first + j * blockDim.x < n ? x[first + j * blockDim.x] : 0.0f;
        sum[j] = coefficient(TERMS - 1);
    }
    #pragma unroll
    for (int k = TERMS - 2; k >= 0; --k)
        #pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] = fmaf(sum[j], v[j], coefficient(k));
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        if (first + j * blockDim.x < n) y[first + j * blockDim.x] = sum[j];
}

extern "C" __global__ void polynomial_constant(const float* __restrict__ x, float* __restrict__ y, long long n)
{
    polynomial(x, y, n, [](int k) { return coefficients[k]; });
}

extern "C" __global__ void polynomial_ldg(const float* __restrict__ x, float* __restrict__ y, long long n,
                                          const float* __restrict__ from)
{
    polynomial(x, y, n, [=](int k) { return __ldg(from + k); });
}

extern "C" __global__ void polynomial_parameter(const float* __restrict__ x, float* __restrict__ y, long long n,
                                                const __grid_constant__ Coefficients from)
{
    polynomial(x, y, n, [&](int k) { return from.value[k]; });
}

// A lookup table: y = number(x) for bytes x. Which entry a lane needs is in the data. A thread takes four times four
// bytes that lie together (x and y begin where 4 and 16 divide the address), and the last few one by one.
template <typename From>
__device__ void lookup(const unsigned char* x, float* y, long long n, const From number)
{
    const long long first = (long long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
    uchar4 v[4] = {};
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        if (first + j * blockDim.x < n / 4) v[j] = reinterpret_cast<const uchar4*>(x)[first + j * blockDim.x];
    #pragma unroll
    for (int j = 0; j < 4; ++j)
        if (first + j * blockDim.x < n / 4)
            reinterpret_cast<float4*>(y)[first + j * blockDim.x] =
                {number(v[j].x), number(v[j].y), number(v[j].z), number(v[j].w)};
    if (first < n % 4) y[n / 4 * 4 + first] = number(x[n / 4 * 4 + first]);
}

extern "C" __global__ void lookup_constant(const unsigned char* __restrict__ x, float* __restrict__ y, long long n)
{
    lookup(x, y, n, [](int at) { return numbers[at]; });
}

extern "C" __global__ void lookup_ldg(const unsigned char* __restrict__ x, float* __restrict__ y, long long n,
                                      const float* __restrict__ from)
{
    lookup(x, y, n, [=](int at) { return __ldg(from + at); });
}

// The version to ship: each block brings the table into shared memory, which serves 32 banks at a time.
extern "C" __global__ void lookup_shared(const unsigned char* __restrict__ x, float* __restrict__ y, long long n,
                                         const float* __restrict__ from)
{
    __shared__ float mine[ENTRIES];
    for (int at = threadIdx.x; at < ENTRIES; at += blockDim.x) mine[at] = from[at];
    __syncthreads();  // the table is whole
    lookup(x, y, n, [&](int at) { return mine[at]; });
}
"""
ENTRIES, TERMS, BLOCK = 256, 128, 256
DISTINCT = 1, 2, 4, 8, 16, 32
PLACES = {"sums": ("constant", "ldg", "parameter")}
PLACES |= {"polynomial": PLACES["sums"], "lookup": ("constant", "ldg", "shared")}
PER_BLOCK = {"polynomial": 4 * BLOCK, "lookup": 16 * BLOCK}  # elements


@functools.cache
def compiled():
    """KERNEL, compiled once for the current device."""
    options = ProgramOptions(std="c++17", arch=f"sm_{Device().arch}")
    return Program(KERNEL, "c++", options).compile("cubin")


# %% What the host does
def set_constant(name, values, stream):
    """Write float32 values to a __constant__ array of KERNEL: they count for all launches that follow on the stream.
    cuda.core 1.2 cannot say where the array lies; get_global asks the driver (cuLibraryGetGlobal)."""
    gpu.copy_to_buffer(gpu.get_global(compiled(), name), values, stream)


def launch_with_struct(stream, config, kernel, *arguments):
    """As launch, but an argument may be a struct: a NumPy array, whose bytes are passed by value. cuda.core 1.2 takes
    numbers and Buffers only, so this is the driver's own cuLaunchKernel, which wants the address of each argument."""
    if gpu.SIMULATED:
        structs = [a.view(f"V{a.nbytes}")[0] if isinstance(a, np.ndarray) else a for a in arguments]
        launch(stream, config, kernel, *structs)
        return
    from cuda.bindings import driver

    values = [np.asarray(np.uint64(int(a.handle)) if isinstance(a, gpu.Buffer) else a) for a in arguments]
    addresses = np.array([value.ctypes.data for value in values], np.uint64)
    function, shared = driver.CUfunction(int(kernel.handle)), config.shmem_size
    launched = (*config.grid, *config.block, shared, int(stream.handle), addresses.ctypes.data, 0)
    gpu.checked(driver.cuLaunchKernel(function, *launched))  # it has copied the arguments when it returns


def call_of(kind, place, values, d_values, config, *arguments):
    """A function that enqueues the kernel `kind`_`place` on the stream it is given; what it looks up, float32, is in
    `values` on the host, in `d_values` on the device, and in constant memory."""
    kernel = compiled().get_kernel(f"{kind}_{place}")
    if place == "parameter":
        return lambda s: launch_with_struct(s, config, kernel, *arguments, values)
    more = () if place == "constant" else (d_values.buffer,)
    return lambda s: launch(s, config, kernel, *arguments, *more)


def checked(values, count, x=None, dtype=np.float32):
    """ValueError unless `values` are float32 (count,), and `x` a vector of that dtype; both contiguous, not empty."""
    if values.dtype != np.float32 or values.shape != (count,) or not values.flags.c_contiguous:
        raise ValueError(f"expected contiguous float32 values ({count},), got {values.dtype} {values.shape}")
    if x is not None and (x.dtype != dtype or x.ndim != 1 or x.size == 0 or not x.flags.c_contiguous):
        raise ValueError(f"expected contiguous {np.dtype(dtype)} (n,), n > 0, got {x.dtype} {x.shape}")


def sums(numbers, n, reads, distinct, place="constant"):
    """float32 (n,): in each the sum of `reads` of 256 float32 numbers; a warp uses `distinct` of them at a time."""
    checked(numbers, ENTRIES)
    if n < 1 or reads < 1 or distinct not in DISTINCT:
        raise ValueError(f"expected n and reads from 1 on, distinct in {DISTINCT}; got {n}, {reads}, {distinct}")
    _, stream = gpu.open_device()
    set_constant("numbers", numbers, stream)
    d_numbers, d_out = gpu.to_device(numbers, stream), gpu.empty(n, np.float32, stream)
    arguments = d_out.buffer, np.int64(n), np.int32(reads), np.int32(distinct)
    config = LaunchConfig(grid=-(-n // BLOCK), block=BLOCK)
    call_of("sums", place, numbers, d_numbers, config, *arguments)(stream)
    return d_out.to_host(stream)


def map_of(kind, values, x, place):
    """float32 (n,): the kernel `kind`_`place`, which takes vectors x to y, on x (n,)."""
    _, stream = gpu.open_device()
    set_constant("numbers" if kind == "lookup" else "coefficients", values, stream)
    d_values, d_x, d_y = gpu.to_device(values, stream), gpu.to_device(x, stream), gpu.empty(x.size, np.float32, stream)
    config = LaunchConfig(grid=-(-x.size // PER_BLOCK[kind]), block=BLOCK)
    call_of(kind, place, values, d_values, config, d_x.buffer, d_y.buffer, np.int64(x.size))(stream)
    return d_y.to_host(stream)


def polynomial(coefficients, x, place="constant"):
    """float32 (n,): coefficients[0] + coefficients[1] x + …, 128 float32 of them, for float32 x (n,)."""
    checked(coefficients, TERMS, x)
    return map_of("polynomial", coefficients, x, place)


def lookup(numbers, x, place="shared"):
    """float32 (n,): numbers[x], 256 float32 of them, for uint8 x (n,)."""
    checked(numbers, ENTRIES, x, np.uint8)
    return map_of("lookup", numbers, x, place)


def polynomial_pycuda(coefficients, x):
    """As `polynomial`, through PyCUDA; Unavailable without it."""
    # in your own code: import pycuda.autoprimaryctx, pycuda.driver as cuda; from pycuda.compiler import SourceModule
    checked(coefficients, TERMS, x)
    pycuda, y = load_pycuda(), np.empty_like(x)
    module = pycuda.SourceModule(KERNEL, no_extern_c=True, options=["-std=c++17"])
    address, _ = module.get_global("coefficients")
    pycuda.driver.memcpy_htod(address, coefficients)
    arguments = pycuda.driver.In(x), pycuda.driver.Out(y), np.int64(x.size)
    module.get_function("polynomial_constant")(*arguments, block=(BLOCK, 1, 1), grid=(-(-x.size // (4 * BLOCK)), 1))
    return y


def show_limit():
    """What the compiler says to one float more than constant memory holds. It needs no GPU."""
    for count in (16 << 10, (16 << 10) + 1):
        source = f"__constant__ float big[{count}]; __global__ void first(float* x) {{ *x = big[threadIdx.x]; }}"
        try:
            cuda.core.Program(source, "c++", ProgramOptions(arch=f"sm_{Device().arch}")).compile("cubin")
            outcome = "compiles"
        except gpu.CUDAError as error:  # of the log the line that matters
            outcome = next((line for line in str(error).splitlines() if "constant data" in line), brief(error))
        print(f"__constant__ float[{count}], {4 * count:,} bytes: {outcome}")


# %% The references
def entries(n, reads, distinct):
    """Which entry each thread reads in each step: integers (n, reads)."""
    return (8 * (np.arange(n) % BLOCK % distinct)[:, None] + np.arange(reads)) % ENTRIES


def addresses_of_a_warp(index):
    """How many different addresses the lanes of a warp use, on average; `index`: (32 warps, …), a row for each lane."""
    lanes = np.sort(index.reshape(len(index) // 32, 32, -1), axis=1)
    return float((1 + np.count_nonzero(np.diff(lanes, axis=1), axis=1)).mean())


def reference(coefficients, x):
    """The polynomial in float64."""
    return np.polynomial.polynomial.polyval(x.astype(np.float64), coefficients.astype(np.float64))


# %% By NumPy and counted
def compare(n, reads):
    """Print, for each number of different addresses, what constant memory and __ldg need; Mismatch where what the
    simulator counts of __ldg is not what was worked out. n: a multiple of 32."""
    rows, wrong = [], []
    for distinct in DISTINCT:
        with counting() as launches:
            sums(random_numbers(), n, reads, distinct, "ldg")
        steps = addresses_of_a_warp(entries(n, reads, distinct))
        requests, sectors = (launches[0].total(f"global_load_{what}") for what in ("requests", "sectors"))
        by_hand = n // 32 * reads
        rows.append((distinct, f"{steps:g}", f"{requests:,} ({by_hand:,})", f"{sectors / requests:g} ({distinct})"))
        if (steps, requests, sectors) != (distinct, by_hand, distinct * requests):
            wrong.append(f"{distinct} addresses: {steps:g} by NumPy, {requests} requests, {sectors} sectors counted")
    headings = "addresses", "constant: steps a read, by NumPy", "__ldg: requests, counted (by hand)", "sectors each"
    table(f"{n} threads read {reads} numbers each, the lanes of a warp 1 to 32 addresses at a time", headings, rows)
    print("The counters have no constant memory: its steps are the different addresses of a warp, worked out by NumPy.")
    for name, x in images(n).items():
        print(f"lookup of {name}: a warp uses {addresses_of_a_warp(x[: x.size // 32 * 32]):.1f} addresses on average")
    if wrong:
        raise Mismatch("\n".join(wrong))


def count_maps(n):
    """Print what the polynomial and the lookup of n elements ask of global and shared memory."""
    inputs = {
        "polynomial": functools.partial(polynomial, some_coefficients(), np.zeros(n, np.float32)),
        "lookup": functools.partial(lookup, random_numbers(), images(n)["noise"]),
    }
    for kind, call in inputs.items():
        calls = {f"{kind}_{place}": functools.partial(call, place=place) for place in PLACES[kind]}
        show_counts(f"{n} elements: what is left to global and shared memory", calls)


# %% Verify and measure
def random_numbers():
    """256 multiples of 1/256 below 1: their sums are exact."""
    return (np.random.default_rng(822).permutation(ENTRIES) / ENTRIES).astype(np.float32)


def some_coefficients():
    """128 that fall off as 1/(k + 1), with random signs."""
    return (np.random.default_rng(228).choice([-1, 1], TERMS) / np.arange(1, TERMS + 1)).astype(np.float32)


def images(n):
    """Bytes to look up, as in images of n pixels: noise, and bands of 64 equal ones."""
    noise = np.random.default_rng(282).integers(0, 256, n, dtype=np.uint8)
    return {"noise": noise, "bands": (np.arange(n) // 64).astype(np.uint8)}


# 127 FMAs, each of whose results is below 6, the sum of the coefficients, and rounded by 2^-24 of it
CLOSE = {"atol": 127 * 6 * 2.0**-24}


def verify(n):
    """The checks of all kernels, on n elements. Raises Mismatch if one is wrong."""
    numbers, coefficients = random_numbers(), some_coefficients()
    x, checks = np.random.default_rng(n).uniform(-1, 1, n).astype(np.float32), []
    for place in PLACES["sums"]:
        for distinct in (1, 8, 32):
            expected = numbers[entries(n, 64, distinct)].sum(axis=1)
            checks.append(check(f"sums_{place}, {distinct}", sums(numbers, n, 64, distinct, place), expected))
    for place in PLACES["polynomial"]:
        out = polynomial(coefficients, x, place)
        checks.append(check(f"polynomial_{place}", out, reference(coefficients, x), **CLOSE))
    for place in PLACES["lookup"]:
        noise = images(n)["noise"]
        checks.append(check(f"lookup_{place}", lookup(numbers, noise, place), numbers[noise]))
    try:
        out = polynomial_pycuda(coefficients, x)
        checks.append(check("polynomial_constant, PyCUDA", out, reference(coefficients, x), **CLOSE))
    except Unavailable as missing:
        print(missing)
    return checks


def benchmark() -> list[Row]:
    """The sums for each number of addresses, a polynomial of 128 terms, and the lookup of two images."""
    device, stream = gpu.open_device()
    what = {"section": "8.2.2", "dtype": "f32", "yardsticks": timing.yardsticks(device, stream)}
    verify(10_001)
    tables, rows = {}, []
    for name, values in (("numbers", random_numbers()), ("coefficients", some_coefficients())):
        set_constant(name, values, stream)
        tables[name] = values, gpu.to_device(values, stream)

    n, reads, calls = 1 << 22, 64, {}
    d_out, config = gpu.empty(n, np.float32, stream), LaunchConfig(grid=n // BLOCK, block=BLOCK)
    for place in PLACES["sums"]:
        for distinct in DISTINCT:
            arguments = d_out.buffer, np.int64(n), np.int32(reads), np.int32(distinct)
            calls[place, distinct] = call_of("sums", place, *tables["numbers"], config, *arguments)
    times = timing.benchmark(calls, stream)
    for (place, distinct), taken in times.items():
        figures = {ADDRESSES: distinct, TIMES: taken.seconds / times[place, 1].seconds}
        timed = {"timing": taken, "figures": figures, "peer": ("sums_constant, 1", times["constant", 1])}
        rows.append(Row.from_timing(name=f"sums_{place}, {distinct}", size=f"2^22 x {reads} reads", **timed, **what))

    n = min(1 << 26, gpu.free_memory() // 64 // 4096 * 4096)
    d_y = gpu.empty(n, np.float32, stream)
    for name, x in {"numbers": np.resize(random_numbers(), n), **images(n)}.items():
        kind, which = ("lookup", "numbers") if x.dtype == np.uint8 else ("polynomial", "coefficients")
        d_x = gpu.to_device(x, stream)
        config = LaunchConfig(grid=n // PER_BLOCK[kind], block=BLOCK)
        arguments = config, d_x.buffer, d_y.buffer, np.int64(n)
        times = timing.benchmark({p: call_of(kind, p, *tables[which], *arguments) for p in PLACES[kind]}, stream)
        moved, flops = (x.itemsize + 4) * n, 2 * (TERMS - 1) * n if kind == "polynomial" else None
        for place, taken in times.items():
            timed = {"timing": taken, "bytes": moved, "flops": flops, "peer": (f"{kind}_constant", times["constant"])}
            rows.append(Row.from_timing(name=f"{kind}_{place}", size=f"{n} {name}", **timed, **what))
    return rows


ADDRESSES, TIMES = "不同地址 addresses", "× 一个地址 × 1 address"


# %% Show
def plot(rows, source):
    """The time of the sums over the number of different addresses, a curve for each place."""
    curves = {}
    for row in rows:
        if row.figures and ADDRESSES in row.figures:
            curves.setdefault(row.name.partition(",")[0], {})[row.figures[ADDRESSES]] = row.seconds * 1e6
    if not curves:
        print("plot: these results hold no times over the number of addresses")
        return
    plot_curves(curves, f"2^22 × 64 reads ({source})", "different addresses in a warp", "µs", "s8_2_2_constant_memory")


# %% Run
def main(argv=None) -> int:
    options = parser(__doc__, size=10_001, quick_size=1_001, plot=True).parse_args(argv)
    n = options.size
    header(__doc__, gpu.open_device()[0])
    check_fits(16 * n)
    checks_table(verify(n))
    if gpu.SIMULATED:
        compare(2048, 16)
        count_maps(4096)
    show_limit()
    rows, source = results.measured_or_recorded("8.2.2", benchmark, options.bench)
    if rows:
        results.show(rows, "Does the time grow with the addresses? And which place is best, for which use?")
        if options.plot:
            plot(rows, source)
    return 0


# %%
if __name__ == "__main__":
    run_main(main)
