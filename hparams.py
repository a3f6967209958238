"""Hyperparameters. Every field is also a command-line flag.

A recipe is a preset: it supplies every flag that the user does not set. `train.py` saves the
hyperparameters in `logdir/hparams.json`, and each script that reads a model starts from them.

The letters that name the axes of tensors throughout the project:

    N  sentences in a batch           T  tokens in a sentence
    C  hidden units                   h  attention heads
    vocab  tokens in a vocabulary
"""

import dataclasses
import json
import math
import re
import unicodedata
from functools import partial
from pathlib import Path

from choices import (
    ACTIVATIONS,
    ATTENTION_SCORES,
    FORMS,
    MODELS,
    NORMALIZATIONS,
    OPTIMIZERS,
    POSITIONS,
)
from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import atomic_write, read_json
from runtime.flags import (
    AUTO,
    INT32_LIMIT,
    NONE,
    WIDTH_LIMIT,
    Choice,
    Condition,
    Flags,
    above,
    flag,
)

MAX_INPUT_TOKENS = 1024  # tokens of a sentence that are read, if the model has no limit
MAXLEN_LIMIT = 4097  # exclusive; the memory for attention grows with the square of `maxlen`
MIN_COVERAGE = 0.98  # of sentencepiece
MIN_TEMPERATURE = 0.001  # below it, but above 0, logits could overflow
TIMED_WARMUP_STEPS = 250  # for a training whose length is given in minutes, not in steps
UNPLANNED_STEPS = 10 * TIMED_WARMUP_STEPS  # it seems to have so many until they are planned
NO_EPOCH_LIMIT = INT32_LIMIT - 1  # its `num_epochs`: its steps alone set its end
ENOUGH_STEPS_PER_EPOCH = 300  # with so many, num_epochs auto is 20

TEXT_FIELDS = [
    f"{side}_{part}" for part in ("train", "dev", "test") for side in ("source", "target")
]

# Recipes -----------------------------------------------------------------------

# Each dict holds the differences from the defaults, which are those of legacy.
UPDATED = dict(
    tokenizer="bpe",
    maxlen=100,
    ffn_units=2048,
    positions="paired_sinusoid",
    relu_projections=False,
    tied_embeddings=True,
    mask_from="ids",
    dropout_rate=0.3,
    batch_size=128,
    lr=0.0003,
    warmup_steps=4000,
    beta_2=0.999,
)
PAPER = UPDATED | dict(
    output_projection=True,
    pad_logit=True,
    dropout_on="both",
    dropout_rate=0.1,
    batch_tokens=4096,
    lr=0.0,
    beta_2=0.98,
    epsilon=1e-9,
    beam=4,
    average_checkpoints=5,
)
# The fields that all recipes for a CPU have.
CPU = PAPER | dict(
    vocab_size=AUTO,
    fold_case=True,
    dropout_on="sublayers",
    dropout_rate=0.2,
    batch_tokens=2048,
    warmup_steps=AUTO,
    decay_steps=AUTO,
    num_epochs=AUTO,
    beam=5,
    alpha=1.2,
    average_checkpoints=1,  # the last one, with the lowest learning rate, is the best
)
TINY = CPU | dict(
    hidden_units=128,
    ffn_units=256,
    num_blocks=4,
    num_heads=4,
    positions="t5",
    normalization="pre",
    optimizer="muon",
    lr=0.01,
)
SMALL = TINY | dict(
    hidden_units=256,
    ffn_units=1024,
    num_blocks=6,
    decoder_blocks=3,
    batch_tokens=4096,
    lr=0.006,
    num_epochs=20,
)
LOW_RESOURCE = TINY | dict(consistency=5.0, augment="missing_mark=0.05")
RNN = CPU | dict(
    model="rnn",
    hidden_units=256,
    decoder_attention=False,
    lr=0.001,
)
RNN_ATTENTION = RNN | dict(decoder_attention=True)
RECIPES = dict(
    legacy={},
    updated=UPDATED,
    paper=PAPER,
    tiny=TINY,
    small=SMALL,
    low_resource=LOW_RESOURCE,
    rnn=RNN,
    rnn_attention=RNN_ATTENTION,
)

# Fields ------------------------------------------------------------------------

# Declare a flag of a group in `--help`.
data_flag, training_flag, decoding_flag, checkpoint_flag = (
    partial(flag, group=group) for group in ("data", "training", "decoding", "checkpoints")
)
model_flag = partial(flag, group="model", fixed="model")
block_flag = partial(model_flag, only_with=dict(model="transformer"))
rnn_flag = partial(model_flag, only_with=dict(model="rnn"))

