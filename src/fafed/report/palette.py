"""Colours: six hues that colour-blind readers can distinguish, on white and on dark.

The tests check that the contrast with the background is at least 3, and that the hues differ under
simulated protanopia, deuteranopia and tritanopia. The seventh curve has the first hue with another
dash.
"""

from __future__ import annotations

from dataclasses import dataclass

DASHES = ("solid", "dash", "dot")


@dataclass(frozen=True)
class Theme:
    background: str
    panel: str  # behind switches and hover boxes
    raised: str  # the chosen part of a switch
    ink: str
    muted: str
    grid: str
    hues: tuple[str, ...]

    def css(self) -> str:
        """The theme as CSS custom properties; the page's script reads them too."""
        names = ("background", "panel", "raised", "ink", "muted", "grid")
        plain = "".join(f"--{name}:{getattr(self, name)};" for name in names)
        return plain + "".join(f"--hue-{i}:{hue};" for i, hue in enumerate(self.hues))


LIGHT = Theme(
    background="#ffffff",
    panel="#f0f2f4",
    raised="#ffffff",
    ink="#1b1f27",
    muted="#5c6470",
    grid="#e3e6ea",
    hues=("#1468c7", "#b5400f", "#17a286", "#c95bb0", "#b39100", "#2f3542"),
)
DARK = Theme(
    background="#14171c",
    panel="#1f242b",
    raised="#3a424d",
    ink="#eceff4",
    muted="#a3adba",
    grid="#2d343d",
    hues=("#5aaef8", "#ee6a3a", "#4fdcae", "#c965c4", "#f2da62", "#dfe3ea"),
)


def style(index: int) -> tuple[int, str]:
    """Hue number and dash of the curve with this index."""
    hues = len(LIGHT.hues)
    return index % hues, DASHES[index // hues % len(DASHES)]
