"""How is a run reported? Metrics, progress, pictures, TensorBoard."""