# Conditions of rules.
NAMED = Condition(lambda path: path != NONE, "--{name}")
HAS_DEV_SET = dict(
    source_dev=Condition(NAMED.holds, "a development set, --source_dev and --target_dev")
)
NO_SLASH = Condition(lambda lang: not {*"/\\"} & {*lang}, "a name without a slash")
NOT_TOO_LOW = Condition(lambda value: value >= MIN_TEMPERATURE, f"at least {MIN_TEMPERATURE}")
ATTENDS = Condition(bool, "a model with attention, as of the recipe rnn_attention")
ENDLESS = Condition(bool, "positions without an end, as of the recipe tiny")


@dataclasses.dataclass(frozen=True)
class ModelHparams(Flags):
    """The hyperparameters of a model itself. The defaults are those of the 2017 code."""

    model: str = model_flag(
        "transformer", "the Transformer, or a recurrent encoder-decoder", choices=MODELS
    )
    cell: str = rnn_flag("gru", "cell of a recurrent model", choices=("tanh", "gru", "lstm"))
    bidirectional: bool = rnn_flag(
        True, "the encoder of a recurrent model reads in both directions"
    )
    decoder_attention: bool = rnn_flag(
        True, "the decoder of a recurrent model attends to the encoder's states"
    )
    maxlen: int = model_flag(
        10,
        "T: tokens in a sentence, </S> included; longer training pairs are left out",
        1,
        MAXLEN_LIMIT,
    )
    hidden_units: int = model_flag(512, "C: units of each layer", 1, WIDTH_LIMIT)
    ffn_units: int = block_flag(0, "inner units of a feed-forward layer; 0: 4 * C", 0, WIDTH_LIMIT)
    ffn_activation: str = block_flag(
        "relu", "function between both maps of a feed-forward layer", choices=ACTIVATIONS
    )
    num_blocks: int = block_flag(6, "blocks in the encoder", 1, 1001)
    decoder_blocks: int = block_flag(
        0, "blocks in the decoder; 0: as many as in the encoder", 0, 1001
    )
    num_heads: int = block_flag(8, "h: attention heads, a divisor of C", 1, WIDTH_LIMIT)
    positions: str = block_flag(
        "learned", "position encoding (docs/variants.md)", choices=POSITIONS
    )
    attention_score: str = model_flag(
        "scaled_dot",
        "attention function (docs/variants.md)",
        choices=ATTENTION_SCORES,
        only_with=dict(has_attention=ATTENDS),
    )
    relu_projections: bool = block_flag(
        True, "ReLU after the projections to Q, K and V, as in 2017"
    )
    output_projection: bool = block_flag(False, "project the joined heads by W_O, as in the paper")
    tied_embeddings: bool = model_flag(
        False,
        "one matrix for source embedding, target embedding and output layer",
        needs=dict(tokenizer="bpe", joint_vocab=True),
        remedy="It needs one vocabulary of subwords: add --no-tied_embeddings",
    )
    pad_logit: bool = model_flag(
        False, "with tied embeddings: compute the logit of <PAD> from its row; else from zeros"
    )
    output_bias: bool = block_flag(
        False,
        "with tied embeddings: add a bias to the logits, as Marian does",
        needs=dict(tied_embeddings=True),
        remedy="Leave it out: without tied embeddings the output layer has a bias",
    )
    mask_from: str = model_flag(
        "activations",
        "activations: padding is where vectors are all zeros, as in 2017; ids: where the token is"
        " <PAD>; none: padding is not masked",
        choices=("activations", "ids", "none"),
    )
    causality: bool = block_flag(
        True,
        "in training, hide later tokens from the decoder's self-attention; translating, which has"
        " none, stays as it is",
    )
    dropout_on: str = block_flag(
        "attention",
        "where dropout applies in addition to the embeddings: attention weights, outputs of"
        " sublayers, or both",
        choices=("attention", "sublayers", "both"),
    )
    residual: bool = block_flag(True, "add the inputs of each sublayer to its outputs")
    normalization: str = block_flag(
        "post",
        "post: normalize after each residual addition, as in the paper; pre: normalize the inputs"
        " of each sublayer; none: no normalization",
        choices=NORMALIZATIONS,
    )
    dropout_rate: float = model_flag(0.1, "share of units dropped in training", 0.0, 1.0)
    attention_dropout: float = block_flag(
        0.0,
        "share of attention weights dropped in training; with dropout_on attention or both it is"
        " dropout_rate",
        0.0,
        1.0,
        needs=dict(dropout_on="sublayers"),
        remedy="Otherwise dropout_rate applies to attention weights, too. Give only one",
    )
    ffn_dropout: float = block_flag(
        0.0, "share of the inner units of feed-forward layers dropped", 0.0, 1.0
    )
    word_dropout: float = block_flag(
        0.0, "share of the input tokens that become <UNK> in training", 0.0, 1.0
    )

    def __post_init__(self):
        super().__post_init__()
        if self.model == "transformer" and self.hidden_units % self.num_heads:
            raise InputError(
                f"hidden_units {self.hidden_units} is not a multiple of num_heads {self.num_heads}"
            )
        halved, halves = POSITIONS[self.positions].even, f"positions {self.positions}"
        if self.model == "rnn":
            halved, halves = "hidden_units" * self.bidirectional, "a bidirectional encoder"
        if halved and getattr(self, halved) % 2:
            raise InputError(
                f"{halved} is {getattr(self, halved)}, and {halves} must divide it by two. Choose"
                " an even number"
            )

    def model_fields(self) -> dict:
        """The fields of a model, without those of a run."""
        return {field.name: getattr(self, field.name) for field in ModelHparams.declared()}

    @property
    def head_units(self) -> int:
        """Units per head."""
        return self.hidden_units // self.num_heads

    @property
    def block_counts(self) -> dict[str, int]:
        """How many blocks the encoder and the decoder have."""
        return dict(encoder=self.num_blocks, decoder=self.decoder_blocks or self.num_blocks)

    @property
    def masks_from_ids(self) -> bool:
        """Whether padding is found from the token ids."""
        return self.mask_from == "ids"

    @property
    def has_attention(self) -> bool:
        """Whether the decoder attends to the source."""
        return self.model == "transformer" or self.decoder_attention

    @property
    def maxlen_power(self) -> int:
        """The positions end at maxlen**maxlen_power; 0: they have no end."""
        return POSITIONS[self.positions].maxlen_power if self.model == "transformer" else 0

    @property
    def unbounded_length(self) -> bool:
        """Whether the trained model reads sentences longer than `maxlen`.

        Learned positions end at `maxlen`. Without masks from ids, padding changes the result, and
        the model was trained with rows that are padded to `maxlen`.
        """
        return self.masks_from_ids and self.maxlen_power != 1

    @property
    def max_input_tokens(self) -> int:
        """Tokens of a sentence that the model reads, `</S>` included."""
        if not self.unbounded_length:
            return self.maxlen
        most = max(MAX_INPUT_TOKENS, self.maxlen)
        return min(most, self.maxlen**self.maxlen_power) if self.maxlen_power else most

    @property
    def pad_to(self):
        """Padded length of a batch: `maxlen`, or None for its longest row.

        Without masks from ids the output depends on the amount of padding, which must therefore be
        constant.
        """
        return None if self.masks_from_ids else self.maxlen


