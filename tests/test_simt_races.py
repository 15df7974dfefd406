"""Races in shared memory: each planted one has to be found, and its mended twin is clean."""

from __future__ import annotations

import re

import numpy as np
import pytest

import common.simt.api as simulator
from common.simt.races import Race, watching
from tests.simt_cases import CASES
from tests.simt_cases.harness import Case

# name -> (kernel body with RACE where the fault is, what stands there in the racy and in the mended kernel, what is
# found). The kernels run with 2 blocks of 128 threads and get `int* out` (128 numbers for each block); t is the thread.
PLANTED = {
    "reversed without a barrier": (
        "__shared__ int s[128]; s[t] = t; RACE out[t] = s[127 - t];",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
    "neighbours in place": (
        "__shared__ int s[129]; s[t] = t; __syncthreads();"
        "int v = s[t + 1]; RACE s[t] = v; __syncthreads(); out[t] = s[t];",
        ("", "__syncthreads();"),
        {"write after read"},
    ),
    "reduction without its barrier": (
        "__shared__ int s[128]; s[t] = t; __syncthreads();"
        "for (int k = 64; k > 0; k /= 2) { if (t < k) s[t] += s[t + k]; RACE } if (t == 0) out[0] = s[0];",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
    "barrier that orders the warp only": (
        "__shared__ int s[128]; s[t] = t; RACE out[t] = s[t ^ 32];",
        ("__syncwarp();", "__syncthreads();"),
        {"read after write"},
    ),
    "warp without its barrier": (
        "__shared__ int s[128]; s[t] = t; RACE out[t] = s[t ^ 1];",
        ("", "__syncwarp();"),
        {"read after write"},
    ),
    "warp overwrites too early": (
        "__shared__ int s[128]; s[t] = t; __syncthreads(); int v = s[t ^ 1]; RACE s[t] = v + 1;",
        ("", "__syncwarp();"),
        {"write after read"},
    ),
    "one counter for all": (
        "__shared__ int s; if (t == 0) s = 0; __syncthreads(); RACE; __syncthreads(); if (t == 0) out[0] = s;",
        ("s += t", "atomicAdd(&s, t)"),
        {"write after read", "write after write"},
    ),
    "two threads, different values": (
        "__shared__ int s[64]; s[t / 2] = RACE; __syncthreads(); out[t] = s[t / 2];",
        ("t", "t / 2"),
        {"write after write"},
    ),
    "two places write the same": (
        "__shared__ int s[128]; s[t] = t; RACE s[127 - t] = -t; __syncthreads(); out[t] = s[t];",
        ("", "__syncthreads();"),
        {"write after write"},
    ),
    "an atomic against a plain read": (
        "__shared__ int s; if (t == 0) s = 0; __syncthreads();"
        "if (t < 64) atomicAdd(&s, 1); RACE if (t >= 64) out[t] = s;",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
    "a buffer used again too early": (
        "__shared__ int s[128]; int sum = 0; for (int k = 0; k < 3; ++k) "
        "{ s[t] = t + k; __syncthreads(); sum += s[(t + 64) % 128]; RACE } out[t] = sum;",
        ("", "__syncthreads();"),
        {"write after read"},
    ),
    "bytes": (
        "__shared__ char s[128]; s[t] = t; RACE out[t] = s[t ^ 32];",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
    "vectors": (
        "__shared__ int4 s[128]; s[t] = make_int4(t, t, t, t); RACE out[t] = reinterpret_cast<int*>(s)[t];",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
    "through a generic pointer": (
        "__shared__ int s[128]; int* p = out[0] < -5 ? out : s; p[t] = t; RACE out[t] = p[127 - t];",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
}
CLEAN = {
    "a named barrier for two warps": (
        '__shared__ int s[128]; s[t] = t; asm volatile("bar.sync %0, 64;" :: "r"(1 + t / 64)); out[t] = s[t ^ 32];'
    ),
    "everybody writes the same": "__shared__ int s; s = out[0] + 7; __syncthreads(); out[t] = s;",
    "a thread reads its own": "__shared__ int s[128]; const int zero = out[0]; s[t] = t; out[t] = s[t + zero];",
    "everybody reads one": "__shared__ int s[128]; s[t] = t; __syncthreads(); out[t] = s[0] + s[5];",
    "neighbouring bytes": "__shared__ char s[128]; s[t] = t; s[t] += 1; out[t] = s[t];",
    "atomics": (
        "__shared__ int s; if (!t) s = 0; __syncthreads();"
        "atomicMax(&s, t); atomicAdd(&s, 1); __syncthreads(); out[t] = s;"
    ),
    "blocks have memory of their own": "__shared__ int s[128]; s[t] = blockIdx.x; out[t] = s[t];",
    "volatile flags": (
        "__shared__ volatile int go; if (!t) go = 0; __syncthreads();"
        "if (t < 32) { if (!t) go = 1; } else while (!go) { } out[t] = 1;"
    ),
    "threads that left": (
        "__shared__ int s[128]; s[t] = t; if (t >= 96) return; __syncthreads(); out[t] = s[(t + 1) % 96];"
    ),
}


def races_of(body: str) -> list[Race]:
    source = f"""extern "C" __global__ void kernel(int* all)
{{
    int* out = all + 128 * blockIdx.x;
    const int t = threadIdx.x;
    {body}
}}
"""
    stream = simulator.Device().create_stream()
    memory = simulator.Device().allocate(4 * 256, stream=stream)
    memory.fill(0, stream=stream)
    code = simulator.Program(source, "c++", simulator.ProgramOptions(std="c++17")).compile("ptx")
    with watching() as found:
        simulator.launch(stream, simulator.LaunchConfig(grid=2, block=128), code.get_kernel("kernel"), memory)
        stream.sync()
    return found


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_race_is_found_and_its_mended_twin_is_clean(name: str) -> None:
    body, (racy, mended), kinds = PLANTED[name]
    assert {race.kind for race in races_of(body.replace("RACE", racy))} == kinds
    assert races_of(body.replace("RACE", mended)) == []


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_no_race(name: str) -> None:
    assert races_of(CLEAN[name]) == []


def test_the_report_names_both_threads_and_lines() -> None:
    (race,) = races_of("__shared__ int s[128];\n    s[t] = t;\n    out[t] = s[127 - t];")
    assert (race.kernel, race.block, race.offset) == ("kernel", 0, 508)
    text = str(race)
    assert "race in shared memory, read after write: kernel kernel" in text
    assert re.search(r"block \(0,0,0\) thread \(127,0,0\), line 6: s\[t\] = t;", text)
    assert re.search(r"block \(0,0,0\) thread \(0,0,0\), line 7: out\[t\] = s\[127 - t\];", text)


def test_without_a_watcher_nothing_is_found_and_results_are_the_same() -> None:
    body = "__shared__ int s[128]; s[t] = t; out[t] = s[127 - t];"
    assert len(races_of(body)) == 1
    with watching() as found:
        pass
    assert found == []


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "atomics_all"], ids=lambda case: case.name)
def test_the_corpus_is_clean(case: Case) -> None:
    size = case.sizes[min(1, len(case.sizes) - 1)]
    with watching() as found:
        out = case.run(simulator, size)
    assert found == []
    for name, values in case.run(simulator, size).items():  # watching changes no result
        np.testing.assert_array_equal(out[name], values)
