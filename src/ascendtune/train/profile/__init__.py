"""Where does the time of a step go? Records steps; `check/profile` reads the recordings."""
