"""The user's software environment: shell lines, configuration files, caches, conda, git checkouts. Free of torch."""
