"""A training loop with Lightning's Trainer (the package `lightning`). A callback marks the epochs."""

from contextlib import ExitStack

import lightning
import torch


class Network(lightning.LightningModule):
    def __init__(self, run, model, steps_per_epoch):
        super().__init__()
        self.run, self.model, self.steps_per_epoch = run, model, steps_per_epoch

    def training_step(self, batch, batch_index):
        loss = self.run.loss(self.model(*batch.inputs()), batch)
        self.total += loss.detach() * len(batch)
        return loss

    def configure_optimizers(self):
        params = self.run.params
        optimizer = torch.optim.AdamW(self.model.parameters(), weight_decay=params.weight_decay, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, params.learning_rate, total_steps=params.epochs * self.steps_per_epoch + 1, cycle_momentum=False
        )
        self.run.state(optimizer=optimizer, scheduler=scheduler)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def transfer_batch_to_device(self, batch, device, dataloader_index):
        return batch  # Tandem has put it there


class Epochs(lightning.Callback):
    """Enters `run.epoch()` when an epoch of Lightning begins, and leaves it when the epoch's steps are done."""

    def __init__(self, run, num_sequences):
        self.run, self.num_sequences, self.stack = run, num_sequences, ExitStack()

    def on_train_epoch_start(self, trainer, network):
        self.epoch = self.stack.enter_context(self.run.epoch())
        network.total = torch.zeros((), device=self.run.device)

    def on_train_epoch_end(self, trainer, network):
        learning_rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.epoch.log(train_loss=network.total / self.num_sequences, learning_rate=learning_rate)
        self.stack.close()


def train(run, model, train, val):
    trainer = lightning.Trainer(
        accelerator="gpu" if run.device.type == "cuda" else "cpu",
        devices=1,
        max_epochs=len(run.remaining_epochs()),
        precision={"bf16": "bf16-mixed", "fp16": "16-mixed"}.get(run.params.precision, "32-true"),
        gradient_clip_val=run.params.max_grad_norm or None,
        callbacks=[Epochs(run, train.num_sequences)],
        # Tandem has its own checkpoints, records and progress.
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Network(run, model, len(train)), train)
