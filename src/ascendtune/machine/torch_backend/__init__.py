"""One file per vendor: everything that depends on torch's devices."""
