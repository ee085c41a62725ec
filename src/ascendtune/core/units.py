"""Numbers as people read them. Stored values keep their base unit (bytes, seconds); only output is rounded."""

from __future__ import annotations


def format_bytes(count: float | None) -> str:
    """1536 -> '1.5 KiB'; None -> '-'."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_count(count: float | None) -> str:
    """14_500_000 -> '14.5M'; 812 -> '812'; None -> '-'."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("", "k", "M", "B"):
        if abs(value) < 999.5 or unit == "B":
            text = f"{value:.3g}" if unit else f"{value:.0f}"
            return text + unit
        value /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float | None) -> str:
    """0.8 -> '0.8 s'; 75 -> '1:15'; 7300 -> '2:01:40'; 180000 -> '2 d 2:00:00'; None -> '-'."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours}:{minutes:02d}:{rest:02d}" if days else f"{hours}:{minutes:02d}:{rest:02d}"


def count_of(number: int, singular: str, plural: str | None = None) -> str:
    """count_of(1, 'row') -> '1 row'; count_of(7473, 'row') -> '7,473 rows'."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