@dataclasses.dataclass(frozen=True)
class Hyperparams(ModelHparams):
    """Everything that a run depends on. The defaults are those of the 2017 code.

    Fields with fixed="model" belong to a trained model: they are read from `logdir`, and a flag
    that contradicts them is an error.
    """

    recipe: str = model_flag(
        "legacy",
        "preset for the flags you do not set: the 2017 code, the 2019 code, the paper, a model of"
        " 2 million parameters, one of 10 million for more text, the first one for little text, or"
        " a recurrent model without and with attention",
        choices=tuple(RECIPES),
    )
    sinusoid: bool = model_flag(
        False,
        "sinusoidal position encodings, as in 2017; the same as --positions sinusoid",
        needs=dict(positions="sinusoid"),
    )

    # data
    source_train: str = data_flag(
        "corpora/train.tags.de-en.de",
        "source side of the training text; if several files, with commas between their names",
        fixed="epoch",
        path=True,
    )
    target_train: str = data_flag(
        "corpora/train.tags.de-en.en",
        "target side of the training text",
        fixed="epoch",
        path=True,
    )
    source_dev: str = data_flag(
        NONE,
        "source side of the development set, which is translated after each epoch; none: no"
        " development set",
        path=True,
        needs=dict(target_dev=NAMED),
        remedy="Give both, or none",
    )
    target_dev: str = data_flag(
        NONE,
        "target side of the development set; several references with commas between them",
        path=True,
        needs=dict(source_dev=NAMED),
        remedy="Give both, or none",
    )
    source_test: str = data_flag(
        "corpora/IWSLT16.TED.tst2014.de-en.de.xml",
        "source side of the test set",
        path=True,
    )
    target_test: str = data_flag(
        "corpora/IWSLT16.TED.tst2014.de-en.en.xml",
        "target side of the test set; several references with commas between them",
        path=True,
    )
    source_lang: str = data_flag(
        "de",
        "source language; also the name of its vocabulary file",
        fixed="model",
        needs=dict(source_lang=NO_SLASH),
        remedy="Choose another name",
    )
    target_lang: str = data_flag(
        "en",
        "target language; also the name of its vocabulary file",
        fixed="model",
        needs=dict(target_lang=NO_SLASH),
        remedy="Choose another name",
    )
    preprocessed: str = data_flag(
        "preprocessed",
        "folder of the vocabularies that prepro.py writes",
        path=True,
    )
    logdir: str = data_flag(
        "logdir",
        "folder of the checkpoints and of TensorBoard's event files; to translate with several"
        " models together, their folders with commas between them",
        path=True,
    )
    results: str = data_flag("results", "folder of the translations that eval.py writes", path=True)
    tokenizer: str = data_flag(
        "words",
        "tokens of a sentence: words, as in 2017, or subwords of a byte-pair encoding",
        choices=("words", "bpe"),
        fixed="model",
    )
    min_cnt: int = data_flag(
        20, "words seen less often in the training text become <UNK>", 0, INT32_LIMIT, fixed="model"
    )
    vocab_size: int = data_flag(
        32000,
        "subwords in a vocabulary, joint or of one language; auto: chosen from the number of"
        " characters",
        5,
        INT32_LIMIT,
        fixed="model",
        auto=True,
        choices={AUTO: Choice(needs=dict(tokenizer="bpe"), remedy="For words, use --min_cnt")},
    )
    joint_vocab: bool = data_flag(
        True,
        "one vocabulary of subwords for both languages; if not, one per language",
        fixed="model",
        needs=dict(tokenizer="bpe"),
    )
    fold_case: bool = data_flag(
        False,
        "read sources without their case, so that the translation of capitals is that of small"
        " letters",
        fixed="model",
        needs=dict(tokenizer="bpe"),
    )
    symbols: str = data_flag(
        NONE,
        "prepro.py: words that are always one subword, separated by commas, for example"
        " '>>de<<,>>fr<<'; none: no such words",
        needs=dict(tokenizer="bpe"),
    )
    byte_fallback: bool = data_flag(
        False,
        "prepro.py: add 256 subwords for bytes, which spell characters that the training text"
        " has at most twice; without them, characters that it does not have are <UNK>",
        needs=dict(tokenizer="bpe"),
    )
    character_coverage: float = data_flag(
        1.0,
        "prepro.py: share of the characters of the training text, counted with repetitions, that"
        " the vocabulary has; the rarest become <UNK>, or bytes with --byte_fallback",
        MIN_COVERAGE,
        math.nextafter(1.0, 2.0),  # 1 included,
        needs=dict(tokenizer="bpe"),
    )
    bpe_dropout: float = data_flag(
        0.0,
        "BPE-dropout: probability of skipping a merge when tokenizing training text",
        0.0,
        1.0,
        fixed="epoch",
        needs=dict(tokenizer="bpe", unbounded_length=ENDLESS),
        remedy="Leave it out, or choose such a recipe",
    )

    augment: str = data_flag(
        NONE,
        "forms in which a share of the training pairs is written, others in each epoch, for example"
        f" upper=0.05,lower=0.05; the forms are {', '.join(FORMS)} (docs/training.md);"
        " none: the text as it is",
        fixed="epoch",
    )

    # training
    start_from: str = training_flag(
        NONE,
        "folder of a model from whose parameters and vocabularies a new training starts, also of a"
        " Marian model of Hugging Face; best and"
        " average_checkpoints choose its checkpoints, by default as saved with that model",
        path=True,
    )
    batch_size: int = training_flag(
        32,
        "N: sentence pairs in a batch, over all devices; without --batch_tokens it switches"
        " batch_tokens off",
        1,
        INT32_LIMIT,
        fixed="epoch",
    )
    batch_tokens: int = training_flag(
        0,
        "in place of batch_size: tokens of the longer side in a batch, over all devices; 0: off",
        0,
        INT32_LIMIT,
        fixed="epoch",
    )
    accumulate: int = training_flag(
        1,
        "batches per step: their gradients are summed before the parameters are updated",
        1,
        INT32_LIMIT,
        fixed="epoch",
    )
    clip_norm: float = training_flag(
        0.0, "limit of the gradient's norm, above which it is scaled down; 0: none", 0.0, 3.4e38
    )
    optimizer: str = training_flag(
        "adam",
        "adam; or muon, which makes the updates of matrices in blocks orthogonal",
        choices=OPTIMIZERS,
        fixed="model",
    )
    lr: float = training_flag(
        0.0001,
        "learning rate, or its peak with a warm-up; 0: (C * warmup_steps)**-0.5, as in the paper",
        0.0,
        3.4e38,  # the largest float32
    )
    warmup_steps: int = training_flag(
        0,
        "steps up to the peak of the learning rate; 0: constant rate; auto: a tenth of all steps,"
        " at most 1000",
        0,
        INT32_LIMIT,
        auto=True,
    )
    decay_steps: int = training_flag(
        0,
        "step up to which the learning rate falls linearly, after its peak; 0: it falls with"
        " 1 / sqrt(step) and has no end, as in the paper; auto: all steps",
        0,
        INT32_LIMIT,
        auto=True,
    )
    label_smoothing: float = training_flag(
        0.1, "share of the probability that all tokens get in the labels of the loss", 0.0, 1.0
    )
    consistency: float = training_flag(
        0.0,
        "R-Drop: weight of the divergence between the probabilities of two passes with other"
        " dropout; 0: one pass",
        0.0,
        3.4e38,
    )
    beta_2: float = training_flag(0.98, "Adam's decay of the squared gradients", 0.0, 1.0)
    epsilon: float = training_flag(1e-8, "Adam's epsilon", 0.0, 1.0)
    num_epochs: int = training_flag(
        20,
        "passes over the training text; auto: more for a small text",
        1,
        INT32_LIMIT,
        auto=True,
    )
    max_steps: int = training_flag(
        0,
        "end the training after this many steps if its epochs have more; 0: train all epochs",
        0,
        INT32_LIMIT,
    )
    minutes: float = training_flag(
        0.0,
        "end the training this many minutes after the start of train.py, in place of num_epochs and"
        " max_steps: the number of steps is planned from their speed. The last evaluation comes on"
        " top; 0: train all epochs",
        0.0,
        1e6,
    )
    dev_steps: int = training_flag(
        0,
        "also evaluate on the development set every this many steps, and save a checkpoint; 0: only"
        " at the end of each epoch",
        0,
        INT32_LIMIT,
        needs=HAS_DEV_SET,
        remedy="Give both, or leave it out",
    )
    patience: int = training_flag(
        0,
        "stop after this many evaluations without a better dev score; 0: train to the end",
        0,
        INT32_LIMIT,
        needs=HAS_DEV_SET,
        remedy="Give both, or leave it out",
    )
    metric: str = training_flag(
        "bleu",
        "score of the development set that patience and the best checkpoint follow",
        choices=("bleu", "chrf"),
        needs=HAS_DEV_SET,
        remedy="Give both, or leave it out",
    )
    precision: str = training_flag(
        "float32",
        "compute type; parameters, reductions and the loss stay in float32",
        choices=("float32", "bfloat16"),
    )
    keep_checkpoints: int = training_flag(
        5,
        "checkpoints of the ends of epochs, and of dev_steps, to keep in addition to the best one",
        1,
        INT32_LIMIT,
    )
    save_steps: int = training_flag(
        1000,
        "also save a checkpoint every this many steps; 0: only at the end of each epoch",
        0,
        INT32_LIMIT,
    )
    deterministic: bool = training_flag(
        False, "fixed order of all sums: two runs give bit-identical parameters"
    )
    seed: int = training_flag(
        0,
        "seed of the initial parameters, dropout, the order of the data and random translations",
        0,
        INT32_LIMIT,
        fixed="epoch",
    )

    # decoding
    beam: int = decoding_flag(1, "hypotheses in beam search; 1: greedy search", 1, 1001)
    length_penalty: str = decoding_flag(
        "paper",
        "divisor of a hypothesis' log-probability: ((5 + length) / 6)**alpha, or length**alpha",
        choices=("paper", "ctranslate2"),
    )
    alpha: float = decoding_flag(
        0.6,
        "exponent of the length penalty; auto, in train.py: the value with the best dev score,"
        " chosen after the last epoch",
        0.0,
        100.0,
        auto=True,
    )
    temperature: float = decoding_flag(
        0.0,
        "draw random translations: divisor of the logits, 1 for the model's probabilities; 0:"
        " search for the best translation",
        0.0,
        1000.0,
        needs=dict(beam=1, temperature=NOT_TOO_LOW),
        remedy="Draw translations with --beam 1, or search for the best one with 0",
    )
    top_k: int = decoding_flag(
        0,
        "draw each token from this many most likely ones; 0: from all",
        0,
        INT32_LIMIT,
        needs=dict(temperature=above(0)),
        remedy="Leave it out, or add --temperature 1",
    )
    max_output_ratio: float = decoding_flag(
        2.0,
        "a translation has at most this many tokens per token of its source, in steps of 0.1, plus"
        " max_output_extra; without this flag, train.py raises it if the training text needs more",
        0.1,
        1000.0,
    )
    max_output_extra: int = decoding_flag(
        10,
        "see max_output_ratio, which has no effect with positions that end at maxlen",
        1,
        INT32_LIMIT // 2,
    )
    suppress_unknown: bool = decoding_flag(
        False,
        "never choose <UNK>, which a model learns from characters that its vocabulary lacks",
    )
    no_repeat_ngram: int = decoding_flag(
        0, "never repeat so many tokens in sequence; 0: allow repetitions", 0, 1001
    )
    average_checkpoints: int = checkpoint_flag(
        1,
        "use the mean of this many newest checkpoints, as far as they belong to the last quarter of"
        " the training",
        1,
        INT32_LIMIT,
    )
    best: bool = checkpoint_flag(False, "use only the checkpoint with the best dev score")

    # These two are not flags.
    # The flags that were given, by their names.
    given: dict = dataclasses.field(default_factory=dict, compare=False, repr=False)
    # Of a trained model: the fingerprints of its vocabularies by their names.
    vocab_sha256: dict = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self):
        super().__post_init__()
        if self.given.get("best") and self.given.get("average_checkpoints", 1) > 1:
            raise InputError("best uses one checkpoint. Leave out --average_checkpoints")
        self.form_shares  # noqa: B018  raises the error of an invalid value
        if self.source_lang == self.target_lang and not self.has_one_vocab:
            raise InputError(
                f"source_lang and target_lang are both {self.source_lang}, and one vocabulary file"
                " would overwrite the other. Give each side its own name"
            )

    def fixed(self, kind) -> dict:
        """The values of the fields with fixed="model", or with fixed="epoch"."""
        fields = (field for field in self.declared() if field.metadata["fixed"] == kind)
        return {field.name: getattr(self, field.name) for field in fields}

    @property
    def used_length_penalty(self) -> str:
        """The length penalty of beam search; none with greedy search."""
        return self.length_penalty if self.beam > 1 else NONE

    @property
    def has_one_vocab(self) -> bool:
        """Whether both languages have the same subwords."""
        return self.tokenizer == "bpe" and self.joint_vocab

    @property
    def reads_source_apart(self) -> bool:
        """Whether one vocabulary of subwords has a sentencepiece model for sources alone."""
        return self.fold_case or "bpe.source" in self.vocab_sha256

    @property
    def symbol_list(self) -> list[str]:
        """The words in `symbols`, composed as those of the text are."""
        symbols = unicodedata.normalize("NFC", self.symbols)
        return [] if symbols == NONE else symbols.split(",")

    @property
    def form_shares(self) -> dict[str, float]:
        """The share of the training pairs in each form of `augment`."""
        if self.augment == NONE:
            return {}
        shares = {}
        for part in self.augment.split(","):
            name, _, share = part.partition("=")
            problem = ""
            if name not in FORMS:
                problem = f"{name!r} is not a form. The forms are {', '.join(FORMS)}"
            elif name in shares:
                problem = f"{name} is there twice"
            elif not re.fullmatch(r"[0-9]*\.?[0-9]+", share) or float(share) > 1:
                problem = f"{share!r} is not a share, a number from 0 to 1"
            if problem:
                raise InputError(
                    f"augment {self.augment}: {problem}. Write, for example, upper=0.05,lower=0.05"
                )
            shares[name] = float(share)
        if sum(shares.values()) > 1:
            raise InputError(
                f"augment {self.augment}: the sum of the shares is above 1. Lower them"
            )
        return shares

    @property
    def changes_text(self) -> bool:
        """Whether the tokens of a training pair differ between epochs."""
        return self.bpe_dropout > 0 or self.augment != NONE

    def max_output_tokens(self, source_tokens):
        """Tokens of a translation at most, `</S>` included.

        Args:
          source_tokens: tokens of the source, `</S>` included; an int, array or tensor. The
            result is of the same type and shape.
        """
        if not self.unbounded_length:
            return 0 * source_tokens + self.maxlen
        return round(10 * self.max_output_ratio) * source_tokens // 10 + self.max_output_extra

    def describe_output_limit(self) -> str:
        """Describe `max_output_tokens` for messages."""
        if not self.unbounded_length:
            return f"maxlen, {self.maxlen} tokens"
        return describe_limit(self.max_output_ratio, self.max_output_extra)

    @property
    def peak_lr(self) -> float:
        """The highest learning rate."""
        return self.lr or (self.hidden_units * max(1, self.warmup_steps)) ** -0.5

    @property
    def path(self) -> Path:
        """The file in `logdir` that holds these hyperparameters."""
        return hparams_path(self.logdir)

    @property
    def id_folder(self) -> Path:
        """The folder for the token ids of a large training text."""
        return Path(self.preprocessed) / "train_ids"

    @staticmethod
    def saved_in(logdir) -> dict:
        """The fields of the model in `logdir`; empty if there is none."""
        try:
            return read_hparams(logdir).as_dict()
        except InputError:
            return {}

    @staticmethod
    def describe_recipes() -> str:
        """List the fields in which each recipe differs from the defaults."""
        lines = ["The defaults are those of the recipe legacy. The other recipes set:"]
        for recipe, fields in RECIPES.items():
            if fields:
                lines += ["", f"{recipe}: " + ", ".join(f"{k} {v}" for k, v in fields.items())]
        return "\n".join(lines)


