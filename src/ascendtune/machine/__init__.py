"""What does this machine have? Devices, drivers, software stacks, and what each of them can do."""
