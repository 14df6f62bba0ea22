"""Sizes and durations as people read them."""


def human_bytes(size: float) -> str:
    """Return a size such as ``"12.3 kB"`` (1 kB = 1,000 bytes)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.95:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Return a duration such as ``"3.24 ms"``, ``"4.5 s"`` or ``"2 min 05 s"``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
