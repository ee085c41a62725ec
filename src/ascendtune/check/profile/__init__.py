"""Where does the time of a training step go? Reads traces of torch's and torch_npu's profilers; free of torch."""
