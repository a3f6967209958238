"""Write a TensorFlow SavedModel that takes sentences and returns translations.

It tokenizes with TensorFlow ops, so that it needs no Python code of this project.
"""

import re
import sys

import tensorflow as tf

from support.optional import import_optional
from text.ids import EOS, UNK
from text.lines import INVISIBLE, JOINERS, LOOSE_NON_JOINER, UNJOINED, clean
from translation.inference import make_search, truncate_at_eos_tf

# RE2 writes \u200b as \x{200b}.
INVISIBLE_RE2, JOINERS_RE2, LOOSE_RE2 = (
    re.sub(r"\\[ux](\w+)", r"\\x{\1}", pattern)
    for pattern in (INVISIBLE, JOINERS, LOOSE_NON_JOINER)
)


class TextOps(tf.Module):
    """A tokenizer of TensorFlow ops.

    A subclass has `encode`, from sentences (N,) to ids (N, T), a RaggedTensor with `</S>` at its
    ends, and `decode`, from ids without `</S>` to sentences.
    """

    def normalize(self, lines):
        """Normalize sentences (N,) as `text.normalize` does."""
        lines = tf.strings.regex_replace(lines, f"[{INVISIBLE_RE2}]+", "")
        joined = f"((?:^|[{UNJOINED}])\\pM*)[{JOINERS_RE2}]+"  # joiners that change nothing
        lines = tf.strings.regex_replace(lines, joined, r"\1")
        lines = tf.strings.regex_replace(lines, LOOSE_RE2, r"\1")
        return import_optional("tensorflow_text").normalize_utf8(lines, "NFC")  # (N,)


class SubwordOps(TextOps):
    """Tokenize as two `SubwordVocab`s, of source and target."""

    def __init__(self, source, target):
        super().__init__()
        make_tokenizer = import_optional("tensorflow_text").SentencepieceTokenizer
        # With names: a program that loads the model would give both tokenizers one resource.
        self.source = make_tokenizer(source.content, tf.int32, add_eos=True, name="source")
        self.target = make_tokenizer(target.content, name="target")

    def encode(self, lines):
        return self.source.tokenize(self.normalize(lines))

    def decode(self, ids):
        lines = tf.strings.regex_replace(self.target.detokenize(ids), "[\r\n]", " ")
        return self.normalize(lines)


class WordOps(TextOps):
    """Clean as `text.clean`, and tokenize as two `WordVocab`s, of source and target."""

    def __init__(self, source, target):
        super().__init__()
        words, ids = zip(*source.word2idx.items(), strict=True)
        ids = tf.lookup.KeyValueTensorInitializer(words, ids, tf.string, tf.int32)
        self.ids = tf.lookup.StaticHashTable(ids, default_value=UNK)
        self.words = tf.constant(target.tokens())  # (V,)
        all_chars = "".join(map(chr, range(sys.maxunicode + 1)))
        self.kept_chars = char_class(clean(all_chars))
        self.space_chars = char_class(filter(str.isspace, all_chars))

    def encode(self, lines):
        lines = self.normalize(lines)
        cleaned = tf.strings.regex_replace(lines, f"[^{self.kept_chars}]", "")
        spaced = tf.strings.regex_replace(cleaned, f"[{self.space_chars}]", " ")
        ids = self.ids.lookup(tf.strings.split(spaced))  # (N, T - 1)
        return tf.concat([ids, tf.fill([tf.size(lines), 1], EOS)], axis=1)

    def decode(self, ids):
        words = tf.ragged.map_flat_values(lambda flat: tf.gather(self.words, flat), ids)  # (N, T)
        return self.normalize(tf.strings.reduce_join(words, axis=1, separator=" "))


def char_class(chars) -> str:
    """Return an RE2 character class, without brackets, that matches exactly these characters.

    RE2's own classes are smaller than those of Python: `\\s` has fewer spaces, Latin fewer letters.
    """
    points = set(map(ord, chars))
    firsts = sorted(point for point in points if point - 1 not in points)
    lasts = sorted(point for point in points if point + 1 not in points)
    ranges = zip(firsts, lasts, strict=True)
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)


class TextModel(tf.Module):
    """A `LoadedModel` that takes sentences and returns translations."""

    def __init__(self, loaded):
        super().__init__()
        self.hp = hp = loaded.hp
        # The SavedModel contains only variables that an attribute of this module refers to.
        self.parameters = [variable.value for variable in loaded.model.variables]
        kind = WordOps if loaded.hp.tokenizer == "words" else SubwordOps
        self.ops = kind(*loaded.vocabs)
        self.search = make_search(loaded.model, hp, hp.beam, scored=True)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def translate(self, text):
        """Translate sentences (N,); one without tokens has the translation "" and the score 0."""
        ids = self.ops.encode(text)  # (N, T)
        nonempty = tf.where(ids.row_lengths() > 1)[:, 0]  # (M,) rows, M <= N
        eos = tf.fill([tf.size(text), 1], EOS)
        ids = tf.concat([ids[:, :-1][:, : self.hp.max_input_tokens - 1], eos], axis=1)  # (N, T)
        ids = tf.gather(ids, nonempty)  # (M, T)
        x = ids.to_tensor(shape=[None, self.hp.pad_to])  # (M, T)
        preds, scores = self.search(x)  # (M, 1, T), (M, 1)
        max_lengths = self.hp.max_output_tokens(tf.cast(ids.row_lengths(), tf.int32))  # (M,)
        texts = self.ops.decode(truncate_at_eos_tf(preds[:, 0], max_lengths))  # (M,)
        indices, size = nonempty[:, None], tf.shape(text, tf.int64)  # (M, 1), (1,)
        return dict(
            translation=tf.tensor_scatter_nd_update(tf.fill(size, ""), indices, texts),
            score=tf.scatter_nd(indices, scores[:, 0], size),
        )


def write(loaded, path):
    """Write a SavedModel whose one signature, `serving_default`, is `TextModel.translate`."""
    text_model = TextModel(loaded)
    tf.saved_model.save(text_model, path, signatures=dict(serving_default=text_model.translate))
