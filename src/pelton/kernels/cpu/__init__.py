"""Binding of the C++ kernels in csrc."""
