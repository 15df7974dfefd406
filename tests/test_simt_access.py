"""What memory instructions cost: the rest of the hardware's rules, on cases worked out by hand and in whole kernels.

tests/test_simt_counters.py has the first ones of each kind.
"""

from __future__ import annotations

import numpy as np
import pytest

from common.simt import access
from tests.test_simt_counters import LANE, buffer, counts_of, one, only

pytestmark = pytest.mark.simulator


# --- global memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "active", "sectors"),
    [
        (8 * LANE, LANE >= 0, 8),  # doubles: 256 bytes
        (16 * LANE + 16, LANE >= 0, 17),  # float4 that begin in the middle of a sector
        (2 * LANE + 30, LANE >= 0, 3),  # 64 bytes of shorts: 30 and 31, then 62, then the rest
        (32 * (LANE % 4), LANE >= 0, 4),
        (32 * (LANE % 4), LANE % 2 == 0, 2),  # even lanes only: sectors 0 and 2
        (1 << 40, LANE == 31, 1),
    ],
)
def test_sectors_of_other_patterns(address: np.ndarray, active: np.ndarray, sectors: int) -> None:
    assert access.sectors(only(address + 0 * LANE, active)) == sectors


def test_atomics_of_several_instructions_and_inactive_lanes() -> None:
    two = np.concatenate([only(4 * (LANE % 2), LANE < 5), only(64 * LANE, LANE >= 30)])
    np.testing.assert_array_equal(access.atomic_sectors(two), [3, 2])  # lanes 0, 2, 4 at one address; two sectors


