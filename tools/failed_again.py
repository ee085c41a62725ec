"""Run the few tests that failed beside others once more, alone.

Hundreds of tests start processes that wait for each other. On a machine that is busy with the rest of the suite one of
them may exceed a limit that a user's machine keeps. What fails alone too is a fault; what passes alone is named, so
that it gets mended. More failures than a few are a fault in any case.

    python tools/failed_again.py EXIT_CODE_OF_PYTEST
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_TESTS_FAILED = 1
_MOST = 5


def main() -> int:
    exit_code = int(sys.argv[1])
    if exit_code != _TESTS_FAILED or not _FAILED.is_file():
        return exit_code
    failed = list(json.loads(_FAILED.read_text()))
    if not 1 <= len(failed) <= _MOST or not all("::" in each for each in failed):
        return exit_code
    print(f"{len(failed)} failed beside other tests; once more, alone:", flush=True)
    again = int(pytest.main(["-n", "0", *failed]))
    if again == 0:
        print("passed alone, to be made independent of the load of the machine:", *failed, sep="\n  ")
    return again


if __name__ == "__main__":
    sys.exit(main())
