"""Deliberate faults in the simulator itself: the corpus and the trap tests must see each of them."""

from __future__ import annotations

from tests.mutants import Mutant

KERNELS = "tests/test_simt_kernels.py::test_kernel"
TRAPS = "tests/test_simt_traps.py::"


def broken(file: str, old: str, new: str, test: str) -> Mutant:
    """A fault in common/simt/FILE.py that the test must notice."""
    return Mutant(f"common/simt/{file}.py", old, new, test)


MUTANTS = [
    # arithmetic
    broken("ops", "    if twice.any() and", "    if False and", "tests/test_simt_ptx.py::test_instruction[fma_hard]"),
    broken(
        "ops",
        "quotient = quotient + ((a % safe",
        "quotient = quotient + 0 * ((a % safe",
        f"{KERNELS}[int32_ops-700] {KERNELS}[int64_ops-500]",
    ),
    broken(
        "instructions",
        '"lo": "<", "ls": "<="',
        '"lo": "<=", "ls": "<"',
        "tests/test_simt_ptx.py::test_instruction[setp_unsigned]",
    ),
    # memory
    broken(
        "memory",
        "if arena.find(low, high) is None:",
        "if arena.find(low, low) is None:",
        f"{TRAPS}test_one_element_past_the_end_is_noticed",
    ),
    broken(
        "memory",
        "if low < 0 or high > limit:",
        "if low < 0 or high > limit + 4:",
        f"{TRAPS}test_shared_memory_one_element_past_the_end",
    ),
    broken("memory", "if (address.bits | offset) & (size - 1):", "if False:", f"{TRAPS}test_misaligned"),
    broken("atomics", "before = total - v", "before = total", f"{TRAPS}test_atomics_return_what_was_there_before"),
    # warps
    broken("warp", "last = first | (clamp & ~segment)", "last = first | clamp", f"{KERNELS}[warp_shuffles-33]"),
    broken("matrix", "(8 * (reg & 1) if tall", "(8 * (reg >> 1) if tall", f"{KERNELS}[mma_ldmatrix-16x8x16]"),
    broken(
        "scheduler",
        "complete = (needed & ~present[group.slot_index >> 5]) == 0",
        "complete = needed == needed",
        f"{TRAPS}test_shuffle_waits_for_lanes_that_leave_a_lock_one_by_one",
    ),
    # divergence, barriers, spinning
    broken(
        "scheduler",
        "regs[r] = whole.take(order)",
        "regs[r] = whole",
        f"{TRAPS}test_neighbours_that_part_find_their_registers_again",
    ),
    broken(
        "scheduler",
        "arrived, expected = sum(self.per_block(g) for g in groups), self.live\n",
        "arrived, expected = sum(self.per_block(g) for g in groups), self.live - 1\n",
        f"{TRAPS}test_barrier_counts_threads_not_places",
    ),
    broken(
        "scheduler",
        "        if self.parked:\n            self.release()\n",
        "",
        f"{TRAPS}test_barrier_is_rechecked_when_threads_leave",
    ),
    broken("cfg", "return found[::-1]", "return found", f"{TRAPS}test_warps_come_together_again"),
    broken("group", '"y": thread // x % y, "z"', '"y": thread // x, "z"', f"{KERNELS}[who_am_i_3d-31x2x9]"),
    # loading, printing
    broken(
        "module",
        "end = -(-end // variable.align) * variable.align",
        "end = end",
        f"{TRAPS}test_parameters_are_aligned_to_their_size",
    ),
    broken(
        "output",
        "offset = -(-offset // dtype.itemsize) * dtype.itemsize",
        "offset = offset",
        f"{KERNELS}[device_printf-33]",
    ),
    # found to survive in a review
    broken(
        "scheduler",
        "pop(next(iter(self.unfinished))), functions, blocks)\n                continue\n            place",
        "pop(min(self.unfinished)), functions, blocks)\n                continue\n            place",
        "tests/test_simt_waiting.py::test_branches_of_a_warp_keep_step",
    ),
    broken(
        "scheduler",
        " and turns < TURNS:",
        ":",
        "tests/test_simt_waiting.py::test_any_way_to_poll_lets_other_blocks_run",
    ),
    broken(
        "scheduler",
        "arrivals[arrivals >= count] -= count",
        "arrivals[arrivals >= count] -= 0",
        "tests/test_simt_waiting.py::test_arrivals_that_fill_a_barrier_start_it_anew",
    ),
    broken(
        "scheduler",
        "early[full] = 0",
        "early[full] += 0",
        "tests/test_simt_waiting.py::test_a_named_barrier_serves_round_after_round",
    ),
    broken(
        "memory",
        "value = value[-1:]",
        "value = value[:1]",
        "tests/test_simt_waiting.py::test_of_threads_that_write_one_address_the_highest_wins",
    ),
    broken(
        "warp",
        "true = of_warp(g, ballot_bits(g, p)) & mask",
        "true = of_warp(g, ballot_bits(g, p))",
        "tests/test_simt_waiting.py::test_half_warps_reduce_and_vote_apart",
    ),
    broken(
        "atomics",
        "np.where(old >= value, 0, old + 1)",
        "np.where(old == value, 0, old + 1)",
        "tests/test_simt_waiting.py::test_bounded_counters_wrap_above_their_bound_too",
    ),
    broken(
        "memory",
        "left > byte",
        "left >= byte",
        "tests/test_simt_waiting.py::test_an_asynchronous_copy_fills_up_with_zeros",
    ),
]
