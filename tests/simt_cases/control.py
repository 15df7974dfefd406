"""Control flow: calls, switches, divergent loops, printf."""

from __future__ import annotations

import numpy as np

from .harness import Arrays, Case, Runner, blocks_for


def inputs_ints(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(0, 10_000, size).astype(np.int32)}


# ------------------------------------------------------------------------------------- calls and switches
CALLS = r"""
__device__ __noinline__ int gcd(int a, int b)
{
    while (b != 0) {
        int t = a % b;
        a = b;
        b = t;
    }
    return a;
}

__device__ __noinline__ unsigned long long mix(unsigned long long h, int v)
{
    h ^= (unsigned)v;
    return h * 0x100000001B3ull;
}

__device__ __noinline__ bool is_prime(int v)
{
    if (v < 2) return false;
    for (int d = 2; d * d <= v; ++d)
        if (v % d == 0) return false;
    return true;
}

// Called from inside a divergent branch, and calls others in its turn.
__device__ __noinline__ double work(int v, float scale)
{
    if (v % 3 == 0) return gcd(v, 360) * (double)scale;
    return is_prime(v) ? -1.0 : (double)(mix(v, 17) >> 40);
}

__global__ void calls(const int* __restrict__ x, double* __restrict__ out, unsigned long long* __restrict__ hash, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = 0;
    if (x[i] & 1) v = work(x[i], 2.0f);
    else v = work(x[i] + 1, 0.5f) + work(x[i] / 2, 1.0f);
    out[i] = v;
    unsigned long long h = 0xCBF29CE484222325ull;
    for (int k = 0; k < 4; ++k) h = mix(h, x[i] >> k);
    hash[i] = h;
}

// Many cases with little in common: one falls through, one returns.
__global__ void interpreter(const int* __restrict__ x, int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int acc = i, word = x[i];
    for (int step = 0; step < 4; ++step, word /= 13) {
        switch (word % 13) {
        case 0: acc += 5; break;
        case 1: acc = acc * 3 - 1; break;
        case 2: acc ^= 0x55; break;
        case 3: acc = __popc(acc); break;
        case 4: for (int k = 0; k < step; ++k) acc += k * acc; break;
        case 5: acc = -acc;                    // falls through
        case 6: acc += 100; break;
        case 7: if (acc & 1) acc >>= 1; else acc <<= 1; break;
        case 8: acc = min(acc, 77); break;
        case 9: acc = abs(acc % 1000); break;
        case 10: out[i] = acc; return;
        case 11: acc = (acc >> 4) | (acc << 3); break;
        default: acc -= 9;
        }
    }
    out[i] = acc ^ 1;
}
"""


def inputs_calls(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.integers(0, 13**4, size).astype(np.int32)}


