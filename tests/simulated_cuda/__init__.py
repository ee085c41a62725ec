"""A CUDA device that computes on the CPU: `pytest -p simulated_cuda.plugin tests/hardware`.

Its tensors say that they are on `cuda:0`, and hold host memory. What CUDA refuses is refused (operands on two devices),
a copy that is left to itself arrives when the device is waited for, and each wait is reported as torch reports it with
`torch.cuda.set_sync_debug_mode`. So a whole training takes the branches that it takes on a GPU: which device, which
type, when the host waits. It says nothing about kernels, speed, memory and the order of streams.
"""
