"""The command line: reads arguments and prints results. Only this room prints."""