SEARCH_FLAGS = tuple(
    field.name for field in Hyperparams.declared() if field.metadata["group"] == "decoding"
)


def describe_limit(ratio, extra) -> str:
    """Describe a limit of the tokens in a translation.

    >>> describe_limit(2.0, 10)
    '2 * source tokens + 10'
    """
    return f"{ratio:g} * source tokens + {extra}"


# Choosing ----------------------------------------------------------------------


def make_hparams(flags, other=None) -> Hyperparams:
    """The hyperparameters of a new training: the flags that are given, completed by their recipe.

    Args:
      flags: dict, those of the command line.
      other: Hyperparams of the model that the training starts from; None for random parameters.
    """
    kept = fields_to_keep(other, flags) if other else {}
    settled = settle_flags(flags)
    if settled.get("alpha") == AUTO:  # until train.py has chosen it, that of the recipe
        del settled["alpha"]
    of_recipe = RECIPES.get(kept.get("recipe", flags.get("recipe")), {})
    hp = Hyperparams(**of_recipe | settled | kept, given=flags)
    hp.check_effects(flags, hp)
    return hp


def settle_flags(flags) -> dict:
    """Add what some flags imply for others.

    `batch_size` alone switches `batch_tokens` off. `average_checkpoints` replaces `best`, which a
    model may have saved. `sinusoid` is a name of 2017 for one of the `positions`.
    """
    implied = {}
    if flags.get("sinusoid") and "positions" not in flags:
        implied["positions"] = "sinusoid"
    if "batch_size" in flags and flags.get("batch_tokens"):
        raise InputError("batch_size and batch_tokens both set the size of a batch. Give only one")
    if "batch_size" in flags:
        implied["batch_tokens"] = 0
    for name in ("num_epochs", "max_steps"):
        if flags.get("minutes") and name in flags:
            raise InputError(f"minutes and {name} both set the end of a training. Give only one")
    if "average_checkpoints" in flags:
        implied["best"] = flags.get("best", False)
    return flags | implied


