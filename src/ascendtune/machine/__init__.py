"""What is here? Devices, drivers, software stacks, and what each of them can do."""