def launch_calls(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, grid, n = gpu.to_device(x), blocks_for(size, 64), np.int32(size)
    out, hashed, result = gpu.empty(size, np.float64), gpu.empty(size, np.uint64), gpu.empty(size, np.int32)
    gpu.launch("calls", grid, 64, dx, out, hashed, n)
    gpu.launch("interpreter", grid, 64, dx, result, n)
    return {"out": gpu.to_host(out), "hash": gpu.to_host(hashed), "interpreter": gpu.to_host(result)}


def mix(h: int, v: int) -> int:
    return (h ^ v) * 0x100000001B3 % 2**64


def work(v: int, scale: float) -> float:
    from math import gcd, isqrt

    if v % 3 == 0:
        return gcd(v, 360) * scale
    prime = v >= 2 and all(v % d for d in range(2, isqrt(v) + 1))
    return -1.0 if prime else float(mix(v, 17) >> 40)


def wrap(v: int) -> int:
    return (v + 2**31) % 2**32 - 2**31


def interpret(acc: int, word: int) -> int:
    for step in range(4):
        op = word % 13
        word //= 13
        if op == 0:
            acc += 5
        elif op == 1:
            acc = acc * 3 - 1
        elif op == 2:
            acc ^= 0x55
        elif op == 3:
            acc = (acc % 2**32).bit_count()
        elif op == 4:
            for k in range(step):
                acc = wrap(acc + k * acc)
        elif op == 5:
            acc = -acc + 100
        elif op == 6:
            acc += 100
        elif op == 7:
            acc = acc >> 1 if acc & 1 else acc << 1
        elif op == 8:
            acc = min(acc, 77)
        elif op == 9:
            acc = abs(acc) % 1000
        elif op == 10:
            return acc
        elif op == 11:
            acc = (acc >> 4) | wrap(acc << 3)
        else:
            acc -= 9
        acc = wrap(acc)
    return acc ^ 1


def reference_calls(size: int, x: np.ndarray) -> Arrays:
    values = [int(v) for v in x]
    out = [work(v, 2.0) if v & 1 else work(v + 1, 0.5) + work(v // 2, 1.0) for v in values]
    hashes = []
    for v in values:
        h = 0xCBF29CE484222325
        for k in range(4):
            h = mix(h, v >> k)
        hashes.append(h)
    return {
        "out": np.array(out, np.float64),
        "hash": np.array(hashes, np.uint64),
        "interpreter": np.array([interpret(i, v) for i, v in enumerate(values)], np.int32),
    }


# --------------------------------------------------------------------------------------------- divergence
DIVERGE = r"""
// Loops within loops whose lengths depend on the thread, left by break, continue and goto.
__global__ void nested_loops(const int* __restrict__ x, int* __restrict__ out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i], sum = 0;
    for (int a = 0; a < v % 7 + 1; ++a) {
        if (a == 3 && (v & 1)) continue;
        int b = a;
        while (true) {
            b += 2;
            if (b > v % 11) break;
            if (b % 5 == 0) continue;
            do {
                sum += a * b;
                if (sum > 900) goto full;
            } while (sum % 3 == 1 && ++sum);
        }
        sum += 1;
    }
full:
    if (v % 2 == 0 && (v % 3 == 0 || (sum & 1))) sum = -sum;
    out[i] = sum + (v > 5000 ? (v > 7500 ? 2 : 1) : 0);
}

__global__ void collatz(const int* __restrict__ x, int* __restrict__ steps, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long v = x[i] + 1;
    int count = 0;
    for (; v != 1; ++count) v = v % 2 ? 3 * v + 1 : v / 2;
    steps[i] = count;
}
"""


def launch_diverge(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, grid, n = gpu.to_device(x), blocks_for(size, 96), np.int32(size)
    out, steps = gpu.empty(size, np.int32), gpu.empty(size, np.int32)
    gpu.launch("nested_loops", grid, 96, dx, out, n)
    gpu.launch("collatz", grid, 96, dx, steps, n)
    return {"out": gpu.to_host(out), "steps": gpu.to_host(steps)}


def nested(v: int) -> int:
    def loops() -> int:
        total = 0
        for a in range(v % 7 + 1):
            if a == 3 and v & 1:
                continue
            b = a
            while True:
                b += 2
                if b > v % 11:
                    break
                if b % 5 == 0:
                    continue
                while True:
                    total += a * b
                    if total > 900:
                        return total
                    if total % 3 != 1:
                        break
                    total += 1
            total += 1
        return total

    total = loops()
    if v % 2 == 0 and (v % 3 == 0 or total & 1):
        total = -total
    return total + (2 if v > 7500 else 1 if v > 5000 else 0)


def collatz(v: int) -> int:
    count = 0
    while v != 1:
        v, count = (3 * v + 1 if v % 2 else v // 2), count + 1
    return count


def reference_diverge(size: int, x: np.ndarray) -> Arrays:
    return {
        "out": np.array([nested(int(v)) for v in x], np.int32),
        "steps": np.array([collatz(int(v) + 1) for v in x], np.int32),
    }


# ---------------------------------------------------------------------------------------------- printf
PRINTF = r"""
__global__ void hello(const float* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const char* parity = i % 2 ? "odd" : "even";
    printf("thread %d of %u: %s %f %5.2f|%-4d|%04x %c %lld %llu 100%%\n", -i, blockDim.x * gridDim.x, parity, x[i],
           x[i] * 2, i, i * 255, 'a' + i % 26, (long long)i << 40, ~0ull - i);
    if (i == 0) printf("once\n");
    if (i == 1) printf("%e %g %X %hd %s\n", 12345.678, 0.0001, 48879u, (short)-3, "plain");
}
"""


def inputs_printf(size: int, rng: np.random.Generator) -> Arrays:
    return {"x": (rng.integers(-100, 100, size) / 8).astype(np.float32)}


def as_bytes(lines: list[str]) -> np.ndarray:
    return np.frombuffer("\n".join(sorted(lines)).encode(), np.uint8)


def launch_printf(gpu: Runner, size: int, x: np.ndarray) -> Arrays:
    dx, kernel = gpu.to_device(x), gpu.kernel("hello")
    with gpu.captured_stdout() as lines:
        gpu.launch(kernel, blocks_for(size, 32), 32, dx, np.int32(size))
    return {"text": as_bytes(lines)}


def reference_printf(size: int, x: np.ndarray) -> Arrays:
    lines, threads = ["once"], blocks_for(size, 32) * 32
    if size > 1:
        lines.append(f"{12345.678:e} {0.0001:g} BEEF -3 plain")
    for i, v in enumerate(map(float, x)):
        letter, parity = chr(97 + i % 26), "odd" if i % 2 else "even"
        lines.append(
            f"thread {-i} of {threads}: {parity} {v:f} {v * 2:5.2f}|{i:<4d}|{i * 255:04x} {letter} "
            f"{i << 40} {2**64 - 1 - i} 100%"
        )
    return {"text": as_bytes(lines)}


CASES = [
    Case(
        "calls_and_switch", CALLS, ("calls", "interpreter"), inputs_calls, launch_calls, reference_calls, (1, 33, 1000)
    ),
    Case(
        "divergent_loops",
        DIVERGE,
        ("nested_loops", "collatz"),
        inputs_ints,
        launch_diverge,
        reference_diverge,
        (1, 33, 2000),
    ),
    Case("device_printf", PRINTF, ("hello",), inputs_printf, launch_printf, reference_printf, (1, 33)),
]
