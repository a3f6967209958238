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
import unicodedata
from functools import partial
from pathlib import Path

from choices import ACTIVATIONS, ATTENTION_SCORES, MODELS, NORMALIZATIONS, OPTIMIZERS, POSITIONS
from runtime.errors import InputError
from runtime.files import atomic_write
from runtime.flags import NONE, Flags, flag, split_paths

MIN_COVERAGE = 0.98  # of sentencepiece
MAX_INPUT_TOKENS = 1024  # tokens of a sentence that are read, if the model has no limit
INT32_LIMIT = 2**31  # exclusive; TensorFlow counts with 32 bits
WIDTH_LIMIT = 2**16 + 1  # exclusive; units of a layer
FLOAT32_LIMIT = 3.4e38

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
    schedule="paper",
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
    vocab_size=0,
    fold_case=True,
    dropout_on="sublayers",
    dropout_rate=0.2,
    batch_tokens=2048,
    schedule="linear",
    warmup_steps=0,
    num_epochs=0,
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
LOW_RESOURCE = TINY | dict(consistency=5.0, missing_mark=0.05)
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
model_flag = partial(flag, group="model", fixed=True)
text_flag = partial(data_flag, fixed=True)
path_flag = partial(data_flag, path=True)
recipe_field = partial(flag, group=None)  # no flag


