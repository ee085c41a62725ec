"""Fine-tune LLMs on Ascend NPU, NVIDIA GPU and CPU from one recipe, and keep the machines healthy."""

__version__ = "0.1.0"
