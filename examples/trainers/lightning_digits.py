# SPDX-License-Identifier: Apache-2.0
"""Digits trained by Lightning: five epochs in float, three as integers; writes lightning_digits.onnx and proves it.

python examples/trainers/lightning_digits.py
"""

import lightning
import torch
from digits_data import DigitsNet, picture, prove, training_data

import linger

lightning.seed_everything(0, verbose=False)
model = linger.init(linger.trace_layers(DigitsNet(), picture()))  # the transformation
schedule = linger.Schedule(model, float_steps=5 * len(data := training_data()), freeze_ranges=7 * len(data))


class Digits(lightning.LightningModule):
    """The network, its loss and its optimizer."""

    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        adam = torch.optim.AdamW(self.parameters(), lr=4e-3)
        return [adam], [torch.optim.lr_scheduler.CosineAnnealingLR(adam, 8)]


callback = lightning.pytorch.callbacks.LambdaCallback(on_train_batch_end=lambda *_: schedule.step())  # the callback
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
lightning.Trainer(max_epochs=8, callbacks=[callback], accelerator="cpu", **quiet).fit(Digits(), data)
prove(model, "lightning_digits.onnx")
