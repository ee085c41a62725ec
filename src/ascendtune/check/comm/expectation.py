"""Is it as fast as it should be? Held against a figure of the user's, or the published one of the links."""

from __future__ import annotations

from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.core.errors import InputError
from ascendtune.machine.vendor.base import Peak

CODE = "bandwidth"
PEAK = "peak"
GIGA = 1e9
_SUSPICIOUS_SHARE = 0.25
"""A published peak is not reached, and may count both directions; less than a quarter is explained by neither."""


def expected_of(text: str) -> float | None:
    """`--expect`: bytes per second, or None for `peak`.

    Raises:
        InputError: neither a number above 0 nor `peak`.
    """
    if text == PEAK:
        return None
    try:
        figure = float(text)
    except ValueError:
        figure = 0.0
    if not 0 < figure < float("inf"):
        raise InputError(f"--expect {text} is not a bandwidth", remedy="write GB/s, e.g. 150, or `peak`")
    return figure * GIGA


def against_figure(busbw: float, wanted: float) -> Finding:
    """Measured and wanted bytes per second."""
    said = f"{busbw / GIGA:.3g} GB/s"
    if busbw >= wanted:
        return ok(CODE, f"{said}, as expected ({wanted / GIGA:g} GB/s)")
    return Finding(
        CODE,
        "failure",
        f"{said}, {busbw / wanted:.0%} of what is expected",
        expected=f"{wanted / GIGA:g} GB/s or more",
        remedy="`ascendtune comm bench --pairs` finds the slow link; see also `ascendtune doctor`",
    )


def against_peak(busbw: float, peak: Peak) -> Finding:
    """Measured bytes per second and what is published of the links."""
    if peak.bytes_per_second is None:
        return unknown(CODE, peak.what, remedy="say what you expect: --expect GB/s")
    share = busbw / peak.bytes_per_second
    said = f"{busbw / GIGA:.3g} GB/s, {share:.0%} of the peak of {peak.bytes_per_second / GIGA:g} GB/s ({peak.what})"
    if share >= _SUSPICIOUS_SHARE:
        return ok(CODE, said)
    return Finding(
        CODE,
        "warning",
        said,
        expected=f"{_SUSPICIOUS_SHARE:.0%} of the peak or more",
        remedy="`ascendtune comm bench --pairs` finds the slow link; see also `ascendtune doctor`",
    )
