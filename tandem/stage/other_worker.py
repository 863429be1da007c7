"""The stage `train` in one of several workers, except the first, which runs stages/train.py. It prints nothing and
writes no file.
"""

from tandem.machine.measure import sampled
from tandem.runs.inputs import read_inputs
from tandem.runs.record import Record
from tandem.stage.start import open_context
from tandem.stop_signals import StopSignals
from tandem.training.opening import open_trainer, stop_on_out_of_memory
from tandem.training.workers import process_group


def train(workload: str, device: str, seed: str) -> None:
    context = open_context(workload, device, int(seed))
    with process_group(device, context.num_workers, context.kind) as workers, StopSignals() as interruption:
        workers.require_same(read_inputs(workload, device, context.seed))
        state = workers.broadcast()
        trainer = open_trainer(context, state["trainer"], workers)
        with stop_on_out_of_memory(trainer):
            trainer.use_workers(workers)
            if Record(**state["record"]).is_finished:
                return
            workers.cpu_seconds_of_others()
            with sampled(trainer.device):  # else each epoch would start a sampler, and the first worker wait for it
                while trainer.epochs_done < context.settings.epochs:
                    trainer.train_epoch()
                    if trainer.epochs_done < context.settings.epochs and workers.any(interruption.stop_requested):
                        return  # interrupted: the first worker saves the checkpoint
            workers.cpu_seconds_of_others()
