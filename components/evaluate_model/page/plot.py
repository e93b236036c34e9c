"""A small plot in SVG: two axes, marks in the data's units. Colours come from the page's CSS."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from components.evaluate_model.page.elements import Markup, element, join
from components.evaluate_model.page.numbers import short, ticks

Range = tuple[float, float]

_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 12, 12, 42


class Plot:
    """Axes with marks on them, drawn in the order of the calls."""

    def __init__(
        self,
        *,
        x: Range,
        y: Range,
        x_label: str,
        y_label: str,
        width: int = 460,
        height: int = 340,
        x_ticks: Sequence[float] | None = None,
        y_ticks: Sequence[float] | None = None,
    ) -> None:
        self._x = x if x[1] > x[0] else (x[0] - 0.5, x[0] + 0.5)
        self._y = y if y[1] > y[0] else (y[0] - 0.5, y[0] + 0.5)
        self._width, self._height = width, height
        self._marks: list[Markup] = []
        self._axes(x_label, y_label, x_ticks, y_ticks)

    def px(self, x: float) -> float:
        """Pixel of a value on the horizontal axis."""
        part = (min(max(x, self._x[0]), self._x[1]) - self._x[0]) / (self._x[1] - self._x[0])
        return _LEFT + part * (self._width - _LEFT - _RIGHT)

    def py(self, y: float) -> float:
        """Pixel of a value on the vertical axis."""
        part = (min(max(y, self._y[0]), self._y[1]) - self._y[0]) / (self._y[1] - self._y[0])
        return self._height - _BOTTOM - part * (self._height - _TOP - _BOTTOM)

    def add(self, *marks: Markup) -> None:
        """Draw elements that are in pixels already."""
        self._marks += marks

    def line(self, xs: Sequence[float], ys: Sequence[float], class_: str = "a") -> None:
        """A polyline."""
        points = " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in zip(xs, ys, strict=True))
        self.add(element("polyline", points=points, class_=f"line {class_}"))

    def area(self, xs: Sequence[float], ys: Sequence[float], class_: str = "a") -> None:
        """The area between a polyline and the horizontal axis."""
        points = [f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in zip(xs, ys, strict=True)]
        base = f"{self.py(self._y[0]):.1f}"
        points = [f"{self.px(xs[0]):.1f},{base}", *points, f"{self.px(xs[-1]):.1f},{base}"]
        self.add(element("polygon", points=" ".join(points), class_=f"area {class_}"))

    def point(self, x: float, y: float, text: str, class_: str = "a", radius: float = 4) -> None:
        """A dot with a text that shows on hovering."""
        self.add(
            element(
                "circle",
                element("title", text),
                cx=self.px(x),
                cy=self.py(y),
                r=radius,
                class_=f"dot {class_}",
            )
        )

    def bar(self, x: Range, y: Range, text: str, class_: str = "a") -> None:
        """A filled rectangle between two values of each axis."""
        left, right = self.px(x[0]), self.px(x[1])
        top, bottom = self.py(y[1]), self.py(y[0])
        self.add(
            element(
                "rect",
                element("title", text),
                x=left,
                y=top,
                width=max(right - left, 0.5),
                height=max(bottom - top, 0.0),
                class_=f"bar {class_}",
            )
        )

    def segment(self, start: Range, end: Range, class_: str = "guide") -> None:
        """A straight line between two points."""
        self.add(
            element(
                "line",
                x1=self.px(start[0]),
                y1=self.py(start[1]),
                x2=self.px(end[0]),
                y2=self.py(end[1]),
                class_=class_,
            )
        )

    def marker(self, x: float, label: str, text: str) -> None:
        """A vertical line with a short label at its top and a text on hovering."""
        at = self.px(x)
        side = "end" if at > self._width * 0.8 else "start"
        self.add(
            element(
                "g",
                element("title", text),
                element("line", x1=at, x2=at, y1=_TOP, y2=self._height - _BOTTOM, class_="event"),
                element(
                    "text",
                    label,
                    x=at + (-4 if side == "end" else 4),
                    y=_TOP + 10,
                    text_anchor=side,
                    class_="event-label",
                ),
            )
        )

    def svg(self, title: str) -> Markup:
        """The drawing; `title` says in words what it shows."""
        return element(
            "svg",
            element("title", title),
            *self._marks,
            viewBox=f"0 0 {self._width} {self._height}",
            role="img",
            class_="plot",
        )

    def _axes(
        self,
        x_label: str,
        y_label: str,
        x_ticks: Sequence[float] | None,
        y_ticks: Sequence[float] | None,
    ) -> None:
        bottom, right = self._height - _BOTTOM, self._width - _RIGHT
        for value in ticks(*self._y) if y_ticks is None else y_ticks:
            at = self.py(value)
            self.add(
                element("line", x1=_LEFT, x2=right, y1=at, y2=at, class_="grid"),
                _text(short(value), _LEFT - 6, at + 4, text_anchor="end"),
            )
        for value in ticks(*self._x) if x_ticks is None else x_ticks:
            at = self.px(value)
            self.add(
                element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="tick"),
                _text(short(value), at, bottom + 17, text_anchor="middle"),
            )
        middle = (_TOP + bottom) / 2
        self.add(
            element("line", x1=_LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"),
            _text(
                x_label, (_LEFT + right) / 2, self._height - 6, text_anchor="middle", class_="name"
            ),
            _text(
                y_label,
                11,
                middle,
                text_anchor="middle",
                class_="name",
                transform=f"rotate(-90 11 {middle:.0f})",
            ),
        )


def legend(*entries: tuple[str, str]) -> Markup:
    """Names of the marks: pairs of CSS class and text."""
    return element(
        "ul",
        *(
            element("li", element("span", class_=f"key {class_}", aria_hidden="true"), text)
            for class_, text in entries
        ),
        class_="legend",
    )


def figure_of(drawing: Markup, caption: Any, *more: Any) -> Markup:
    """A drawing with its caption above."""
    return element("figure", element("figcaption", caption), drawing, *more)


def thinned(count: int, most: int) -> list[int]:
    """Indices of at most `most` of `count` items, the first and the last included."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def spans(edges: Sequence[float]) -> list[Range]:
    """Pairs of neighbours."""
    return list(pairwise(edges))


def _text(content: str, x: float, y: float, **attributes: Any) -> Markup:
    return element("text", join(content), x=x, y=y, **attributes)
