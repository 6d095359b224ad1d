"""Typed operations: a torch reference and the fast kernels behind it."""
