"""A temporal convolutional network: residual blocks of dilated convolutions (Bai et al. 2018, arXiv:1803.01271)."""

from torch import Tensor, nn
from torch.nn import functional as F

from tandem.models import Shape


class Block(nn.Module):
    def __init__(self, channels: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(channels, channels, 3, padding="same", dilation=dilation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = self.dropout(F.gelu(self.convolution(x)))
        return (x + hidden).masked_fill(~mask, 0.0)


class TCN(nn.Module):
    def __init__(self, shape: Shape, channels: int, num_blocks: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.per_step = shape.per_step
        self.embedding = nn.Conv1d(shape.num_features, channels, 1)
        self.blocks = nn.ModuleList(Block(channels, 2**number, dropout) for number in range(num_blocks))
        self.head = nn.Linear(channels, shape.num_outputs)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        real = mask.unsqueeze(1)  # (B, 1, T)
        x = self.embedding(values.transpose(1, 2)).masked_fill(~real, 0.0)
        for block in self.blocks:
            x = block(x, real)
        if self.per_step:
            return self.head(x.transpose(1, 2))
        return self.head(x.sum(dim=2) / mask.sum(dim=1, keepdim=True))
