"""Deliberate faults in the simulator itself: the corpus and the trap tests must see each of them."""

from __future__ import annotations

from tests.mutants import Mutant

KERNELS = "tests/test_simt_kernels.py::test_kernel"
TRAPS = "tests/test_simt_traps.py::"
TRANSPOSES = "the_transposes_as_an_h200_counts_them"
COLLAPSE = "collapse_finds_the_different_patterns"


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
    # what accesses cost
    *(
        broken("access", old, new, f"tests/test_simt_counters.py::test_{test}")
        for old, new, test in (
            ("SECTOR = 5", "SECTOR = 6", "sectors"),
            (
                "moved = np.where(active, lanes - lowest // unit * unit",
                "moved = np.where(active, lanes - lowest",
                COLLAPSE,
            ),
            (
                "np.maximum.reduceat(times",
                "np.add.reduceat(times",
                "atomics_of_one_sector_count_by_the_most_frequent_address",
            ),
            ("merged |= (", "merged &= (", "loads_of_a_neighbours_address_merge_groups"),
            ("32 if size <= 4 else 128 // size)", "32)", "wide_accesses_go_in_groups"),
            ('2 if op == "cas" else 1', "1", "atomics_take_turns"),
            ("_in_groups(named, 16, 8)", "_in_groups(named, 16, 16)", "matrices"),
            ("order & 31", "order & 15", "a_stride_conflicts_as_often_as_it_shares_a_factor_with_32"),
            ("counted[:, 1:] &= order[:, 1:] != order[:, :-1]", "pass", "equal_words_do_not_conflict"),
        )
    ),
    # counting
    *(
        broken("counters", old, new, f"tests/test_simt_counters.py::test_{test}")
        for old, new, test in (
            ('f"global_{kind}_requests": len(lanes)', 'f"global_{kind}_requests": len(patterns)', TRANSPOSES),
            ("int(wavefronts @ times)", "int(wavefronts.sum())", TRANSPOSES),
            ('"fma": 2', '"fma": 1', "lines_of_the_source_and_a_last_warp_that_is_not_full"),
            ("* (group.n if by_thread else warps)", "* group.n", "divergence_lowers_the_active_threads"),
            ("        _listeners.remove(launches)", "        pass", "nobody_counts_outside"),
        )
    ),
    # occupancy
    *(
        broken("occupancy", old, new, f"tests/test_simt_occupancy.py::test_{test}")
        for old, new, test in (
            ("REGISTER_UNIT = 256", "REGISTER_UNIT = 64", "limits"),
            ("PARTITIONS = 4", "PARTITIONS = 1", "limits"),
            ("SHARED_RESERVED = 1 << 10", "SHARED_RESERVED = 1 << 9", "limits"),
            ("SHARED_UNIT = 128", "SHARED_UNIT = 1", "limits"),
            ("BARRIERS_PER_SM // barriers", "BARRIERS_PER_SM", "limits"),
            ("if threads <= MAX_THREADS else 0", "", "limits"),
            ("int(barriers or 0)", "int(barriers or 1)", "resources_of_a_log"),
            ("max(sizes, key=", "min(sizes, key=", "potential_block_size"),
        )
    ),
]
