"""The parsed `train.model` of params.yaml for each built-in network, as tests write it."""

from tandem.parts import TeacherForcing, built_in

GRU, Transformer, ConvGRU, Seq2Seq, Rocket, Hybrid = (
    built_in("model")[name].schema for name in ("gru", "transformer", "conv_gru", "seq2seq", "rocket", "hybrid")
)
__all__ = ["GRU", "ConvGRU", "Hybrid", "Rocket", "Seq2Seq", "TeacherForcing", "Transformer"]
