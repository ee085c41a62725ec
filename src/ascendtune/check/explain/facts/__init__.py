"""Which facts does a log hold? Variables, versions, shapes, sizes, and where the job ran."""
