"""Train one workload's model on one device: `python -m tandem.stage train WORKLOAD DEVICE SEED`.

Reads the packed splits and their plan, the hardware file and params.yaml. Writes two folders to
results/runs/<workload>/<device>/train/, with a folder for the seed in each. `result` has the same bytes whenever the
training is reproduced: the weights, `model.json`, `history.csv` and `train.json`. `measured` has the times:
`timings.csv`, and `timing.json`, which also says where, when and on what they were measured. It also has `mlflow.json`,
the training as MLflow gets it.

The seed is the first one of params.yaml. The stage `replicate` runs this module for the other seeds, with one or more
seeds as arguments, and then nothing is measured. For several workers (device 2xcpu), tandem/training/launcher.py starts
the processes: the first one runs `main`, the others tandem/stage/other_worker.py.
"""

from tandem.runs.inputs import Inputs
from tandem.runs.record import Record
from tandem.stage.recorder import Recorder
from tandem.stage.start import locked_training, open_context, prepare
from tandem.stop_signals import GracefulStop
from tandem.terminal.command import sentence_of
from tandem.tracking.results import write_results
from tandem.tracking.run_info import write_run_info
from tandem.training.context import RunContext
from tandem.training.opening import open_trainer, stop_on_out_of_memory
from tandem.training.workers import Workers, process_group


def main(workload: str, device: str, *seeds: str) -> None:
    """Train with each seed. A replicate that fails does not stop the others; its error is raised at the end."""
    contexts, errors = [open_context(workload, device, int(seed)) for seed in seeds], []
    first = contexts[0]
    with process_group(device, first.num_workers, first.kind) as workers, GracefulStop() as interruption:
        for context in contexts:
            try:
                train(context, workers, interruption)
            except (ValueError, OSError) as error:
                if not context.is_replicate:
                    raise
                errors.append(f"seed {context.seed}: {sentence_of(error)}")
    if errors:
        raise ValueError("; ".join(errors))


def train(context: RunContext, workers: Workers, interruption: GracefulStop) -> None:
    """Train to the last epoch, from a checkpoint if there is one, and write the results."""
    inputs = Inputs(context.workload, context.requested, context.seed, context.summary.get("table_sha256"))
    with locked_training(context, inputs, workers) as (checkpoint, state, run_dir):
        record, trainer = Record(**state["record"]), open_trainer(context, state["trainer"], workers)
        with stop_on_out_of_memory(trainer):
            context = context.with_evaluate(record.evaluate)
            prepare(context, trainer, record, workers)
            write_run_info(context, trainer, record, inputs.values, run_dir)
            if record.history:  # the run directory may have been removed, or the process killed before it wrote these
                run_dir.save_epochs(record)
            if not record.is_finished:
                recorder = Recorder(context, trainer, record, inputs, checkpoint, run_dir, interruption)
                with recorder.recording():
                    trainer.train_epochs(recorder.record_epoch)
                workers.close()  # the other workers leave their process group now, and do not wait for the results
            write_results(context, trainer, record, inputs.values, run_dir)
