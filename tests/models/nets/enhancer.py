"""Speech enhancement frame by frame: an LSTM whose states go in and out, a mask sigmoid(net(x)) * x, outputs in a dict."""

import torch
from torch import nn

BINS, HIDDEN = 33, 24


class Enhancer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(BINS)
        self.lstm = nn.LSTM(BINS, HIDDEN, batch_first=True)
        self.mask = nn.Linear(HIDDEN, BINS)

    def forward(self, magnitude, h, c):
        y, (h, c) = self.lstm(self.norm(magnitude), (h, c))
        return {"clean": torch.sigmoid(self.mask(y)) * magnitude, "h": h, "c": c}


def spectra(count, frames=12):
    """A harmonic voice with noise on top; only the voice is wanted."""
    pitch = torch.randint(3, 7, (count, 1, 1))
    voice = (torch.arange(BINS) % pitch == 0) * torch.rand(count, frames, 1)
    return voice + 0.3 * torch.rand(count, frames, BINS), voice


def state(count):
    return torch.zeros(1, count, HIDDEN), torch.zeros(1, count, HIDDEN)


def make():
    torch.manual_seed(0)
    net = Enhancer()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(40):
        noisy, voice = spectra(64)
        loss = nn.functional.mse_loss(net(noisy, *state(64))["clean"], voice)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def data():
    """Batches of arguments: a piece of sound with the state that an earlier piece left."""
    torch.manual_seed(1)
    net, batches = make(), []
    for _ in range(20):
        with torch.no_grad():
            before = net(spectra(8)[0], *state(8))
        batches.append((spectra(8)[0], before["h"], before["c"]))
    return batches
