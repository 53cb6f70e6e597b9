"""One step of a language model: token embedding, attention over a cache that is passed in, RMSNorm, SwiGLU."""

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, HEADS, PAST = 32, 32, 2, 7


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, past_k, past_v):
        b, t, _ = x.shape
        q, k, v = (part.view(b, t, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(WIDTH, dim=2))
        k, v = torch.cat([past_k, k], dim=2), torch.cat([past_v, v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(b, t, WIDTH)), k, v


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, token, past_k, past_v):
        x = self.embed(token)
        y, k, v = self.attention(self.norm1(x), past_k, past_v)
        x = x + y
        y = self.norm2(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.lm_head(self.norm3(x)), k, v


def cache(count, length):
    return torch.zeros(count, HEADS, length, WIDTH // HEADS)


def make():
    """The next word is this one plus three."""
    torch.manual_seed(0)
    net = Decoder()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(80):
        token = torch.randint(0, WORDS, (64, 1))
        logits, _, _ = net(token, torch.randn_like(cache(64, PAST)), torch.randn_like(cache(64, PAST)))
        loss = F.cross_entropy(logits[:, 0], (token[:, 0] + 3) % WORDS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def data():
    """Tokens with the caches of the words before them."""
    torch.manual_seed(1)
    net = make()
    tokens = torch.randint(0, WORDS, (320, 1))
    k = v = cache(320, 0)
    with torch.no_grad():
        for _ in range(PAST):
            _, k, v = net(tokens, k, v)
            tokens = (tokens + 3) % WORDS
    return tokens, k, v
