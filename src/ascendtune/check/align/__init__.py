"""Comparison of two recorded trainings of the same model on two machines, stage by stage."""
