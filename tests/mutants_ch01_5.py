"""Faults in the kernels of sections 1.5.1 to 1.5.4, and the test that has to see each."""

from tests.mutants import Mutant

MUTANTS: list[Mutant] = [
    # --- 1.5.1
    # --- 1.5.2
    # --- 1.5.3
    # --- 1.5.4
]
