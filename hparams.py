"""Hyperparameters. Every field but `beta_2` and `epsilon` is also a flag.

A recipe supplies every flag that the user does not set. `train.py` saves the hyperparameters in
`logdir/hparams.json`, and each script that reads a model starts from them.

The letters that name the axes of tensors throughout the project:

    N  sentences in a batch           T  tokens in a sentence
    C  hidden units                   h  attention heads
    d  units per head                 T_q, T_k  query and key positions
    vocab  tokens in a vocabulary
"""

import dataclasses
import importlib
import json
import unicodedata
from functools import partial
from pathlib import Path
from typing import NamedTuple

from support.errors import InputError
from support.files import atomic_write
from support.flags import NONE, Flags, check_paths_exist, flag, parse_flags, split_paths

MAX_INPUT_TOKENS = 1024  # tokens of a sentence that are read, if the model has no limit
WIDTH_LIMIT = 2**16 + 1  # exclusive; units of a layer

# What can be chosen by name -----------------------------------------


class Choice(NamedTuple):
    """A class or function. No table of them needs TensorFlow, so that `--help` answers at once."""

    target: str  # its module and name
    # Of a position encoding
    maxlen_power: int = 0  # it ends at maxlen**maxlen_power; 0: it has no end
    relative: bool = False  # it acts in self-attention, not on the embedded tokens
    scaled_dot: bool = False  # it changes the scaled product of Q and K
    even: str = ""  # the size that must be even
    # Of an attention function
    parameters: dict = {}  # their shapes by name, in letters
    softmax: bool = True  # weights are the softmax of the scores, or the scores

    def load(self):
        module, _, name = self.target.rpartition(".")
        return getattr(importlib.import_module(module), name)


POSITIONS = dict(
    learned=Choice("model.positions.LearnedPositions", maxlen_power=1),
    sinusoid=Choice("model.positions.SinusoidalPositions"),
    paired_sinusoid=Choice("model.positions.PairedSinusoidalPositions"),
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
    none=Choice("model.positions.Positions"),
)
ATTENTION_SCORES = dict(
    scaled_dot=Choice("model.attention.scaled_dot"),
    dot=Choice("model.attention.dot"),
    additive=Choice(
        "model.attention.additive",
        parameters=dict(query_kernel="hdd", key_kernel="hdd", omega="hd"),
    ),
    bilinear=Choice("model.attention.bilinear", parameters=dict(kernel="hdd")),
    cosine=Choice("model.attention.cosine", softmax=False),
    cosine_softmax=Choice("model.attention.cosine"),
)
MODELS = dict(
    transformer=Choice("model.transformer.Transformer"),
    rnn=Choice("variants.rnn.RecurrentModel"),
    rnn_attention=Choice("variants.rnn.RecurrentModel"),
)
OPTIMIZERS = dict(adam=Choice("training.optimizer.FusedAdam"), muon=Choice("training.muon.Muon"))


class Architecture(NamedTuple):
    """In which details Transformers differ."""

    relu_projections: bool = False  # Q, K and V pass through a ReLU
    output_projection: bool = True  # the joined heads are projected by W_O
    mask_from: str = "ids"  # padding is where tokens are <PAD>, or where "activations" are zeros
    drop_weights: bool = False  # dropout on attention weights
    drop_outputs: bool = True  # dropout on the outputs of sublayers
    pad_logit: bool = False  # with tied embeddings: the logit of <PAD> comes from its row, or is 0
    output_bias: bool = False  # with tied embeddings: the logits have a bias
    ffn_activation: str = "relu"  # between both maps of a feed-forward layer


ARCHITECTURES = {
    "2017": Architecture(True, False, "activations", drop_weights=True, drop_outputs=False),
    "2019": Architecture(False, False, drop_weights=True, drop_outputs=False),
    "paper": Architecture(drop_weights=True, pad_logit=True),
    "modern": Architecture(pad_logit=True),
    "marian": Architecture(output_bias=True, ffn_activation="swish"),
    "marian_relu": Architecture(output_bias=True),
}

