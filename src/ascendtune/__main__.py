"""`python -m ascendtune` is the command `ascendtune`."""

from ascendtune.cli.main import main

if __name__ == "__main__":
    main()
