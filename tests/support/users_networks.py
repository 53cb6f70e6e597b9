"""Twelve networks as people write them: sums with the input, caches, two inputs, two outputs, norms of their own, float ops."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def images(count=96, channels=3, size=16, seed=0):
    """Smooth random images, as photographs are: low frequencies and a little noise."""
    draw = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 4, 4, generator=draw)
    noise = torch.rand(count, channels, size, size, generator=draw)
    return F.interpolate(coarse, size=(size, size), mode="bilinear") * 0.9 + 0.1 * noise


def sequences(count=96, steps=12, width=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.cumsum(torch.randn(count, steps, width, generator=draw), 1) / math.sqrt(steps)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


class Residual(nn.Module):
    """1. A residual classifier with functional ReLUs and a mean over pixels."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(3, 8), Block(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, image):
        return self.head(self.blocks(image).mean((2, 3)))


class Mobile(nn.Module):
    """2. Depthwise convolutions, ReLU6, dropout, a squeeze-and-excitation gate."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.point = nn.Conv2d(8, 16, 1)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(16, 5)

    def forward(self, x):
        x = self.depth(self.stem(x))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        x = self.point(x * gate)
        return self.head(self.drop(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)))


class Denoiser(nn.Module):
    """3. Image to image: the network computes what is added to its input."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, x):
        return x + self.body(x)


class Gate(nn.Module):
    """4. A mask over the input: sigmoid(net(x)) * x."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Conv2d(3, 8, 3, 2, 1)
        self.decode = nn.ConvTranspose2d(8, 3, 2, 2)

    def forward(self, x):
        return torch.sigmoid(self.decode(F.relu(self.encode(x)))) * x


class TwoInputs(nn.Module):
    """5. Two inputs: features of one are added to the other, and joined."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 4)

    def forward(self, query, memory):
        joined = torch.cat([torch.tanh(self.left(query)) + memory, F.relu(self.right(memory))], -1)
        return self.head(joined)


class Words(nn.Module):
    """6. Token ids: embedding, LSTM, the last state."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        out, _ = self.lstm(self.embed(tokens))
        return self.head(out[:, -1])


class Cached(nn.Module):
    """7. One step of attention with a cache of keys and values."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, keys, values):
        keys = torch.cat([keys, self.k(x)], 1)
        values = torch.cat([values, self.v(x)], 1)
        weights = torch.softmax(self.q(x) @ keys.transpose(1, 2) / math.sqrt(8), -1)
        return self.out(weights @ values), keys, values


class Patches(nn.Module):
    """8. A small vision transformer: class token, positions, torch's own encoder layer."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16) * 0.1)
        self.position = nn.Parameter(torch.randn(1, 17, 16) * 0.1)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu", norm_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.layer(x))[:, 0])


class Detector(nn.Module):
    """9. One head at two levels, outputs in a dict."""

    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.head = nn.Conv2d(8, 6, 1)

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(fine)
        fine = fine + F.interpolate(coarse, scale_factor=2, mode="nearest")
        return {"fine": torch.sigmoid(self.head(fine)), "coarse": torch.sigmoid(self.head(coarse))}


class Autoencoder(nn.Module):
    """10. ELU and softplus: ops that linger may have to compute in float."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 4, 2, 1)
        self.mid = nn.Conv2d(8, 8, 3, 1, 1)
        self.up = nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x):
        return F.softplus(self.up(F.relu(self.mid(F.elu(self.down(x))))))


class LayerNorm2d(nn.Module):
    """A norm over channels by hand."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-6) * self.weight[:, None, None] + self.bias[:, None, None]


class Next(nn.Module):
    """11. A block with a hand-written LayerNorm2d and GELU."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8)
        self.depth, self.wide, self.narrow = (
            nn.Conv2d(8, 8, 3, 1, 1, groups=8),
            nn.Conv2d(8, 32, 1),
            nn.Conv2d(32, 8, 1),
        )
        self.scale = nn.Parameter(torch.full((8, 1, 1), 0.5))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.scale * self.narrow(F.gelu(self.wide(self.norm(self.depth(x)))))
        return self.head(x.mean((-2, -1)))


class Voice(nn.Module):
    """12. Conv1d, a GRU and an optional keyword."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU())
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, frames, gain=1.0):
        y = self.conv((frames * gain).transpose(1, 2)).transpose(1, 2)
        out, state = self.gru(y)
        return torch.log_softmax(self.head(out), -1), state


def _batches(*arrays):
    return [tuple(a[i : i + 16] for a in arrays) for i in range(0, len(arrays[0]), 16)]


def tokens():
    return torch.randint(0, 20, (96, 10), generator=torch.Generator().manual_seed(3))


# name -> class, what the user's script passes as data
def data_residual():
    return DataLoader(TensorDataset(images(), torch.arange(96) % 5), batch_size=16)


def data_mobile():
    return images()


def data_denoiser():
    return images().numpy()


def data_gate():
    return list(images().split(16))


def data_twoinputs():
    return {"query": sequences()[:, 0], "memory": sequences(seed=1)[:, 0]}


def data_words():
    return tokens()


def data_cached():
    return _batches(sequences(steps=1), sequences(steps=6, seed=1), sequences(steps=6, seed=2))


def data_patches():
    return (images(),)


def data_detector():
    return DataLoader(TensorDataset(images()), batch_size=32)


def data_autoencoder():
    return images()


def data_next():
    return [(batch, torch.zeros(len(batch))) for batch in images().split(16)]


def data_voice():
    return ((sequences(),), {"gain": 0.5})


NETS = (Residual, Mobile, Denoiser, Gate, TwoInputs, Words, Cached, Patches, Detector, Autoencoder, Next, Voice)


def make(kind):
    torch.manual_seed(1)
    net = kind()
    with torch.no_grad():  # batch norms with statistics that are not those of a new network
        for layer in net.modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
                layer.running_mean.uniform_(-0.2, 0.2)
                layer.running_var.uniform_(0.5, 1.5)
    return net.eval()


def __getattr__(name):
    for kind in NETS:
        if name == f"make_{kind.__name__.lower()}":
            return lambda: make(kind)
    raise AttributeError(name)
