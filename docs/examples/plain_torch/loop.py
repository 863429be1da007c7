"""A training loop in plain PyTorch. It takes the same steps as Tandem's own loop with `schedule: one-cycle`."""

import torch
from torch import nn


def train(run, model, train, val):
    params = run.params
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=params.weight_decay, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, params.learning_rate, total_steps=params.epochs * len(train) + 1, cycle_momentum=False
    )
    run.state(optimizer=optimizer, scheduler=scheduler)
    for _ in run.remaining_epochs():
        with run.epoch() as epoch:
            total = torch.zeros((), device=run.device)
            for batch in train:
                optimizer.zero_grad()
                with run.autocast():
                    outputs = model(*batch.inputs())
                loss = run.loss(outputs, batch)
                loss.backward()
                if params.max_grad_norm:
                    nn.utils.clip_grad_norm_(model.parameters(), params.max_grad_norm)
                optimizer.step()
                learning_rate = optimizer.param_groups[0]["lr"]
                scheduler.step()
                total += loss.detach() * len(batch)  # `.item()` would wait for the device in every step
            epoch.log(train_loss=total / train.num_sequences, learning_rate=learning_rate)
