"""What can be chosen by name: a table for each kind of choice.

A new choice is a class or function and its row here. No table needs TensorFlow, so that `--help`
answers at once; `load` imports what a row names.
"""

import dataclasses

from runtime.errors import InputError
from runtime.flags import Choice
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
MARIAN_NEEDS = USUAL_TRANSFORMER | dict(
    positions="paired_sinusoid", normalization="post", tied_embeddings=True
)
SEARCH_OF_OTHERS = ("beam", "alpha")
OTHER_FORMAT = "Export with --format saved_model, or train with --recipe tiny, small or paper"


@dataclasses.dataclass(frozen=True)
class ExportChoice(Choice):
    """A format of exported models.

    Attributes:
      quantizes: whether `target` has the argument `quantization`.
      runs_several: whether it can hold several models together.
      packages, int8_packages: those that it imports, always or for int8, and that
        requirements.txt lacks.
      has_search: whether the exported model searches, and not the program that loads it.
      refused: flags that are for the program that loads it.
      suffix: end of the name of a zip file that holds the exported folder; "" if it is a folder.
    """

    quantizes: bool = False
    runs_several: bool = False
    packages: tuple = ()
    int8_packages: tuple = ()
    has_search: bool = False
    refused: tuple = ()
    suffix: str = ""

    def check_ready(self, models, name, quantization):
        """Check that it holds so many models, and that its packages are installed.

        Args:
          models: list.
          name: that of the format, for the message.
          quantization: as the flag.
        """
        check_installed(self.packages + (self.int8_packages if quantization == "int8" else ()))
        if len(models) > 1 and not self.runs_several:
            raise InputError(
                f"logdir names several models, but --format {name} takes one. Name one folder"
            )


EXPORT_FORMATS = dict(
    saved_model=ExportChoice("interop.saved_model.write", has_search=True, runs_several=True),
    ctranslate2=ExportChoice(
        "interop.ctranslate2_model.write",
        CTRANSLATE2_NEEDS,
        OTHER_FORMAT,
        quantizes=True,
        packages=("ctranslate2",),
        refused=SEARCH_OF_OTHERS,
    ),
    huggingface=ExportChoice(
        "interop.huggingface_model.write",
        MARIAN_NEEDS,
        "Export with --format saved_model, or train with one vocabulary for both languages and"
        " --recipe updated or paper, or with --positions paired_sinusoid --normalization post",
        packages=("safetensors",),
    ),
    onnx=ExportChoice(
        "interop.onnx_model.write",
        dict(temperature=0.0, no_repeat_ngram=0),
        "Leave it out: the exported search has neither",
        quantizes=True,
        packages=("tf2onnx",),
        int8_packages=("onnxruntime",),
        has_search=True,
        runs_several=True,
    ),
    argos=ExportChoice(
        "interop.argos_package.write",
        CTRANSLATE2_NEEDS | dict(tokenizer="bpe"),
        OTHER_FORMAT,
        quantizes=True,
        packages=("ctranslate2",),
        refused=SEARCH_OF_OTHERS,
        suffix=".argosmodel",
    ),
    logdir=ExportChoice("interop.logdir.write"),
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