@dataclasses.dataclass(frozen=True)
class ModelHparams(Flags):
    """The hyperparameters of a model itself. The defaults are those of the 2017 code."""

    model: str = model_flag(
        "transformer", "the Transformer, or a recurrent encoder-decoder", choices=MODELS
    )
    cell: str = model_flag("gru", "of a recurrent model", choices=("tanh", "gru", "lstm"))
    bidirectional: bool = model_flag(True, "a recurrent encoder reads in both directions")
    decoder_attention: bool = model_flag(True, "a recurrent decoder attends to the encoder")
    maxlen: int = model_flag(
        10, "T: tokens in a sentence, </S> included; longer training pairs are left out", 1, 4097
    )
    hidden_units: int = model_flag(512, "C: units of each layer", 1, WIDTH_LIMIT)
    ffn_units: int = model_flag(0, "inner units of a feed-forward layer; 0: 4 * C", 0, WIDTH_LIMIT)
    ffn_activation: str = model_flag(
        "relu", "function between both maps of a feed-forward layer", choices=ACTIVATIONS
    )
    num_blocks: int = model_flag(6, "blocks in the encoder", 1, 1001)
    decoder_blocks: int = model_flag(0, "blocks in the decoder; 0: as many", 0, 1001)
    num_heads: int = model_flag(8, "h: attention heads, a divisor of C", 1, WIDTH_LIMIT)
    positions: str = model_flag(
        "learned", "position encoding (docs/variants.md)", choices=POSITIONS
    )
    attention_score: str = model_flag(
        "scaled_dot", "attention function (docs/variants.md)", choices=ATTENTION_SCORES
    )
    relu_projections: bool = model_flag(
        True, "ReLU after the projections to Q, K and V, as in 2017"
    )
    output_projection: bool = model_flag(False, "project the joined heads by W_O, as in the paper")
    tied_embeddings: bool = model_flag(
        False, "one matrix for source embedding, target embedding and output layer"
    )
    pad_logit: bool = model_flag(
        False, "with tied embeddings: compute the logit of <PAD> from its row; else from zeros"
    )
    output_bias: bool = model_flag(
        False, "with tied embeddings: add a bias to the logits, as Marian does"
    )
    mask_from: str = model_flag(
        "activations",
        "activations: padding is where vectors are all zeros, as in 2017; ids: where the token is"
        " <PAD>; none: padding is not masked",
        choices=("activations", "ids", "none"),
    )
    causality: bool = model_flag(True, "in training, hide later tokens from the decoder")
    dropout_on: str = model_flag(
        "attention",
        "where dropout applies besides the embeddings: attention weights, outputs of sublayers",
        choices=("attention", "sublayers", "both"),
    )
    residual: bool = model_flag(True, "add the inputs of each sublayer to its outputs")
    normalization: str = model_flag(
        "post",
        "post: normalize after each residual addition, as in the paper; pre: normalize the inputs"
        " of each sublayer; none: no normalization",
        choices=NORMALIZATIONS,
    )
    dropout_rate: float = model_flag(0.1, "share of units dropped in training", 0.0, 1.0)
    attention_dropout: float = model_flag(
        0.0, "with dropout_on sublayers: share of attention weights dropped", 0.0, 1.0
    )
    ffn_dropout: float = model_flag(
        0.0, "share of the inner units of feed-forward layers dropped", 0.0, 1.0
    )

    def __post_init__(self):
        super().__post_init__()
        is_transformer, positions = self.model == "transformer", POSITIONS[self.positions]
        for broken, problem in (
            (
                is_transformer and self.hidden_units % self.num_heads,
                f"hidden_units {self.hidden_units} is not a multiple of num_heads {self.num_heads}",
            ),
            (
                is_transformer and positions.even and getattr(self, positions.even) % 2,
                f"{positions.even} must be even for positions {self.positions}",
            ),
            (
                not is_transformer and self.bidirectional and self.hidden_units % 2,
                "hidden_units must be even for two directions",
            ),
            (
                not is_transformer and not self.causality,
                "causality has an effect only with --model transformer. Leave it out",
            ),
            (
                not is_transformer and self.mask_from != "ids",
                "model rnn needs --mask_from ids. Choose the recipe rnn or rnn_attention",
            ),
            (
                positions.scaled_dot and self.attention_score != "scaled_dot",
                f"positions {self.positions} needs --attention_score scaled_dot. Choose absolute"
                " positions, for example sinusoid",
            ),
            (
                self.normalization == "pre" and self.mask_from == "activations",
                "normalization pre needs --mask_from ids: it changes the vectors of <PAD>",
            ),
            (
                self.attention_dropout and self.dropout_on != "sublayers",
                "attention_dropout needs --dropout_on sublayers. Otherwise dropout_rate applies",
            ),
            (
                self.output_bias and not self.tied_embeddings,
                "output_bias needs --tied_embeddings. Otherwise the output layer has a bias",
            ),
        ):
            if broken:
                raise InputError(problem)

    def model_fields(self) -> dict:
        """The fields of a model, without those of a run."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(ModelHparams)}

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

    A flag cannot change a `fixed` field of a trained model.
    """

    recipe: str = model_flag(
        "legacy",
        "preset for the flags you do not set: the 2017 code, the 2019 code, the paper, a model of"
        " 2 million parameters, one of 10 million for more text, the first one for little text, or"
        " a recurrent model without and with attention",
        choices=tuple(RECIPES),
    )
    sinusoid: bool = model_flag(
        False, "sinusoidal position encodings, as in 2017; the same as --positions sinusoid"
    )

    source_train: str = path_flag(
        "corpora/train.tags.de-en.de",
        "source side of the training text; if several files, with commas between their names",
    )
    target_train: str = path_flag("corpora/train.tags.de-en.en", "target side of the training text")
    source_dev: str = path_flag(
        NONE, "source side of the development set, which is translated after each epoch"
    )
    target_dev: str = path_flag(
        NONE, "its target side; several references with commas between them"
    )
    source_test: str = path_flag(
        "corpora/IWSLT16.TED.tst2014.de-en.de.xml", "source side of the test set"
    )
    target_test: str = path_flag(
        "corpora/IWSLT16.TED.tst2014.de-en.en.xml",
        "its target side; several references with commas between them",
    )
    source_lang: str = text_flag("de", "source language; also the name of its vocabulary file")
    target_lang: str = text_flag("en", "target language; also the name of its vocabulary file")
    preprocessed: str = data_flag(
        "preprocessed", "folder of the vocabularies that prepro.py writes"
    )
    logdir: str = data_flag(
        "logdir",
        "folder of the checkpoints and of TensorBoard's event files; to translate with several"
        " models together, their folders with commas between them",
    )
    results: str = data_flag("results", "folder of the translations that eval.py writes")
    tokenizer: str = text_flag(
        "words",
        "tokens of a sentence: words, as in 2017, or subwords of a byte-pair encoding",
        choices=("words", "bpe"),
    )
    min_cnt: int = text_flag(
        20, "words seen less often in the training text become <UNK>", 0, INT32_LIMIT
    )
    vocab_size: int = text_flag(
        32000, "subwords in a vocabulary; 0: chosen from the number of characters", 0, INT32_LIMIT
    )
    joint_vocab: bool = text_flag(
        True, "one vocabulary of subwords for both languages; if not, one per language"
    )
    fold_case: bool = text_flag(
        False,
        "with subwords: read sources without their case, so that the translation of capitals is"
        " that of small letters",
    )
    symbols: str = data_flag(
        NONE,
        "prepro.py: words that are always one subword, separated by commas, for example"
        " '>>de<<,>>fr<<'",
    )
    byte_fallback: bool = data_flag(
        False,
        "prepro.py: add 256 subwords for bytes, which spell characters that the training text"
        " has at most twice; without them, characters that it does not have are <UNK>",
    )
    character_coverage: float = data_flag(
        1.0,
        "prepro.py: share of the characters of the training text, counted with repetitions, that"
        " the vocabulary has; the rarest become <UNK>, or bytes with --byte_fallback",
        MIN_COVERAGE,
        1.0000001,
    )
    bpe_dropout: float = data_flag(
        0.0, "probability of skipping a merge when tokenizing training text", 0.0, 1.0
    )
    missing_mark: float = data_flag(
        0.0, "share of the training sources that lose their final mark", 0.0, 1.0
    )

    start_from: str = training_flag(
        NONE,
        "folder of a model from whose parameters and vocabularies a new training starts, also of a"
        " Marian model of Hugging Face; best and average_checkpoints choose its checkpoints, by"
        " default as saved with that model",
        path=True,
    )
    batch_size: int = training_flag(
        32,
        "N: sentence pairs in a batch, over all devices; without --batch_tokens it switches"
        " batch_tokens off",
        1,
        INT32_LIMIT,
    )
    batch_tokens: int = training_flag(
        0,
        "in place of batch_size: tokens of the longer side in a batch, over all devices; 0: off",
        0,
        INT32_LIMIT,
    )
    accumulate: int = training_flag(
        1,
        "batches per step: their gradients are summed before the parameters are updated",
        1,
        INT32_LIMIT,
    )
    clip_norm: float = training_flag(
        0.0,
        "limit of the gradient's norm, above which it is scaled down; 0: none",
        0,
        FLOAT32_LIMIT,
    )
    optimizer: str = training_flag(
        "adam",
        "adam; or muon, which makes the updates of matrices in blocks orthogonal",
        choices=OPTIMIZERS,
        fixed=True,
    )
    lr: float = training_flag(
        0.0001,
        "learning rate, or its peak; 0: (C * warmup_steps)**-0.5, as in the paper",
        0,
        FLOAT32_LIMIT,
    )
    schedule: str = training_flag(
        "constant",
        "of the learning rate: constant; paper: it rises, and falls with 1 / sqrt(step); linear: it"
        " falls in a straight line to the end of the training",
        choices=("constant", "paper", "linear"),
    )
    warmup_steps: int = training_flag(
        0, "steps up to the peak of the learning rate; 0: a tenth, at most 1000", 0, INT32_LIMIT
    )
    label_smoothing: float = training_flag(
        0.1, "share of the probability that all tokens get in the labels of the loss", 0.0, 1.0
    )
    consistency: float = training_flag(
        0.0,
        "R-Drop: weight of the divergence between the probabilities of two passes with other"
        " dropout; 0: one pass",
        0,
        FLOAT32_LIMIT,
    )
    beta_2: float = recipe_field(0.98, "Adam's decay of the squared gradients", 0.0, 1.0)
    epsilon: float = recipe_field(1e-8, "Adam's epsilon", 0.0, 1.0)
    num_epochs: int = training_flag(
        20, "passes over the training text; 0: more for a small text", 0, INT32_LIMIT
    )
    max_steps: int = training_flag(
        0, "end the training after so many steps; 0: after all epochs", 0, INT32_LIMIT
    )
    minutes: float = training_flag(
        0.0,
        "in place of num_epochs: end the training after so many minutes, counted over all runs; the"
        " last evaluation comes on top",
        0,
        1e6,
    )
    dev_steps: int = training_flag(
        0, "also evaluate on the development set, and save, every so many steps", 0, INT32_LIMIT
    )
    patience: int = training_flag(
        0,
        "stop after so many evaluations without a better dev score; 0: train to the end",
        0,
        INT32_LIMIT,
    )
    metric: str = training_flag(
        "bleu",
        "score of the development set that patience and the best checkpoint follow",
        choices=("bleu", "chrf"),
    )
    precision: str = training_flag(
        "float32",
        "compute type; parameters, reductions and the loss stay in float32",
        choices=("float32", "bfloat16"),
    )
    keep_checkpoints: int = training_flag(
        5, "newest ends of epochs, and of dev_steps, to keep beside the best one", 1, INT32_LIMIT
    )
    save_steps: int = training_flag(
        1000, "also save a checkpoint every so many steps; 0: do not", 0, INT32_LIMIT
    )
    deterministic: bool = training_flag(
        False, "fixed order of all sums: two runs give bit-identical parameters"
    )
    seed: int = training_flag(
        0,
        "of the initial parameters, dropout, the order of the data and random translations",
        0,
        INT32_LIMIT,
    )

    beam: int = decoding_flag(1, "hypotheses in beam search; 1: greedy search", 1, 1001)
    alpha: float = decoding_flag(0.6, "exponent of the length penalty", 0.0, 100.0)
    temperature: float = decoding_flag(
        0.0,
        "draw random translations: divisor of the logits, 1 for the model's probabilities; 0:"
        " search for the best translation",
        0.0,
        1000.0,
    )
    max_output_ratio: float = decoding_flag(
        2.0,
        "a translation has at most so many tokens per token of its source, in steps of 0.1, and 10"
        " more",
        0.1,
        1000.0,
    )
    no_repeat_ngram: int = decoding_flag(
        0, "never repeat so many tokens in sequence; 0: allow repetitions", 0, 1001
    )
    average_checkpoints: int = checkpoint_flag(
        1,
        "use the mean of so many newest checkpoints, as far as they belong to the last quarter of"
        " the training",
        1,
        INT32_LIMIT,
    )
    best: bool = checkpoint_flag(False, "use only the checkpoint with the best dev score")

    def __post_init__(self):
        super().__post_init__()
        with_subwords = ("joint_vocab", "fold_case", "symbols", "byte_fallback", "bpe_dropout")
        changed = [n for n in with_subwords if getattr(self, n) != getattr(Hyperparams, n)]
        has_dev, needs_dev = self.source_dev != NONE, self.patience or self.dev_steps
        for broken, problem in (
            (self.sinusoid and self.positions != "sinusoid", "sinusoid contradicts positions"),
            (changed and self.tokenizer != "bpe", f"{(changed or [''])[0]} needs --tokenizer bpe"),
            (
                not self.vocab_size and self.tokenizer != "bpe",
                "vocab_size 0 needs --tokenizer bpe. For words, use --min_cnt",
            ),
            (
                self.tied_embeddings and not self.has_one_vocab,
                "tied_embeddings needs one vocabulary of subwords. Add --no-tied_embeddings",
            ),
            (
                self.bpe_dropout and not self.unbounded_length,
                "bpe_dropout needs positions without an end, as of the recipe tiny",
            ),
            (
                has_dev != (self.target_dev != NONE),
                "give source_dev and target_dev, or neither of them",
            ),
            (needs_dev and not has_dev, "patience and dev_steps need --source_dev, --target_dev"),
            (
                self.temperature and (self.beam > 1 or self.temperature < 0.001),
                "temperature draws translations with --beam 1, and is 0 or at least 0.001",
            ),
            (self.minutes and self.max_steps, "give minutes or max_steps, only one of them"),
            (
                self.optimizer == "muon" and self.model != "transformer",
                "optimizer muon is for the Transformer. Use --optimizer adam",
            ),
            (
                self.best and self.average_checkpoints > 1,
                "best uses one checkpoint. Leave out --average_checkpoints",
            ),
            (
                {*"/\\"} & {*self.source_lang, *self.target_lang},
                "source_lang and target_lang are names of files, without a slash",
            ),
            (
                self.source_lang == self.target_lang and not self.has_one_vocab,
                "source_lang and target_lang must differ: each has its own vocabulary file",
            ),
        ):
            if broken:
                raise InputError(problem)

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
        """Tokens of a translation at most, `</S>` included.

        Args:
          source_tokens: tokens of the source, `</S>` included; an int, array or tensor. The
            result is of the same type and shape.
        """
        if not self.unbounded_length:
            return 0 * source_tokens + self.maxlen
        return round(10 * self.max_output_ratio) * source_tokens // 10 + 10

    @staticmethod
    def describe_recipes() -> str:
        """List the fields in which each recipe differs from the defaults."""
        lines = ["The defaults are those of the recipe legacy. The other recipes set:"]
        for recipe, fields in RECIPES.items():
            if fields:
                lines += ["", f"{recipe}: " + ", ".join(f"{k} {v}" for k, v in fields.items())]
        return "\n".join(lines)


