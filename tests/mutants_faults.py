"""Deliberate faults in the simulator's checks: a planted fault that goes unnoticed, or a twin that is accused."""

from __future__ import annotations

from tests.mutants import Mutant

FOUND = "tests/test_faults.py::test_the_simulator_finds_it"
CLEAN = "tests/test_faults.py::test_nothing_is_found_in_the_twin"
RACES = "tests/test_simt_races.py::test_"
FINDINGS = "tests/test_simt_findings.py::test_"
SANITIZE = "tests/test_sanitize.py::test_"


def broken(file: str, old: str, new: str, test: str) -> Mutant:
    """A fault in common/simt/FILE.py that the test must notice."""
    return Mutant(f"common/simt/{file}.py", old, new, test)


MUTANTS = [
    # races
    broken("races", "self.block[np.unique(blocks)] += 1", "pass", f"{CLEAN}[reversed_without_a_barrier]"),
    broken("races", "self.warp[np.unique(group.slot_index >> 5)] += 1", "pass", f"{CLEAN}[last_warp_without_syncwarp]"),
    broken("races", "self.reader[at] = who.thread\n", "pass\n", f"{FOUND}[one_tile_used_again_too_early]"),
    broken("races", "(other != who.thread) & ~ordered", "~ordered", f"{RACES}what_is_no_race"),
    broken("races", "(new != values)", "(new == new)", f"{CLEAN}[two_threads_for_an_element]"),
    broken("races", "clash &= old != values", "pass", f"{RACES}what_is_no_race"),
    broken(
        "races",
        "return (other - 1) // self.slots_per_block == (who.thread - 1) // self.slots_per_block",
        "return True",
        f"{FOUND}[stencil_across_blocks]",
    ),
    broken(
        "races",
        "(BLOCKS, self.slots_per_block)",
        "(WARPS, self.slots_per_block)",
        f"{FINDINGS}readers_of_many_blocks_before_a_write",
    ),
    broken(
        "races",
        '("membar", "fence", "nanosleep")',
        '("nanosleep",)',
        f"{SANITIZE}kernels_that_signal_each_other_are_named",
    ),
    broken(
        "races",
        "                sizes.append(2)\n",
        "                pass\n",
        f"{RACES}a_planted_race_is_found_and_its_mended_twin_is_clean",
    ),
    # what was written
    broken("initcheck", "return bad if bad.any() else None", "return None", f"{FOUND}[border_of_a_tile]"),
    broken("initcheck", "range(1, count)", "range(1, 1)", f"{FOUND}[fourth_of_three_floats]"),
    broken("initcheck", "= ONES[size]\n\n", "= 0\n\n", f"{CLEAN}[border_of_a_tile]"),
    broken(
        "memory",
        "            self.written.copy(target, source, size)\n",
        "            pass\n",
        f"{FINDINGS}copies_carry_over_what_was_written",
    ),
    broken(
        "memory", "(position, position + size, False)", "(position, position + size)", f"{FOUND}[accumulated_in_place]"
    ),
    broken("watched", 'if wanted or op != "exch":', "if wanted:", f"{FOUND}[sum_that_starts_anywhere]"),
    # barriers, asynchronous copies
    broken(
        "watched",
        "if gone := threads - int(self.chunk.live[block])",
        "if gone := 0",
        f"{FOUND}[return_before_the_barrier]",
    ),
    broken("watched", "[2] is not me[2]", "[2] is None", f"{FOUND}[barrier_on_either_side]"),
    broken("scheduler", "and len(self.unfinished) == 1", "and False", f"{FOUND}[lanes_that_a_mask_names_in_vain]"),
    broken("watched", "(self.batch[at] > self.arrived[owner])", "False", f"{FOUND}[asynchronous_copy_not_waited_for]"),
    broken("watched", "self.committed[slots] - pending", "0", f"{CLEAN}[asynchronous_copy_not_waited_for]"),
    # allocations
    broken("memory", "        self.freed.appendleft(allocation)\n", "", f"{FOUND}[closed_before_the_launch]"),
    broken("memory", "low = after if after", "low = low if after", f"{FOUND}[handle_without_owner]"),
    broken("findings", "        gc.collect()\n", "        return\n", f"{FOUND}[result_kept]"),
    broken("memory", 'a.kind != "module"]', "True]", f"{FINDINGS}variables_of_a_module_are_no_leak"),
    broken("memory", "if a.serial > serial and", "if", f"{FINDINGS}what_was_there_before_is_no_leak"),
    # names
    broken(
        "findings",
        "        if int(match[1]) == len(match[2]):\n",
        "        if match:\n",
        f"{FINDINGS}names_of_variables_inside_functions",
    ),
    broken(
        "findings", "if len(names) == count else []", "if names else []", f"{FINDINGS}names_of_parameters_in_the_source"
    ),
    # what is said
    Mutant(
        "common/sanitize.py",
        "        if kernels:\n            place =",
        "        if not kernels:\n            place =",
        f"{SANITIZE}kernels_that_signal_each_other_are_named",
    ),
    Mutant("common/sanitize.py", "found.leaks()", "pass", f"{SANITIZE}a_leak_is_reported"),
    Mutant(
        "common/sanitize.py",
        '        return {"tool": tool, "found": None',
        '        return {"tool": tool, "found": False',
        f"{SANITIZE}a_verdict_of_compute_sanitizer",
    ),
    Mutant(
        "common/sanitize.py",
        '"did not run" in row[5:7]',
        "False",
        f"{SANITIZE}the_stored_verdicts_stand_beside_the_simulators",
    ),
]
