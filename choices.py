"""What can be chosen by name: a table for each kind of choice.

A new choice is a class or function and its row here. No table needs TensorFlow, so that `--help`
answers at once; `load` imports what a row names.
"""

import importlib
from typing import NamedTuple


class Choice(NamedTuple):
    """A class or function.

    Attributes:
      target: its module and name.
      relative: of a position encoding: it acts in self-attention, not on the embedded tokens.
      scaled_dot: of a position encoding: it changes the scaled product of Q and K.
      maxlen_power: of a position encoding: it ends at maxlen**maxlen_power; 0: it has no end.
      even: of a position encoding: the size that must be even; "" for none.
      parameters: of an attention function: the shapes of its parameters by name, in letters.
      softmax: of an attention function: weights are the softmax of the scores, or the scores.
    """

    target: str
    relative: bool = False
    scaled_dot: bool = False
    maxlen_power: int = 0
    even: str = ""
    parameters: dict = {}
    softmax: bool = True

    def load(self):
        """Import the class or function."""
        module, _, name = self.target.rpartition(".")
        return getattr(importlib.import_module(module), name)


POSITIONS = dict(
    learned=Choice("positions.LearnedPositions", maxlen_power=1),
    sinusoid=Choice("positions.SinusoidalPositions"),
    paired_sinusoid=Choice("positions.PairedSinusoidalPositions"),
    product=Choice("variants.positions.ProductPositions", maxlen_power=1),
    hierarchical=Choice("variants.positions.HierarchicalPositions", maxlen_power=2),
    recurrent=Choice("variants.positions.RecurrentPositions"),
    convolutional=Choice("variants.positions.ConvolutionalPositions"),
    complex=Choice("variants.positions.ComplexPositions", even="hidden_units"),
    shaw=Choice("variants.positions.ShawPositions", relative=True, scaled_dot=True),
    t5=Choice("variants.positions.T5Positions", relative=True),
    xlnet=Choice("variants.positions.XLNetPositions", relative=True, scaled_dot=True),
    deberta=Choice("variants.positions.DebertaPositions", relative=True, scaled_dot=True),
    rotary=Choice(
        "variants.positions.RotaryPositions", relative=True, scaled_dot=True, even="head_units"
    ),
    none=Choice("positions.Positions"),
)
ATTENTION_SCORES = dict(
    scaled_dot=Choice("attention.scaled_dot"),
    dot=Choice("attention.dot"),
    additive=Choice(
        "variants.attention.additive",
        parameters=dict(query_kernel="hdd", key_kernel="hdd", omega="hd"),
    ),
    bilinear=Choice("variants.attention.bilinear", parameters=dict(kernel="hdd")),
    cosine=Choice("variants.attention.cosine", softmax=False),
    cosine_softmax=Choice("variants.attention.cosine"),
)
MODELS = dict(transformer=Choice("model.Transformer"), rnn=Choice("variants.rnn.RecurrentModel"))
ACTIVATIONS = ("relu", "swish")
NORMALIZATIONS = ("post", "pre", "none")
OPTIMIZERS = dict(adam=Choice("optimizer.FusedAdam"), muon=Choice("variants.muon.Muon"))
