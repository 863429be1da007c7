"""The parsed `train.model` of params.yaml for each built-in network, as tests write it."""

from tandem.files import ROOT
from tandem.parts import TeacherForcing, built_in, read_component

GRU, Transformer, ConvGRU, Seq2Seq, Rocket, Hybrid, ModelSelection = (
    built_in("model")[name].schema
    for name in ("gru", "transformer", "conv_gru", "seq2seq", "rocket", "hybrid", "model_selection")
)
# The network of docs/extending.md.
TCN = read_component(
    "model", "net.py:TCN", "docs.examples.tcn.net", "TCN", ROOT / "docs" / "examples" / "tcn" / "net.py"
).schema
__all__ = ["GRU", "ConvGRU", "Hybrid", "ModelSelection", "Rocket", "Seq2Seq", "TCN", "TeacherForcing", "Transformer"]
