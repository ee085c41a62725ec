"""Which facts does a log contain? Variables, versions, shapes, sizes, and the environment of the job."""
