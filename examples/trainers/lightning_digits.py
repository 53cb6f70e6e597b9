# SPDX-License-Identifier: Apache-2.0
"""Digits trained by Lightning: five epochs in float, three as integers; writes lightning_digits.onnx and proves it.

python examples/trainers/lightning_digits.py
"""

import lightning
import torch
from digits_data import DigitsNet, picture, prove, training_data

import linger

lightning.seed_everything(0, verbose=False)
data = training_data()
model = linger.init(linger.trace_layers(DigitsNet(), picture()))  # the transformation
schedule = linger.Schedule(model, float_steps=5 * len(data), freeze_ranges=7 * len(data))


class Digits(lightning.LightningModule):
    """The network, its loss and its optimizer."""

    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=4e-3)


each_step = lightning.pytorch.callbacks.LambdaCallback(on_train_batch_end=lambda *_: schedule.step())  # the callback
plain = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
lightning.Trainer(max_epochs=8, callbacks=[each_step], enable_model_summary=False, **plain).fit(Digits(), data)
prove(model, "lightning_digits.onnx")
