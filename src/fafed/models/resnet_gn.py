"""Residual networks for small images (He et al., CVPR 2016, https://arxiv.org/abs/1512.03385).

GroupNorm takes the place of BatchNorm, whose statistics do not fit clients that differ
(https://arxiv.org/abs/1910.00189).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from fafed.errors import ConfigError
from fafed.models.options import positive


class Block(nn.Module):
    """Two convolutions of 3 x 3, and the way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(groups, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(groups, outputs)
        self.around: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.around = nn.Sequential(around, nn.GroupNorm(groups, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.around(x))


class ResNetGN(nn.Sequential):
    """(b, 3, h, w) -> (b, classes).

    `blocks` has the number of blocks in each stage. Every stage after the first halves the image
    and doubles the width. The default has 8 layers and 78,042 parameters. ResNet-18 has
    blocks = [2, 2, 2, 2] and width = 64. With `stride` = 2 the first convolution halves the image,
    and all layers take a quarter of the work.
    """

    def __init__(
        self,
        blocks: Sequence[int] = (1, 1, 1),
        width: int = 16,
        classes: int = 10,
        groups: int = 2,
        stride: int = 1,
    ) -> None:
        positive("ResNetGN", width=width, classes=classes, groups=groups, stride=stride)
        if not isinstance(blocks, Sequence) or not blocks:
            raise ConfigError(f"ResNetGN.blocks must be a list of numbers, got {blocks!r}")
        for number in blocks:
            positive("ResNetGN", blocks=number)
        if width % groups:
            raise ConfigError(
                f"ResNetGN.width must be a multiple of groups = {groups}, got {width}"
            )
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, stride, 1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
        ]
        before = width
        for stage, number in enumerate(blocks):
            after = width * 2**stage
            for i in range(number):
                layers.append(Block(before, after, 2 if stage and not i else 1, groups))
                before = after
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