FIELDS = {field.name: field for field in dataclasses.fields(Hyperparams)}
UNSAVED = ("logdir", "results", "preprocessed")  # the folder may be moved, or from someone else
# The flags of a script that reads a model. Those in the second line are for models of 2017.
READER_FLAGS = (
    *(name for name, field in FIELDS.items() if field.metadata["group"] == "decoding"),
    *("preprocessed", "source_lang", "target_lang", "num_heads", "maxlen", "min_cnt"),
    *("average_checkpoints", "best", "logdir", "precision", "seed"),
)

# Making, saving and loading ------------------------------------------------------


def make_hparams(given, other=None) -> Hyperparams:
    """The hyperparameters of a new training: the flags that are given, completed by their recipe.

    Args:
      given: dict, the flags of the command line.
      other: Hyperparams of the model that the training starts from. Its `fixed` fields stay, but
        for the dropout and the optimizer, and for the languages if they have one vocabulary.
    """
    kept = {}
    if other:
        free = {"dropout_rate", "attention_dropout", "ffn_dropout", "optimizer"}
        free |= {"source_lang", "target_lang"} if other.has_one_vocab else set()
        kept = {name: v for name, v in fixed_fields(other).items() if name not in free & {*given}}
        check_fixed(other.logdir, kept, given)
    of_recipe = RECIPES.get(kept.get("recipe", given.get("recipe")), {})
    return Hyperparams.of(of_recipe | add_implied(given) | kept)


