"""HTML and SVG elements as text that is escaped once, where it is made."""

import html
from typing import Any


class Markup(str):
    """Text that is markup already."""


def element(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element.

    Args:
        name: of the element.
        *children: Markup stays as it is, None is left out, anything else is escaped.
        **attributes: `class_` stands for class, `aria_label` for aria-label; None and False leave
            an attribute out, True gives it no value.
    """
    opened = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if not children and name in _VOID:
        return Markup(f"<{opened}>")
    return Markup(f"<{opened}>{join(*children)}</{name}>")


def join(*children: Any) -> Markup:
    """Children one after the other."""
    return Markup("".join(_text(child) for child in children if child is not None))


_VOID = frozenset({"meta", "br", "hr", "link", "col"})


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(_text(value), quote=True)}"'


def _text(child: Any) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, float):
        child = f"{child:.2f}".rstrip("0").rstrip(".")  # coordinates: a hundredth of a pixel
    return html.escape(str(child), quote=False)