# Recipes ------------------------------------------------------------

# The differences from the defaults, which are those of legacy.
UPDATED = dict(architecture="2019", ffn_units=2048, positions="paired_sinusoid", dropout_rate=0.3)
UPDATED |= dict(tokenizer="bpe", tied_embeddings=True, maxlen=100, batch_size=128)
UPDATED |= dict(lr=0.0003, schedule="paper", warmup_steps=4000, beta_2=0.999)

PAPER = UPDATED | dict(architecture="paper", dropout_rate=0.1, batch_tokens=4096)
PAPER |= dict(lr=0.0, beta_2=0.98, epsilon=1e-9, beam=4, average_checkpoints=5)

# What all recipes for a CPU have. The last checkpoint, with the lowest learning rate, is the best.
CPU = PAPER | dict(architecture="modern", dropout_rate=0.2, vocab_size=0, fold_case=True)
CPU |= dict(batch_tokens=2048, schedule="linear", warmup_steps=0, num_epochs=0)
CPU |= dict(beam=5, alpha=1.2, average_checkpoints=1)

TINY = CPU | dict(hidden_units=128, ffn_units=256, num_blocks=4, num_heads=4)
TINY |= dict(positions="t5", normalization="pre", optimizer="muon", lr=0.01)

SMALL = TINY | dict(hidden_units=256, ffn_units=1024, num_blocks=6, decoder_blocks=3)
SMALL |= dict(batch_tokens=4096, lr=0.006, num_epochs=20)

LOW_RESOURCE = TINY | dict(consistency=5.0, missing_mark=0.05)
RNN = CPU | dict(model="rnn", hidden_units=256, lr=0.001)
RECIPES = dict(
    legacy={},
    updated=UPDATED,
    paper=PAPER,
    tiny=TINY,
    small=SMALL,
    low_resource=LOW_RESOURCE,
    rnn=RNN,
    rnn_attention=RNN | dict(model="rnn_attention"),
)

# Fields -------------------------------------------------------------

# Declare a flag of a group in `--help`.
data_flag, training_flag, decoding_flag, checkpoint_flag = (
    partial(flag, group=group) for group in ("data", "training", "decoding", "checkpoints")
)
model_flag = partial(flag, group="model", fixed=True)
text_flag = partial(data_flag, fixed=True)
path_flag = partial(data_flag, path=True)


