"""What can be chosen by name: a table for each kind of choice.

A new choice is a class or function and its row here. No table needs TensorFlow, so that `--help`
answers at once; `load` imports what a row names.
"""

import dataclasses

from runtime.errors import InputError
from runtime.flags import NONE, Choice, Condition, flag
from runtime.optional import check_installed


@dataclasses.dataclass(frozen=True)
class PositionChoice(Choice):
    """A position encoding.

    Attributes:
      relative: whether it acts in self-attention, and not on the embedded tokens.
      maxlen_power: it ends at position maxlen**maxlen_power; 0: it has no end.
      even: the size that must be even, "hidden_units" or "head_units"; "" for none.
    """

    relative: bool = False
    maxlen_power: int = 0
    even: str = ""


def relative(target, **facts):
    """Return the row of a position encoding that changes the scaled product of Q and K."""
    needs = dict(attention_score="scaled_dot")
    remedy = "Choose absolute positions, for example sinusoid"
    return PositionChoice(target, needs, remedy, relative=True, **facts)


POSITIONS = dict(
    learned=PositionChoice("positions.LearnedPositions", maxlen_power=1),
    sinusoid=PositionChoice("positions.SinusoidalPositions"),
    paired_sinusoid=PositionChoice("positions.PairedSinusoidalPositions"),
    product=PositionChoice("variants.positions.ProductPositions", maxlen_power=1),
    hierarchical=PositionChoice("variants.positions.HierarchicalPositions", maxlen_power=2),
    recurrent=PositionChoice("variants.positions.RecurrentPositions"),
    convolutional=PositionChoice("variants.positions.ConvolutionalPositions"),
    complex=PositionChoice("variants.positions.ComplexPositions", even="hidden_units"),
    shaw=relative("variants.positions.ShawPositions"),
    t5=PositionChoice("variants.positions.T5Positions", relative=True),
    xlnet=relative("variants.positions.XLNetPositions"),
    deberta=relative("variants.positions.DebertaPositions"),
    rotary=relative("variants.positions.RotaryPositions", even="head_units"),
    none=PositionChoice("positions.Positions"),
)


@dataclasses.dataclass(frozen=True)
class AttentionChoice(Choice):
    """An attention function.

    Attributes:
      parameters: the shapes of its parameters by name, in letters.
      softmax: whether weights are the softmax of the scores, or the scores.
    """

    parameters: dict = dataclasses.field(default_factory=dict)
    softmax: bool = True


ATTENTION_SCORES = dict(
    scaled_dot=AttentionChoice("attention.scaled_dot"),
    dot=AttentionChoice("attention.dot"),
    additive=AttentionChoice(
        "variants.attention.additive",
        parameters=dict(query_kernel="hdd", key_kernel="hdd", omega="hd"),
    ),
    bilinear=AttentionChoice("variants.attention.bilinear", parameters=dict(kernel="hdd")),
    cosine=AttentionChoice("variants.attention.cosine", softmax=False),
    cosine_softmax=AttentionChoice("variants.attention.cosine"),
)

MODELS = dict(
    transformer=Choice("model.Transformer"),
    rnn=Choice(
        "variants.rnn.RecurrentModel",
        dict(mask_from="ids"),
        "Choose the recipe rnn or rnn_attention",
    ),
)

ACTIVATIONS = ("relu", "swish")

NORMALIZATIONS = dict(
    post=Choice(),
    pre=Choice(
        needs=dict(mask_from=("ids", "none")),
        remedy="It changes the vectors of <PAD>, where activations are no longer 0",
    ),
    none=Choice(),
)

OPTIMIZERS = dict(
    adam=Choice("optimizer.FusedAdam"),
    muon=Choice("variants.muon.Muon", dict(model="transformer"), "Use --optimizer adam"),
)

# Values that a model must have for programs that know only the usual Transformer.
USUAL_TRANSFORMER = dict(
    model="transformer",
    attention_score="scaled_dot",
    relu_projections=False,
    mask_from="ids",
    residual=True,
    temperature=0.0,
)
CTRANSLATE2_NEEDS = USUAL_TRANSFORMER | dict(
    positions=("learned", "sinusoid", "paired_sinusoid", "t5"), normalization=("post", "pre")
)
CTRANSLATE2_PENALTY = Condition(
    lambda penalty: penalty in (NONE, "ctranslate2"),
    "--length_penalty ctranslate2 with --alpha (1 is usual), or --beam 1",
)


@dataclasses.dataclass(frozen=True)
class EngineChoice(Choice):
    """A library that runs a model.

    Attributes:
      quantizes: whether `target` has the argument `quantization`.
      runs_several: whether it runs several models together.
      packages, int8_packages: those that it imports, always or for int8, and that
        requirements.txt lacks.
    """

    quantizes: bool = False
    runs_several: bool = False
    packages: tuple = ()
    int8_packages: tuple = ()

    def check_ready(self, models, chosen_by, quantization):
        """Check that it runs so many models, and that its packages are installed.

        Args:
          models: list.
          chosen_by: the flag that chooses it, for the message.
          quantization: as the flag.
        """
        check_installed(self.packages + (self.int8_packages if quantization == "int8" else ()))
        if len(models) > 1 and not self.runs_several:
            raise InputError(
                f"logdir names several models, but {chosen_by} takes one. Name one folder"
            )


ENGINES = dict(
    tensorflow=EngineChoice("inference.SearchDecoder", runs_several=True),
    ctranslate2=EngineChoice(
        "interop.ctranslate2_model.CTranslate2Decoder",
        CTRANSLATE2_NEEDS | dict(used_length_penalty=CTRANSLATE2_PENALTY),
        "Leave out --engine",
        quantizes=True,
        packages=("ctranslate2",),
    ),
)


def quantization_flag(name, table):
    """Declare the flag --quantization of a script whose flag `name` chooses a row of `table`."""
    names = tuple(key for key, row in table.items() if row.quantizes)
    return flag(
        "float32",
        f"type of the matrices, for --{name} {' or '.join(names)}",
        choices=("float32", "int8"),
        needs={name: names},
        remedy="Leave it out",
    )


@dataclasses.dataclass(frozen=True)
class FormChoice(Choice):
    """A form of sentences, for --augment and --robustness.

    Attributes:
      of_source: how a source in this form is described; "" if another form has the same sources.
    """

    of_source: str = ""


FORMS = dict(
    upper=FormChoice("forms.Upper", of_source="in capitals"),
    title=FormChoice("forms.Title", of_source="in title case"),
    lower=FormChoice("forms.Lower", of_source="in lower case"),
    punctuation=FormChoice("forms.Punctuation", of_source="without final punctuation"),
    missing_mark=FormChoice("forms.MissingMark"),
    typos=FormChoice("forms.Typos", of_source="with typing errors"),
)
