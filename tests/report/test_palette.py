"""The colours can be told apart: on their background, and by colour-blind readers.

Matrices: Machado, Oliveira and Fernandes (2009), severity 1.0, in linear RGB.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from fafed.report.palette import DARK, LIGHT, Theme, style

Colour = NDArray[np.float64]
EYES = {
    "typical": np.eye(3),
    "protanopia": np.array(
        [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]
    ),
    "deuteranopia": np.array(
        [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]
    ),
    "tritanopia": np.array(
        [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]
    ),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(code: str) -> Colour:
    srgb = np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: Colour) -> Colour:
    x, y, z = np.cbrt(XYZ @ rgb.clip(0, 1) / XYZ.sum(axis=1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(XYZ[1] @ linear(code)) for code in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_contrast_with_the_background(theme: Theme) -> None:
    assert all(contrast(hue, theme.background) >= 3 for hue in theme.hues)
    for text in (theme.ink, theme.muted):
        for behind in (theme.background, theme.panel):
            assert contrast(text, behind) >= 4.5


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("eye", EYES)
def test_hues_stay_apart(theme: Theme, eye: str) -> None:
    seen = [lab(EYES[eye] @ linear(hue)) for hue in theme.hues]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15


def test_eighteen_curves_all_look_different() -> None:
    assert len({style(i) for i in range(18)}) == 18
    assert style(18) == style(0)
