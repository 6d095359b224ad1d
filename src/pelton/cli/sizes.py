"""Amounts of memory for people."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def show_bytes(count: float) -> str:
    """`1.5 GiB`, `512 MiB`: three digits at most before the unit."""
    exponent = 0
    while count >= 1000 and exponent < len(_UNITS) - 1:
        count /= 1024
        exponent += 1
    digits = 0 if count >= 100 or exponent == 0 else 1
    return f"{count:.{digits}f} {_UNITS[exponent]}"