def fields_to_keep(other, given) -> dict:
    """The fields that a training keeps from the model that it starts from: fixed="model".

    The flags may change the dropout, which has no parameters, and the optimizer. They may change
    the languages if these have one vocabulary: the model may translate between several.

    Args:
      other: Hyperparams of that model.
      given: dict, the flags that were given.
    """
    may_change = {"optimizer", "dropout_rate", "attention_dropout", "ffn_dropout", "word_dropout"}
    if other.has_one_vocab:
        may_change |= {"source_lang", "target_lang"}
    may_change &= given.keys()
    kept = {name: value for name, value in other.fixed("model").items() if name not in may_change}
    check_matches(other.logdir, kept, given, "Leave the flag out")
    return kept


def check_matches(path, fixed, given, remedy):
    """Raise InputError if a flag contradicts a trained model.

    Args:
      path: of the model, for the message.
      fixed: dict, what the model was trained with.
      given: dict, the flags that were given.
      remedy: ends the message.
    """
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise InputError(
                f"{path}: this model was trained with --{name} {value}, not {given[name]}. {remedy}"
            )


def choose_vocab_size(characters) -> int:
    """The number of subwords for a text, if `vocab_size` is `AUTO`.

    Args:
      characters: of both sides of the training text together, without spaces.

    >>> [choose_vocab_size(n) for n in (1_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)]
    [63, 486, 1000, 1933, 3981, 7696]
    """
    return min(8000, round(characters**0.6))


