"""Training loops as a workload's own file has them, right and wrong, for tests/training/test_loop.py."""

import random

import numpy as np
import torch
from torch import nn

from tandem.training.optimizer import learning_rates


def exact(run, model, train, val):
    """The built-in steps to the bit. What it draws before the first epoch changes nothing."""
    torch.randn(3, device=run.device)
    rates = learning_rates(run.params, run.params.epochs * len(train))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=run.params.weight_decay, fused=True)
    run.state(optimizer=optimizer)
    for number in run.remaining_epochs():
        with run.epoch() as epoch:
            total = torch.zeros((), device=run.device)
            of_epoch = rates[(number - 1) * len(train) : number * len(train)].tolist()
            for batch, rate in zip(train, of_epoch, strict=True):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                loss = run.loss(model(*batch.inputs()), batch)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), run.params.max_grad_norm)
                optimizer.step()
                total += loss.detach() * len(batch)
            epoch.log(train_loss=total / train.num_sequences, learning_rate=rate)


def restless(run, model, train, val):
    """It draws from every generator, also between epochs, and has more than one state."""
    noise = torch.randn(4, device=run.device) * random.random()
    optimizer = torch.optim.SGD(model.parameters(), lr=run.params.learning_rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1.0)
    average = torch.optim.swa_utils.AveragedModel(model)
    run.state(optimizer=optimizer, scheduler=scheduler, average=average)
    for _ in run.remaining_epochs():
        with run.epoch() as epoch:
            total = torch.zeros((), device=run.device)
            for batch in train:
                values = batch.values + 0.1 * noise + 0.01 * torch.randn(4) * random.random() * np.random.rand()
                loss = run.loss(model(values, batch.mask), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average.update_parameters(model)
                total += loss.detach() * len(batch)
            with torch.no_grad():
                model.head.bias += 0.01 * average.module.head.bias
            epoch.log(train_loss=total / train.num_sequences, learning_rate=optimizer.param_groups[0]["lr"])
        scheduler.step(epoch.val_loss)
        torch.randn(2)


def hasty(run, model, train, val):
    """It takes two batches of an epoch, as someone does who forgets a `break`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=run.params.learning_rate)
    run.state(optimizer=optimizer)
    for _ in run.remaining_epochs():
        with run.epoch() as epoch:
            for number, batch in enumerate(train, 1):
                loss = run.loss(model(*batch.inputs()), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if number == 2:
                    break
            epoch.log(train_loss=loss.detach(), learning_rate=optimizer.param_groups[0]["lr"])


def unseen(run, model, train, val):
    """It takes its sequences from the tensors, so nobody can count them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=run.params.learning_rate)
    run.state(optimizer=optimizer)
    for _ in run.remaining_epochs():
        with run.epoch() as epoch:
            loss = model(train.tensors["values"], train.tensors["mask"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            epoch.log(train_loss=loss.detach(), learning_rate=0.1)


def log(epoch):
    epoch.log(train_loss=1.0, learning_rate=0.0)


def returns_early(run, model, train, val):
    with run.epoch() as epoch:
        log(epoch)


def runs_too_many(run, model, train, val):
    while True:
        with run.epoch() as epoch:
            log(epoch)


def nests(run, model, train, val):
    with run.epoch(), run.epoch():
        pass


def goes_on_after_an_error(run, model, train, val):
    for _ in run.remaining_epochs():
        try:
            with run.epoch():
                raise KeyError
        except KeyError:
            pass


def logs_nothing(run, model, train, val):
    with run.epoch():
        pass


def reads_batches_outside(run, model, train, val):
    next(iter(train))


def registers_late(run, model, train, val):
    with run.epoch() as epoch:
        log(epoch)
    run.state(model=model)


def registers_a_number(run, model, train, val):
    run.state(step=3)


class Foreign:
    def state_dict(self):
        return {"path": np.float64(1.0)}

    def load_state_dict(self, state):
        pass


def registers_what_cannot_be_saved(run, model, train, val):
    run.state(foreign=Foreign())


def registers_another_name(run, model, train, val):
    name = "first" if run.remaining_epochs()[0] == 1 else "second"
    run.state(**{name: nn.Linear(1, 1)})
    for _ in run.remaining_epochs():
        with run.epoch() as epoch:
            log(epoch)


def raises(run, model, train, val):
    raise ValueError("expected 3 and received 4")


def runs_out_of_memory(run, model, train, val):
    with run.epoch():
        raise torch.OutOfMemoryError("CUDA out of memory")


def swallows_everything(run, model, train, val):
    for _ in run.remaining_epochs():
        try:
            with run.epoch() as epoch:
                log(epoch)
        except BaseException:
            pass
