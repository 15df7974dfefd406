"""Races in shared memory: each planted one has to be found, and its mended twin is clean."""

from __future__ import annotations

import re

import numpy as np
import pytest

import common.simt.api as simulator
from common.simt.findings import Finding, watching
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
        "__shared__ int s[129]; s[t] = t; if (t == 0) s[128] = 0; __syncthreads();"
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
    "rows of a matrix": (
        "__shared__ __align__(16) unsigned s[128]; s[t] = t; RACE unsigned r;"
        'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r)'
        ' : "r"((unsigned)__cvta_generic_to_shared(&s[4 * (t % 8)]))); out[t] = r;',
        ("", "__syncthreads();"),
        {"read after write"},
    ),
    "through a generic pointer": (
        "__shared__ int s[128]; int* p = none < -5 ? out : s; p[t] = t; RACE out[t] = p[127 - t];",
        ("", "__syncthreads();"),
        {"read after write"},
    ),
}
CLEAN = {
    "two places write the same": (
        "__shared__ int s[128]; s[t] = 7; s[127 - t] = none + 7; __syncthreads(); out[t] = s[t];"
    ),
    "a named barrier for two warps": (
        '__shared__ int s[128]; s[t] = t; asm volatile("bar.sync %0, 64;" :: "r"(1 + t / 64)); out[t] = s[t ^ 32];'
    ),
    "everybody writes the same": "__shared__ int s; s = none + 7; __syncthreads(); out[t] = s;",
    "a thread reads its own": "__shared__ int s[128]; s[t] = t; out[t] = s[t + none];",
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
}


# kernels of the corpus that show how barriers count threads that are elsewhere, or gone
BARRIERS_ON_PURPOSE = "barrier missed.*\\n.*kernel (exit_before_barrier|exit_in_loop|two_sites)"


def races_of(body: str) -> list[Finding]:
    source = f"""__device__ int none;
extern "C" __global__ void kernel(int* all)
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
    found = races_of(body.replace("RACE", racy))
    assert {race.kind for race in found} == {"shared race"}
    assert {race.what.removeprefix("race in shared memory, ") for race in found} == kinds
    assert races_of(body.replace("RACE", mended)) == []


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_no_race(name: str) -> None:
    assert races_of(CLEAN[name]) == []


# threads that signal each other through shared memory: a lock, a flag, the last warp; nothing is looked for there
SIGNALS = {
    "a lock": "__shared__ int lock, sum; if (t == 0) lock = sum = 0; __syncthreads();"
    "if (t % 32 == 0) { while (atomicCAS(&lock, 0, 1) != 0); __threadfence_block(); sum += t; __threadfence_block();"
    "atomicExch(&lock, 0); } __syncthreads(); if (t == 0) out[0] = sum;",
    "the last warp": "__shared__ int count, part[4]; if (t == 0) count = 0; __syncthreads();"
    "if (t % 32 == 0) { part[t / 32] = t; __threadfence_block();"
    "if (atomicAdd(&count, 1) == 3) { __threadfence_block();"
    "out[0] = part[0] + part[1] + part[2] + part[3]; } }",
    "a flag": "__shared__ volatile int flag; __shared__ int data[32]; if (t == 0) flag = 0; __syncthreads();"
    "if (t < 32) { data[t] = t; __threadfence_block(); __syncwarp(); if (t == 0) flag = 1; }"
    "else if (t < 64) { while (!flag); __threadfence_block(); out[t] = data[t - 32]; }",
}


@pytest.mark.parametrize("name", SIGNALS)
def test_threads_that_signal_each_other_do_not_race(name: str) -> None:
    found = races_of(SIGNALS[name])
    assert found == [] and found.synchronising["shared race"] == {"kernel"}
    # a queue that takes its places from an atomic signals nobody
    queue = "__shared__ int n, q[128]; if (t == 0) n = 0; __syncthreads(); q[atomicAdd(&n, 1)] = t; RACE"
    queue += " out[t] = q[127 - t];"
    assert [race.kind for race in races_of(queue.replace("RACE", ""))] == ["shared race"]
    assert races_of(queue.replace("RACE", "__syncthreads();")) == []


def test_the_report_names_both_threads_and_lines() -> None:
    (race,) = races_of("__shared__ int s[128];\n    s[t] = t;\n    out[t] = s[127 - t];")
    assert str(race) == (
        "race in shared memory, read after write\n"
        "  in kernel kernel, block (0,0,0) thread (127,0,0), line 7: s[t] = t;\n"
        "  and block (0,0,0) thread (0,0,0), line 8: out[t] = s[127 - t];\n"
        "  at byte 508 of 's'"
    )


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
    assert [str(f) for f in found if not re.search(BARRIERS_ON_PURPOSE, str(f))] == []
    for name, values in case.run(simulator, size).items():  # watching changes no result
        np.testing.assert_array_equal(out[name], values)
