"""Write the model in logdir in a form that other programs run.

    python export.py --logdir logdir --output exported/1
    python export.py --logdir logdir --output exported/ctranslate2 --format ctranslate2

A TensorFlow SavedModel takes sentences and gives translations. Text is cut and put together
again within it, so that a program which loads it needs tensorflow and tensorflow-text alone.
What CTranslate2 loads takes pieces, and the sentencepiece model that makes them lies in it."""

import dataclasses
import shutil
import sys
from pathlib import Path

from hparams import InputError, Options, beside, make_folder, option, parse_flags, rename, run


@dataclasses.dataclass(frozen=True)
class Task(Options):
    """What is written, and where."""

    output: str = option("exported/1", "folder to write, which is not there yet")
    format: str = option("saved_model", "what it is", choices=("saved_model", "ctranslate2"))
    quantization: str = option(
        "float32", "of the matrices, with --format ctranslate2", choices=("float32", "int8")
    )

    def __post_init__(self):
        super().__post_init__()
        if self.quantization != "float32" and self.format != "ctranslate2":
            raise InputError(f"quantization {self.quantization} is for --format ctranslate2 alone")


if __name__ == "__main__":
    flags = parse_flags(__doc__, Task)  # before TensorFlow is loaded

import tensorflow as tf

import ctranslate
from decoding import describe, load, make_search, weights_of
from text import END, UNK, clean


def import_tensorflow_text():
    """The package tensorflow_text, which only a SavedModel of pieces needs.

    Raises:
      InputError: it is not installed, as on systems that it has no release for.
    """
    try:
        import tensorflow_text
    except ImportError as error:
        raise InputError(
            f"tensorflow-text cannot be imported ({error}). A SavedModel of this model needs it:"
            " `pip install tensorflow-text`, or use --format ctranslate2"
        ) from None
    return tensorflow_text


class PiecesOps(tf.Module):
    """`Pieces` as TensorFlow's operations: (N,) strings to ids (N, T), a RaggedTensor, and back.

    Args:
      vocab: Pieces.
    """

    def __init__(self, vocab):
        super().__init__()
        tf_text = import_tensorflow_text()
        self.tokenizer = tf_text.SentencepieceTokenizer(vocab.proto, tf.int32, add_eos=True)

    def encode(self, lines):
        """Sentences (N,) -> ids (N, T) with `</S>` at their ends."""
        return self.tokenizer.tokenize(lines)  # (N, T)

    def decode(self, ids):
        """Ids (N, T), a RaggedTensor without `</S>`."""
        return self.tokenizer.detokenize(ids)  # (N,)


class WordsOps(tf.Module):
    """`Words` of two languages in the same way.

    Args:
      source, target: Words.
    """

    def __init__(self, source, target):
        super().__init__()
        ids = tf.lookup.KeyValueTensorInitializer(
            [*source.word2idx], [*source.word2idx.values()], tf.string, tf.int32
        )
        self.ids = tf.lookup.StaticHashTable(ids, default_value=UNK)
        self.words = tf.constant([target.token(i) for i in range(len(target))])  # (V,)
        chars = "".join(map(chr, range(sys.maxunicode + 1)))
        self.kept = one_of(clean(chars))
        self.blank = one_of(filter(str.isspace, chars))

    def encode(self, lines):
        """Sentences (N,) -> ids (N, T) with `</S>` at their ends."""
        cleaned = tf.strings.regex_replace(lines, f"[^{self.kept}]", "")
        words = tf.strings.split(
            tf.strings.regex_replace(cleaned, f"[{self.blank}]", " ")
        )  # (N, T)
        ends = tf.fill([tf.size(lines), 1], END)
        return tf.concat([self.ids.lookup(words), ends], axis=1)  # (N, T + 1)

    def decode(self, ids):
        """Ids (N, T), a RaggedTensor without `</S>` -> sentences (N,)."""
        words = tf.ragged.map_flat_values(lambda flat: tf.gather(self.words, flat), ids)
        return tf.strings.reduce_join(words, axis=1, separator=" ")  # (N,)


def one_of(chars):
    """What stands between brackets for these characters in a regular expression of TensorFlow's.

    Those (RE2) know fewer blanks by `\\s` than Python, and fewer letters as Latin.
    """
    points = set(map(ord, chars))
    firsts = sorted(point for point in points if point - 1 not in points)
    lasts = sorted(point for point in points if point + 1 not in points)
    pairs = zip(firsts, lasts, strict=True)
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in pairs)


class StringModel(tf.Module):
    """A model from sentences to translations.

    Args:
      hp, model, vocabs: what `load` gave.
    """

    def __init__(self, hp, model, vocabs):
        super().__init__()
        self.hp = hp
        self.weights = [weight.value for weight in model.variables]
        self.ops = PiecesOps(vocabs[0]) if hp.tokens == "pieces" else WordsOps(*vocabs)
        self.search = make_search(model, hp, hp.beam, scored=True)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def translate(self, text):
        """Sentences (N,) -> their translations (N,), strings, and their scores (N,), float32.

        What has no words has the translation "" and the score 0.
        """
        ids = self.ops.encode(text)  # (N, T)
        ends = tf.fill([tf.size(text), 1], END)
        ids = tf.concat([ids[:, :-1][:, : self.hp.longest - 1], ends], axis=1)  # (N, T)
        filled = tf.where(ids.row_lengths() > 1)[:, 0]  # (M,) of N
        x = tf.gather(ids, filled).to_tensor(shape=[None, self.hp.width])  # (M, T)
        preds, scores = self.search(x)  # (M, 1, T), (M, 1)
        places, size = filled[:, None], tf.shape(text, tf.int64)
        return dict(
            translation=tf.tensor_scatter_nd_update(
                tf.fill(size, ""), places, self.ops.decode(before_ends(preds[:, 0]))
            ),
            score=tf.scatter_nd(places, scores[:, 0], size),
        )


def before_ends(preds):
    """Ids (N, T) up to the first `</S>` of each row, a RaggedTensor."""
    going = tf.cast(preds != END, tf.int32)  # (N, T)
    lengths = tf.reduce_sum(tf.math.cumprod(going, axis=1), axis=1)  # (N,)
    return tf.RaggedTensor.from_tensor(preds, lengths)


def write_saved_model(hp, model, vocabs, path):
    """Write the SavedModel with the one signature `serving_default`, `StringModel.translate`."""
    exported = StringModel(hp, model, vocabs)
    tf.saved_model.save(exported, str(path), signatures=dict(serving_default=exported.translate))


def main(flags):
    """Write the model; `flags` as `parse_flags` returns them.

    Raises:
      InputError: there is no model, it cannot be written so, or something is there already.
    """
    task, flags = Task.taken_from(flags)
    output = Path(task.output)
    if output.exists():
        raise InputError(f"{output}: is there already: delete it, or name another --output")
    paths, hp, model, vocabs = load(flags)
    make_folder(output.parent)
    written = beside(output)
    try:
        if task.format == "saved_model":
            write_saved_model(hp, model, vocabs, written)
            what = describe(hp, paths)
        else:
            ctranslate.write(hp, model, vocabs, written, task.quantization)
            what = f"{weights_of(paths)}, {task.quantization}"
        rename(written, output)
    finally:
        shutil.rmtree(written, ignore_errors=True)
    print(f"{output}: {what}")


if __name__ == "__main__":
    run(main, flags)
