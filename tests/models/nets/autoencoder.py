"""A denoising autoencoder: ELUs, and the network computes what is added to its input."""

import torch
from torch import nn


class DenoisingAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ELU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ELU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 3, stride=2, padding=1, output_padding=1),
            nn.ELU(),
            nn.ConvTranspose2d(16, 1, 3, stride=2, padding=1, output_padding=1),
        )

    def forward(self, noisy):
        return noisy + self.decoder(self.encoder(noisy))


def blobs(count):
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    center = torch.rand(count, 2, 1, 1) * 10 + 3
    clean = torch.exp(-((x - center[:, 0]) ** 2 + (y - center[:, 1]) ** 2) / 12)[:, None]
    return clean, clean + 0.2 * torch.randn_like(clean)


def make():
    torch.manual_seed(0)
    net = DenoisingAutoencoder()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(80):
        clean, noisy = blobs(64)
        loss = nn.functional.mse_loss(net(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def data():
    torch.manual_seed(1)
    return blobs(256)[1].numpy()
