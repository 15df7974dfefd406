"""Faults in the kernels of sections 1.3.1 to 1.3.4, and the test that has to see each."""

from tests.mutants import Mutant

MUTANTS: list[Mutant] = [
    # --- 1.3.1
    # --- 1.3.2
    # --- 1.3.3
    # --- 1.3.4
]