def choose_schedule(hp, steps_per_epoch=0) -> dict[str, int]:
    """Choose numbers for `num_epochs`, `warmup_steps` and `decay_steps`, where they are `AUTO`.

    An epoch of a small text has few steps, and a model needs some thousands to learn
    anything. The fewer steps per epoch, the more epochs; with `max_steps`, as many as these
    need. The learning rate rises for a tenth of all steps. docs/development.md has results.

    Args:
      steps_per_epoch: batches in the first epoch; not needed with `minutes`.

    >>> hp = make_hparams(dict(recipe="tiny"))
    >>> for steps in (6, 110, 318):
    ...     print(choose_schedule(hp, steps))
    {'num_epochs': 96, 'warmup_steps': 57, 'decay_steps': 576}
    {'num_epochs': 30, 'warmup_steps': 330, 'decay_steps': 3300}
    {'num_epochs': 20, 'warmup_steps': 636, 'decay_steps': 6360}
    """
    num_epochs, warmup_steps, decay_steps = hp.num_epochs, hp.warmup_steps, hp.decay_steps
    if hp.minutes:  # the end is planned when the speed is known
        num_epochs, steps = NO_EPOCH_LIMIT, UNPLANNED_STEPS
    else:
        if num_epochs == AUTO and hp.max_steps:
            num_epochs = count_epochs(hp.max_steps, steps_per_epoch)
        elif num_epochs == AUTO:
            num_epochs = round(20 * max(1.0, ENOUGH_STEPS_PER_EPOCH / steps_per_epoch) ** 0.4)
        steps = count_steps(num_epochs, steps_per_epoch, hp.max_steps)
    if warmup_steps == AUTO:
        warmup_steps = min(1000, max(1, steps // 10))
    if decay_steps == AUTO:
        decay_steps = steps
    return dict(num_epochs=num_epochs, warmup_steps=warmup_steps, decay_steps=decay_steps)


def late_peak_note(warmup_steps, steps) -> str:
    """Return the note for a warm-up that is longer than the training."""
    return (
        f"The learning rate never reaches its peak: warmup_steps is {warmup_steps}, but the"
        f" training has {steps} steps. Train longer, or lower --warmup_steps"
    )


def count_epochs(max_steps, steps_per_epoch) -> int:
    """Count the epochs that `max_steps` steps need if each has one step less than the first.

    The number of batches differs between epochs; `max_steps` ends the training in any case.

    >>> count_epochs(1000, 10), count_epochs(7, 1)
    (112, 7)
    """
    return math.ceil(max_steps / max(1, steps_per_epoch - 1))


def count_steps(num_epochs, steps_per_epoch, max_steps) -> int:
    """Count the steps of a complete training. `max_steps` is 0 if there is no limit.

    >>> count_steps(2, 50, 0), count_steps(2, 50, 70)
    (100, 70)
    """
    steps = num_epochs * steps_per_epoch
    return min(steps, max_steps) if max_steps else steps


# Saving and loading ------------------------------------------------------------


def hparams_path(logdir) -> Path:
    """The file of a model's hyperparameters."""
    return Path(logdir) / "hparams.json"


def save_hparams(hp):
    """Write `hp` into `hp.logdir`.

    `logdir` is not saved, so that the folder can be moved.
    """
    saved = hp.as_dict() | {"vocab_sha256": hp.vocab_sha256}
    del saved["logdir"]
    atomic_write(hp.path, json.dumps(saved, indent=2) + "\n")


def read_hparams(logdir) -> Hyperparams:
    """Read what `save_hparams` wrote."""
    path = hparams_path(logdir)
    if not path.exists():
        raise InputError(
            f"{path}: missing. Copy it from the folder in which the model was trained. A model of"
            " the 2017 code, which has no such file, can be evaluated, but not trained"
        )
    try:
        saved = read_json(path)
        vocab_sha256 = dict(saved.pop("vocab_sha256"))
        # The file may come from someone else. It must choose neither `logdir` nor `given`.
        saved |= dict(logdir=str(logdir), given={}, vocab_sha256=vocab_sha256)
        hp = Hyperparams(**saved)
        for field in hp.declared():
            # Two vocabularies may have different sizes.
            two_sizes = field.name == "vocab_size" and not hp.joint_vocab
            if field.metadata["auto"] and getattr(hp, field.name) == AUTO and not two_sizes:
                raise InputError(f"{field.name} of a trained model is a number, not {AUTO}")
        if not vocab_sha256:
            raise InputError("vocab_sha256 is empty")
    except (InputError, *MALFORMED_JSON) as error:
        raise InputError(
            f"{path}: not hyperparameters of this project ({error}). Copy the file again from the"
            " folder in which the model was trained"
        ) from None
    return hp


def load_hparams(flags) -> Hyperparams:
    """The hyperparameters of the model in `logdir`, overridden by the flags of this call."""
    return override(read_hparams(flags.get("logdir", Hyperparams.logdir)), flags)


def override(saved, given) -> Hyperparams:
    """The hyperparameters of a trained model, overridden by the flags of this call.

    Args:
      saved: Hyperparams of the model.
      given: dict, the flags that were given.
    """
    # A value that the program has chosen stays.
    automatic = {field.name for field in saved.declared() if field.metadata["auto"]}
    fields = {name: v for name, v in given.items() if v != AUTO or name not in automatic}
    saved.check_effects(fields, saved)
    fixed = saved.fixed("model")
    check_matches(saved.path, fixed, fields, "Leave the flag out, or give a new --logdir")
    for part in ("dev", "test"):
        check_both_sides(saved, fields, part)
    fields = {name: v for name, v in settle_flags(fields).items() if name not in fixed}
    return dataclasses.replace(saved, **fields, given=given)


def check_same_batches(hp, saved):
    """Raise InputError if the flags would change the batches of an epoch that is not done.

    Args:
      saved: Hyperparams with which the epoch began.
    """
    remedy = "Leave the flag out until the epoch is done, or give a new --logdir"
    if "batch_size" in hp.given and saved.batch_tokens:
        raise InputError(
            f"{saved.path}: this model was trained with --batch_tokens {saved.batch_tokens}, not"
            f" with --batch_size. {remedy}"
        )
    check_matches(saved.path, saved.fixed("epoch"), hp.given, remedy)


def check_both_sides(saved, given, part):
    """Raise InputError if the flags change one side of a text, but do not name the other side.

    Args:
      saved: Hyperparams of a trained model.
      given: dict, the flags that were given.
      part: "dev" or "test".
    """
    sides = f"source_{part}", f"target_{part}"
    for name, other in (sides, sides[::-1]):
        if other not in given and given.get(name, getattr(saved, name)) != getattr(saved, name):
            raise InputError(
                f"{saved.path}: {name} {given[name]} does not belong to the saved {other},"
                f" {getattr(saved, other)}. Give both"
            )
