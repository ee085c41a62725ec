"""Why did the job fail? The first cause in the logs, not its last echo."""
