"""A small convolutional network for `model=torch model.module=my_net.py:Net` (docs/torch.md)."""

from torch import nn


class Net(nn.Module):
    """Two convolutions with ReLU, average pooling and a dense layer."""

    def __init__(self, outputs, channels=16):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.fc = nn.Linear(channels * 4, outputs)

    def forward(self, x):
        x = self.conv1(x).relu()
        x = self.conv2(x).relu()
        x = nn.functional.avg_pool2d(x, 4)
        return self.fc(x.flatten(1))