def add_implied(given) -> dict:
    """Add what some flags imply for others; `sinusoid` is a name of 2017 for a position encoding.

    The newest of two flags counts that exclude each other: one of them may be saved with a model.
    """
    implied = {}
    if given.get("sinusoid"):
        implied["positions"] = "sinusoid"
    if "batch_size" in given:
        implied["batch_tokens"] = 0
    if "average_checkpoints" in given:
        implied["best"] = False
    if given.get("best"):
        implied["average_checkpoints"] = 1
    if given.get("minutes"):
        implied["max_steps"] = 0
    elif given.keys() & {"num_epochs", "max_steps"}:
        implied["minutes"] = 0.0
    if given.get("max_steps"):
        implied["num_epochs"] = 0  # without limit
    return implied | given


def fixed_fields(hp) -> dict:
    """The fields that a trained model depends on."""
    return {name: getattr(hp, name) for name, field in FIELDS.items() if field.metadata["fixed"]}


def check_fixed(path, fixed, given):
    """Raise InputError if a flag contradicts the fields of a trained model."""
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise InputError(
                f"{path}: this model was trained with --{name} {value}, not {given[name]}. Leave"
                " the flag out, or use a new --logdir"
            )


def choose_vocab_size(characters) -> int:
    """The number of subwords for a text, if `vocab_size` is 0.

    Args:
      characters: of both sides of the training text together, without spaces.

    >>> [choose_vocab_size(n) for n in (1_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)]
    [63, 486, 1000, 1933, 3981, 7696]
    """
    return min(8000, round(characters**0.6))


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
        raise InputError(
            f"{path}: not hyperparameters of this project ({error}). Copy the file again from the"
            " folder in which the model was trained"
        ) from None
    check_fixed(path, fixed_fields(saved), given)
    flags = {name: value for name, value in add_implied(given).items() if name in FIELDS}
    return dataclasses.replace(saved, **flags)


def check_saved_flags(given):
    """Raise InputError if the flags contradict the models in the folders that `logdir` names."""
    for folder in split_paths(given.get("logdir", Hyperparams.logdir)):
        if hparams_path(folder).exists():  # one of the 2017 code has none
            load_hparams(given | dict(logdir=folder))
