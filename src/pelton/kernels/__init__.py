"""Fast kernels, one package per kind of device."""
