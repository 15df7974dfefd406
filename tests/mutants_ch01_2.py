"""Faults in the kernels of sections 1.2.1 to 1.2.4, and the test that has to see each."""

from tests.mutants import Mutant

MUTANTS: list[Mutant] = [
    # --- 1.2.1
    # --- 1.2.2
    # --- 1.2.3
    # --- 1.2.4
]
