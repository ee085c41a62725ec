"""Is it right? A measurement, held against an expectation; and what to do where they differ."""