# --- local memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "active", "size", "sectors"),
    [
        (0 * LANE, LANE >= 0, 4, 4),  # one word of every thread: a row of 128 bytes
        (0 * LANE, LANE < 9, 4, 2),  # 8 lanes a sector
        (4 * LANE, LANE >= 0, 4, 32),  # each thread another word
        (4 * (LANE // 16), LANE >= 0, 4, 4),  # lanes 0 to 15 word 0, the others word 1: two sectors of each row
        (4 * (LANE % 2), LANE >= 0, 4, 8),
        (0 * LANE, LANE >= 0, 16, 16),  # four words
        (LANE % 4, LANE >= 0, 1, 4),  # bytes of one word
        (0 * LANE, LANE < 0, 8, 0),
    ],
)
def test_local_memory_is_a_row_of_lanes_for_each_word(
    offset: np.ndarray, active: np.ndarray, size: int, sectors: int
) -> None:
    assert access.local_sectors(only(offset, active), size) == sectors


LOCAL = r"""
extern "C" __global__ void local(const int* __restrict__ x, T* __restrict__ out)
{
    volatile T kept[8];
    kept[x[threadIdx.x]] = threadIdx.x;
    out[threadIdx.x] = kept[x[threadIdx.x]];
}
"""


@pytest.mark.parametrize(("kind", "words"), [("char", 1), ("float", 1), ("double", 2)])
def test_local_requests_count_each_word(kind: str, words: int) -> None:
    x, out = buffer(4 * 64), buffer(8 * 64)  # zeros: every thread uses its element 0
    counts = counts_of(LOCAL.replace("T*", f"{kind}*").replace("T kept", f"{kind} kept"), "local", 1, 64, x, out)
    for what in ("load", "store"):
        assert counts.total(f"local_{what}_requests") == 2 * words
        assert counts.total(f"local_{what}_sectors") == 2 * words * 4


# --- shared memory --------------------------------------------------------------------------------------------


def test_narrow_accesses_are_one_group() -> None:
    assert access.shared_load(one(2 * LANE), 2) == (1, 0)  # two lanes a word
    assert access.shared_load(one(128 * LANE + 1), 1) == (32, 31)
    assert access.shared_store(one(130 * LANE), 2) == (2, 1)  # word 32.5 i: banks i / 2, two words in each


def test_wide_accesses_that_conflict() -> None:
    assert access.shared_load(one(128 * LANE), 8) == (32, 30)  # 16 words on banks 0 and 1, in each half
    assert access.shared_store(one(16 * LANE), 8) == (4, 2)  # in each half every other pair of banks, twice
    assert access.shared_load(one(128 * LANE), 16) == (32, 28)
    assert access.shared_store(one(0 * LANE), 16) == (4, 0)  # a store never merges its groups


def test_groups_without_an_active_lane_cost_nothing() -> None:
    assert access.shared_load(only(8 * LANE, LANE < 16), 8) == (1, 0)
    assert access.shared_store(only(16 * LANE, LANE >= 24), 16) == (1, 0)
    assert access.shared_load(only(16 * LANE, LANE < 0), 16) == (0, 0)
    assert access.matrices(only(16 * LANE, LANE < 8), 1) == (1, 0)


def test_merging_asks_for_all_lanes_and_for_one_distance() -> None:
    by_2 = 16 * (LANE // 4 * 2 + LANE % 2)  # lanes i and i ^ 2 agree
    assert access.shared_load(one(by_2), 16) == (2, 0)
    assert access.shared_load(one(by_2 // 2), 8) == (1, 0)
    but_one = by_2.copy()
    but_one[31] += 16
    assert access.shared_load(one(but_one), 16)[0] == 4
    mixed = np.where(LANE < 16, 16 * (LANE // 2), by_2)  # one half agrees with i ^ 1, the other with i ^ 2
    assert access.shared_load(one(mixed), 16)[0] == 4
    assert access.shared_load(one(32 * (LANE // 2)), 16) == (4, 2)  # merged into two halves of 8 places, 32 apart


def test_atomics_by_the_lanes_of_a_bank() -> None:
    assert access.shared_atomic(one(128 * (LANE % 2)), "add", False) == (32, 31)  # two words, but one bank
    assert access.shared_atomic(one(128 * (LANE % 2)), "add", True) == (2, 1)  # adding 1: by words
    assert access.shared_atomic(one(0 * LANE), "cas", False) == (64, 31)
    assert access.shared_atomic(only(4 * LANE, LANE < 0), "cas", False) == (0, 0)


def test_a_float_addition_takes_rounds() -> None:
    # four lanes on one word and one alone: round 1 reads 2 words on two banks; then one word, three times more
    lanes = only(np.where(LANE < 4, 0, 4), LANE < 5)
    assert access.shared_float_add(lanes) == (4, 0, 8)
    # lanes 0 and 1 on two words of a bank, lane 2 on another bank: D is 2, then 1
    lanes = only(np.array([0, 128, 4] + 29 * [0]), LANE < 3)
    assert access.shared_float_add(lanes) == (3, 1, 4)


ATOMICS = r"""
extern "C" __global__ void atomics(int* __restrict__ out)
{
    __shared__ int a[64];
    __shared__ float f[64];
    const int t = threadIdx.x, pair = t / 2;
    a[t] = 0;
    f[t] = 0;
    __syncthreads();
    OPERATION;
    __syncthreads();
    out[t] = a[t] + (int)f[t];
}
"""


@pytest.mark.parametrize(
    ("operation", "wavefronts", "conflicts", "loads"),
    [
        ("atomicAdd(&a[pair], 1)", 1, 0, 0),  # nobody reads the result: pairs go together
        ("atomicAdd(&a[pair], 2)", 2, 1, 0),
        ("out[64 + t] = atomicAdd(&a[pair], 1)", 2, 1, 0),
        ("atomicExch(&a[pair], t)", 2, 1, 0),
        ("atomicCAS(&a[pair], 0, t)", 4, 1, 0),
        ("atomicAdd(&f[pair], 1.0f)", 4, 0, 2),  # two rounds of a load and two wavefronts
    ],
)
def test_atomics_in_a_kernel(operation: str, wavefronts: int, conflicts: int, loads: int) -> None:
    counts = counts_of(ATOMICS.replace("OPERATION", operation), "atomics", 1, 64, buffer(4 * 128))
    assert counts.total("shared_atomic_wavefronts") == 2 * wavefronts  # two warps
    assert counts.total("shared_atomic_conflicts") == 2 * conflicts
    assert counts.total("shared_atomic_requests") == 2
    assert counts.total("shared_load_wavefronts") == 4 + 2 * loads


# --- instructions that are more than a load or a store --------------------------------------------------------

MATRICES = r"""
extern "C" __global__ void matrices(unsigned* __restrict__ out)
{
    __shared__ __align__(16) unsigned tile[32 * PITCH];
    const int t = threadIdx.x;
    const unsigned row = (unsigned)__cvta_generic_to_shared(tile + t * PITCH);
    unsigned a = t, b = t, c = t, d = t;
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(row), "r"(a), "r"(b));
    __syncwarp();
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(row));
    out[t] = a + b + c + d;
}
"""


@pytest.mark.parametrize(("pitch", "ways"), [(4, 1), (8, 2), (32, 8), (36, 1)])
def test_matrices_in_a_kernel(pitch: int, ways: int) -> None:
    """Rows of 16 bytes, `pitch` words apart: the 8 rows of a matrix share banks in as many ways."""
    counts = counts_of(MATRICES.replace("PITCH", str(pitch)), "matrices", 1, 32, buffer(128))
    for kind, matrices in (("load", 4), ("store", 2)):
        assert counts.total(f"shared_matrix_{kind}_requests") == 1
        assert counts.total(f"shared_matrix_{kind}_wavefronts") == matrices * ways
        assert counts.total(f"shared_matrix_{kind}_conflicts") == matrices * (ways - 1)
        assert counts.total(f"shared_{kind}_wavefronts") == 0  # Nsight Compute keeps them apart


COPIES = r"""
extern "C" __global__ void copies(const float4* __restrict__ in, float4* __restrict__ out)
{
    __shared__ float4 tile[64];
    const int t = threadIdx.x;
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile + t);
    if (t < 40) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(in + t));
    asm volatile("cp.async.wait_all;");
    __syncthreads();
    out[t] = tile[t / 2];
}
"""


def test_an_asynchronous_copy_counts_as_a_load() -> None:
    counts = counts_of(COPIES, "copies", 1, 64, buffer(16 * 64), buffer(16 * 64))
    assert counts.total("global_load_requests") == 2  # a warp of 32 lanes, and one of 8
    assert counts.total("global_load_sectors") == 16 + 4
    assert counts.total("global_load_bytes") == 40 * 16
    assert counts.total("shared_load_wavefronts") == 2 * 2  # pairs of lanes: two half-warps for each warp


PADDED = r"""
extern "C" __global__ void padded(const float4* __restrict__ in, float4* __restrict__ out, int n)
{
    __shared__ float4 tile[64];
    const int t = threadIdx.x, bytes = t < n ? 16 : 0;  // the rest is filled with zeros, and nothing is read
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile + t);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(in + (t < n ? t : 0)), "r"(bytes));
    asm volatile("cp.async.wait_all;");
    out[t] = tile[t];
}
"""


@pytest.mark.parametrize(("n", "requests", "sectors"), [(64, 2, 32), (34, 2, 17), (6, 1, 3), (0, 0, 0)])
def test_lanes_that_copy_nothing_ask_for_nothing(n: int, requests: int, sectors: int) -> None:
    counts = counts_of(PADDED, "padded", 1, 64, buffer(16 * 64), buffer(16 * 64), np.int32(n))
    assert counts.total("global_load_requests") == requests and counts.total("global_load_sectors") == sectors


SHIFTED = r"""
extern "C" __global__ void shifted(const float* __restrict__ x, float* __restrict__ y)
{
    const int i = threadIdx.x;
    y[i] = x[i] + x[i + 1] + x[i + 9];
}
"""


def test_an_offset_in_the_instruction_counts() -> None:
    counts = counts_of(SHIFTED, "shifted", 1, 32, buffer(256), buffer(128))
    assert counts.total("global_load_requests") == 3
    assert counts.total("global_load_sectors") == 4 + 5 + 5  # 128 bytes from 0, from 4, and from 36


SOME_WARPS = r"""
extern "C" __global__ void some_warps(const float* __restrict__ x, float* __restrict__ y, int n)
{
    const int i = threadIdx.x;
    float v = 0.0f;
    if (i < n) v = x[2 * i];
    y[i] = v;
}
"""


@pytest.mark.parametrize(("n", "requests", "sectors"), [(0, 0, 0), (1, 1, 1), (33, 2, 9), (128, 4, 32)])
def test_a_warp_without_an_active_lane_asks_for_nothing(n: int, requests: int, sectors: int) -> None:
    counts = counts_of(SOME_WARPS, "some_warps", 1, 128, buffer(1024), buffer(512), np.int32(n))
    assert counts.total("global_load_requests") == requests
    assert counts.total("global_load_sectors") == sectors
    assert counts.total("global_store_requests") == 4
