"""The small helper that every chapter shares; see common/gpu.py for the seam between GPU and simulator."""
