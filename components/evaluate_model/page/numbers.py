"""Numbers as people read them."""

import datetime
import math
from collections.abc import Sequence


def figure(value: float | None, digits: int = 4) -> str:
    """A metric: four decimals below ten, fewer above, a dash where there is none."""
    if value is None:
        return "–"
    if value == 0 or 1e-4 <= abs(value) < 10:
        text = f"{value:.{digits}f}"
    elif abs(value) < 1e-4 or abs(value) >= 1e7:
        text = f"{value:.3g}"
    else:
        text = f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def change(value: float | None) -> str:
    """A difference with its sign."""
    if value is None:
        return "–"
    return ("+" if value > 0 else "−" if value < 0 else "±") + figure(abs(value))


def short(value: float) -> str:
    """A tick's label."""
    if value == 0:
        return "0"
    if abs(value) >= 1e9 or abs(value) < 1e-3:
        return f"{value:.0e}".replace("e+0", "e").replace("-0", "-").replace("-", "−")
    for size, unit in ((1e6, "M"), (1e4, "k"), (0, "")):
        if abs(value) >= size:
            scaled = value / {"M": 1e6, "k": 1e3, "": 1}[unit]
            text = f"{scaled:.10f}".rstrip("0").rstrip(".")
            return (text + unit).replace("-", "−")
    return ""


def share(value: float | None) -> str:
    """A part of the whole in per cent."""
    return "–" if value is None else f"{value:.1%}"


def seconds(value: float) -> str:
    """A length of time."""
    if value < 90:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def moment(value: float) -> str:
    """A point in time."""
    return f"{datetime.datetime.fromtimestamp(value, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def ticks(low: float, high: float, count: int = 5) -> Sequence[float]:
    """Round numbers in [low, high], about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
