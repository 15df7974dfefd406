"""Faults in the kernels of sections 1.4.1 to 1.4.4, and the test that has to see each."""

from tests.mutants import Mutant

MUTANTS: list[Mutant] = [
    # --- 1.4.1
    # --- 1.4.2
    # --- 1.4.3
    # --- 1.4.4
]
