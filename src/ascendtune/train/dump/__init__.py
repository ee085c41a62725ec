"""What did a step compute? Statistics of activations, gradients and parameters, written for `ascendtune align`."""
