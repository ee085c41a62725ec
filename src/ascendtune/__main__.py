"""The command `ascendtune`, also `python -m ascendtune`. Ctrl-C ends it without a traceback, also during imports."""

import signal


def main() -> None:
    """Run the command line. Before and after, SIGINT ends the process; meanwhile it raises KeyboardInterrupt."""
    at_interrupt = signal.getsignal(signal.SIGINT)
    is_heeded = at_interrupt is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ascendtune.cli.main import main as run
    from ascendtune.core.interrupts import keep_interrupts

    signal.signal(signal.SIGINT, at_interrupt)
    keep_interrupts()
    try:
        run()
    finally:
        if is_heeded:
            # Libraries clear up when the interpreter ends; a further Ctrl-C must not show where.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