@dataclasses.dataclass(frozen=True)
class ModelHparams(Flags):
    """The hyperparameters of a model itself. The defaults are those of the 2017 code."""

    model: str = model_flag("transformer", "or a recurrent model", choices=MODELS)
    architecture: str = model_flag("2017", "details (docs/recipes.md)", choices=ARCHITECTURES)
    cell: str = model_flag("gru", "of a recurrent model", choices=("tanh", "gru", "lstm"))
    maxlen: int = model_flag(10, "T: tokens with </S>; longer training pairs are left out", 1, 4097)
    hidden_units: int = model_flag(512, "C: units of each layer", 1, WIDTH_LIMIT)
    ffn_units: int = model_flag(0, "inner units of a feed-forward layer; 0: 4 * C", 0, WIDTH_LIMIT)
    num_blocks: int = model_flag(6, "blocks in the encoder", 1, 1001)
    decoder_blocks: int = model_flag(0, "blocks in the decoder; 0: as many", 0, 1001)
    num_heads: int = model_flag(8, "h: attention heads, a divisor of C", 1, WIDTH_LIMIT)
    positions: str = model_flag("learned", "position encoding, docs/variants.md", choices=POSITIONS)
    attention_score: str = model_flag(
        "scaled_dot", "attention function (docs/variants.md)", choices=ATTENTION_SCORES
    )
    tied_embeddings: bool = model_flag(False, "one matrix for both embeddings and the logits")
    mask_padding: bool = model_flag(True, "hide padding from attention")
    causality: bool = model_flag(True, "in training, hide later tokens from the decoder")
    residual: bool = model_flag(True, "add the inputs of each sublayer to its outputs")
    normalization: str = model_flag(
        "post", "after or before each sublayer, or none", choices=("post", "pre", "none")
    )
    dropout_rate: float = model_flag(0.1, "share of units dropped in training", 0, 1.0)
    attention_dropout: float = model_flag(
        0.0, "share of weights dropped; 0: architecture's", 0, 1.0
    )

    def problems(self):
        positions = POSITIONS[self.positions]
        if self.model != "transformer":
            if self.hidden_units % 2:
                yield "hidden_units must be even, for two directions"
        elif self.hidden_units % self.num_heads:
            yield "num_heads must be a divisor of hidden_units"
        elif positions.even and getattr(self, positions.even) % 2:
            yield f"{positions.even} must be even for positions {self.positions}"
        if positions.scaled_dot and self.attention_score != "scaled_dot":
            yield f"positions {self.positions} needs --attention_score scaled_dot"
        if self.normalization == "pre" and self.mask_from == "activations":
            yield "normalization pre needs masks from ids. Add --architecture 2019 or paper"

    def model_fields(self) -> dict:
        """These fields, without those of a run."""
        return dataclasses.asdict(ModelHparams.of(vars(self)))

    @property
    def design(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

    @property
    def mask_from(self) -> str:
        """Where padding is seen: "activations" or "ids", as in `Architecture`, or "none"."""
        if self.model != "transformer":
            return "ids"
        return self.design.mask_from if self.mask_padding else "none"

    @property
    def weight_dropout(self) -> float:
        """Share of attention weights dropped in training."""
        return self.attention_dropout or self.dropout_rate * self.design.drop_weights

    @property
    def head_units(self) -> int:
        """Units per head."""
        return self.hidden_units // self.num_heads

    @property
    def block_counts(self) -> dict[str, int]:
        """The blocks of the encoder and of the decoder."""
        return dict(encoder=self.num_blocks, decoder=self.decoder_blocks or self.num_blocks)

    @property
    def has_attention(self) -> bool:
        """Whether the decoder attends to the source."""
        return self.model != "rnn"

    @property
    def maxlen_power(self) -> int:
        """The positions end at maxlen**maxlen_power; 0: they have no end."""
        return POSITIONS[self.positions].maxlen_power if self.model == "transformer" else 0

    @property
    def unbounded_length(self) -> bool:
        """Whether the trained model reads sentences longer than `maxlen`."""
        return self.mask_from == "ids" and self.maxlen_power != 1

    @property
    def max_input_tokens(self) -> int:
        """Tokens of a sentence that the model reads, `</S>` included."""
        if not self.unbounded_length:
            return self.maxlen
        most = max(MAX_INPUT_TOKENS, self.maxlen)
        return min(most, self.maxlen**self.maxlen_power) if self.maxlen_power else most

    @property
    def pad_to(self) -> int | None:
        """Padded length of a batch: `maxlen`, or with masks from ids None, for its longest row."""
        return None if self.mask_from == "ids" else self.maxlen


@dataclasses.dataclass(frozen=True)
class Hyperparams(ModelHparams):
    """Everything that a run depends on. A flag cannot change a `fixed` field of a trained model."""

    recipe: str = model_flag("legacy", "preset for other flags (docs/recipes.md)", choices=RECIPES)
    sinusoid: bool = model_flag(False, "as in 2017: the same as --positions sinusoid")

    source_train: str = path_flag("corpora/train.tags.de-en.de", "source; several as a.de,b.de")
    target_train: str = path_flag("corpora/train.tags.de-en.en", "target of the training text")
    source_dev: str = path_flag(NONE, "development set, which is translated after each epoch")
    target_dev: str = path_flag(NONE, "its target; several references with commas")
    source_test: str = path_flag("corpora/IWSLT16.TED.tst2014.de-en.de.xml", "test set")
    target_test: str = path_flag("corpora/IWSLT16.TED.tst2014.de-en.en.xml", "its target")
    source_lang: str = text_flag("de", "source language; also the name of its vocabulary file")
    target_lang: str = text_flag("en", "target language; also the name of its vocabulary file")
    preprocessed: str = data_flag("preprocessed", "folder of what prepro.py writes")
    logdir: str = data_flag("logdir", "folder of a model; several with commas translate together")
    results: str = data_flag("results", "folder of the translations that eval.py writes")
    tokenizer: str = text_flag("words", "words, or subwords (BPE)", choices=("words", "bpe"))
    min_cnt: int = text_flag(20, "words seen less often in the training text become <UNK>")
    vocab_size: int = text_flag(32000, "subwords; 0: chosen from the number of characters")
    joint_vocab: bool = text_flag(True, "one vocabulary of subwords for both languages")
    fold_case: bool = text_flag(False, "read sources without their case")
    symbols: str = data_flag(NONE, "prepro.py: words that are one subword, as '>>de<<,>>fr<<'")
    byte_fallback: bool = data_flag(False, "prepro.py: spell rare characters by their bytes")
    bpe_dropout: float = data_flag(0.0, "share of merges skipped in the training text", 0, 1.0)
    missing_mark: float = data_flag(0.0, "share of training sources without their mark", 0, 1.0)

    start_from: str = training_flag(NONE, "model that a new training starts from", path=True)
    batch_size: int = training_flag(32, "N: sentence pairs in a batch, over all devices", 1)
    batch_tokens: int = training_flag(0, "tokens in a batch, in place of batch_size; 0: off")
    accumulate: int = training_flag(1, "batches whose gradients are summed for one step", 1)
    clip_norm: float = training_flag(0.0, "limit of the gradient's norm; 0: none")
    optimizer: str = training_flag("adam", "adam, or muon", choices=OPTIMIZERS, fixed=True)
    lr: float = training_flag(0.0001, "learning rate, or its peak; 0: that of the paper")
    schedule: str = training_flag(
        "constant", "learning rate after its peak", choices=("constant", "paper", "linear")
    )
    warmup_steps: int = training_flag(0, "steps up to the peak; 0: a tenth, at most 1000")
    label_smoothing: float = training_flag(0.1, "share of a label that all tokens get", 0, 1.0)
    consistency: float = training_flag(0.0, "R-Drop: weight of the divergence of two passes")
    beta_2: float = training_flag(0.98, "Adam's decay of the squared gradients", 0, 1.0, group=None)
    epsilon: float = training_flag(1e-8, "Adam's epsilon", 0, 1.0, group=None)
    num_epochs: int = training_flag(20, "passes over the training text; 0: more for a small text")
    max_steps: int = training_flag(0, "end after so many steps; 0: after all epochs")
    minutes: float = training_flag(0.0, "end after so many minutes, over all runs", 0, 1e6)
    dev_steps: int = training_flag(0, "also evaluate and save every so many steps")
    patience: int = training_flag(0, "end after so many evaluations without a better score")
    metric: str = training_flag("bleu", "of patience and --best", choices=("bleu", "chrf"))
    precision: str = training_flag("float32", "of matrix products", choices=("float32", "bfloat16"))
    keep_checkpoints: int = training_flag(5, "newest checkpoints to keep, beside the best one", 1)
    save_steps: int = training_flag(1000, "also save every so many steps; 0: do not")
    deterministic: bool = training_flag(False, "two runs give bit-identical parameters")
    seed: int = training_flag(0, "of everything random")

    beam: int = decoding_flag(1, "hypotheses in beam search; 1: greedy search", 1, 1001)
    alpha: float = decoding_flag(0.6, "exponent of the length penalty", 0, 100.0)
    temperature: float = decoding_flag(0.0, "draw at random; 0: search for the best", 0, 1000.0)
    max_output_ratio: float = decoding_flag(2.0, "tokens per source token, and 10", 0.1, 1000.0)
    no_repeat_ngram: int = decoding_flag(0, "never repeat so many tokens in sequence", 0, 1001)
    average_checkpoints: int = checkpoint_flag(1, "mean of so many newest checkpoints", 1)
    best: bool = checkpoint_flag(False, "use only the checkpoint with the best dev score")

    def problems(self):
        yield from super().problems()
        if self.tokenizer != "bpe":
            for name in ("joint_vocab", "fold_case", "symbols", "byte_fallback", "bpe_dropout"):
                if getattr(self, name) != FIELDS[name].default:
                    yield f"{name} needs --tokenizer bpe"
        if self.tied_embeddings and not self.has_one_vocab:
            yield "tied_embeddings needs one vocabulary of subwords. Add --no-tied_embeddings"
        if self.source_lang == self.target_lang and not self.has_one_vocab:
            yield "source_lang and target_lang must differ: each has its own vocabulary file"
        if {*"/\\"} & {*self.source_lang, *self.target_lang}:
            yield "source_lang and target_lang are names of files, without a slash"
        if self.bpe_dropout and not self.unbounded_length:
            yield "bpe_dropout needs positions without an end, as of the recipe tiny"
        for part in ("train", "dev", "test"):
            paths = (split_paths(getattr(self, f"{side}_{part}")) for side in ("source", "target"))
            if any(a == b != NONE for a, b in zip(*paths, strict=False)):
                yield f"source_{part} and target_{part} have the same file. Give another one"
        if (self.source_dev == NONE) != (self.target_dev == NONE):
            yield "give both source_dev and target_dev, or neither"
        if (self.patience or self.dev_steps) and self.source_dev == NONE:
            yield "patience and dev_steps need --source_dev and --target_dev"
        if self.minutes and self.max_steps:
            yield "give minutes or max_steps, only one of them"
        if self.optimizer == "muon" and self.model != "transformer":
            yield "optimizer muon is for the Transformer. Add --optimizer adam"
        if self.temperature and (self.beam > 1 or self.temperature < 0.001):
            yield "temperature draws translations with --beam 1, and is 0 or at least 0.001"
        if self.best and self.average_checkpoints > 1:
            yield "best needs --average_checkpoints 1"

    @property
    def has_one_vocab(self) -> bool:
        """Whether both languages have the same subwords."""
        return self.tokenizer == "bpe" and self.joint_vocab

    @property
    def symbol_list(self) -> list[str]:
        """The words in `symbols`, composed as those of the text are."""
        symbols = unicodedata.normalize("NFC", self.symbols)
        return [] if symbols == NONE else symbols.split(",")

    @property
    def changes_text(self) -> bool:
        """Whether the tokens of a training pair differ between epochs."""
        return self.bpe_dropout > 0 or self.missing_mark > 0

    def max_output_tokens(self, source_tokens):
        """Tokens of a translation at most, as the type of those of its source; both with `</S>`."""
        if not self.unbounded_length:
            return 0 * source_tokens + self.maxlen
        return round(10 * self.max_output_ratio) * source_tokens // 10 + 10


# Making, saving and loading -----------------------------------------

FIELDS = {field.name: field for field in dataclasses.fields(Hyperparams)}
UNSAVED = ("logdir", "results", "preprocessed")  # the folder may be moved, or from someone else
# The flags of a script that reads a model. Those in the second line are for models of 2017.
READER_FLAGS = (
    *(name for name, field in FIELDS.items() if field.metadata["group"] == "decoding"),
    *("preprocessed", "source_lang", "target_lang", "num_heads", "maxlen", "min_cnt"),
    *("average_checkpoints", "best", "logdir", "precision", "seed"),
)
# What a flag implies for others, which a recipe or a model may have set, unless it is 0 or False.
IMPLIED = dict(
    sinusoid=dict(positions="sinusoid"),
    batch_size=dict(batch_tokens=0),
    average_checkpoints=dict(best=False),
    best=dict(average_checkpoints=1),
    minutes=dict(max_steps=0),
    num_epochs=dict(minutes=0.0, max_steps=0),
    max_steps=dict(minutes=0.0, num_epochs=0),  # no limit of epochs
)


def make_hparams(given, other=None) -> Hyperparams:
    """The hyperparameters of a new training: the flags that are given, completed by their recipe.

    `other` are those of the model that it starts from. Its `fixed` fields stay, except for the
    dropout and the optimizer, and for the languages if they have one vocabulary.
    """
    kept = {}
    if other:
        free = {"dropout_rate", "attention_dropout", "optimizer"}
        free |= {"source_lang", "target_lang"} if other.has_one_vocab else set()
        kept = {name: v for name, v in fixed_fields(other).items() if name not in free & {*given}}
        check_fixed(other.logdir, kept, given)
    of_recipe = RECIPES.get(kept.get("recipe", given.get("recipe")), {})
    return Hyperparams.of(of_recipe | add_implied(given) | kept)


def add_implied(given) -> dict:
    """Add what the flags imply for others."""
    implied = {}
    for name, value in given.items():
        implied |= IMPLIED.get(name, {}) if value else {}
    return implied | given


def fixed_fields(hp) -> dict:
    """The fields that a trained model depends on."""
    return {name: getattr(hp, name) for name, field in FIELDS.items() if field.metadata["fixed"]}


def check_fixed(path, fixed, given):
    """Raise InputError if a flag contradicts the fields of a trained model."""
    for name, value in fixed.items():
        if given.get(name, value) != value:
            problem = f"this model was trained with --{name} {value}, not {given[name]}"
            raise InputError(f"{path}: {problem}. Leave the flag out, or use a new --logdir")


def hparams_path(logdir) -> Path:
    """The file of a model's hyperparameters."""
    return Path(logdir) / "hparams.json"


def save_hparams(hp):
    """Write `hp` into `hp.logdir`."""
    saved = {name: v for name, v in dataclasses.asdict(hp).items() if name not in UNSAVED}
    atomic_write(hparams_path(hp.logdir), json.dumps(saved, indent=2) + "\n")


def load_hparams(given) -> Hyperparams:
    """The hyperparameters of the model in `logdir`, overridden by the flags that are given."""
    path = hparams_path(given.get("logdir", Hyperparams.logdir))
    try:
        saved = json.loads(path.read_text("utf-8"))
        saved = Hyperparams(**{name: v for name, v in saved.items() if name not in UNSAVED})
    except (InputError, OSError, AttributeError, TypeError, ValueError) as error:
        problem = f"not hyperparameters of this project ({error})"
        raise InputError(f"{path}: {problem}. Copy the file again from the training") from None
    check_fixed(path, fixed_fields(saved), given)
    return Hyperparams.of(vars(saved) | add_implied(given))


def check_saved_flags(given):
    """Raise InputError if a folder of `logdir` is missing, or the flags contradict it."""
    logdir = given.get("logdir", Hyperparams.logdir)
    for folder in [logdir] if isinstance(logdir, str) else logdir:
        check_paths_exist("logdir", folder)
        for own in split_paths(folder):
            if hparams_path(own).exists():  # one of the 2017 code has none
                load_hparams(given | dict(logdir=own))


def parse_reader_flags(description, own, *more, repeated="") -> dict:
    """Parse the command line of a script that reads a model; `more` are further fields.

    The value of a `repeated` flag is a list.
    """
    names = (*READER_FLAGS, *more)
    rules = dict(names=names, check=check_saved_flags, repeated=repeated)
    return parse_flags(description, own, hparams=Hyperparams, **rules)
