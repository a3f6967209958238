"""The Transformer of the 2017 code on a few pages, from text to BLEU.

    python mini.py

makes the built-in corpus, trains a small model on it, and prints translations and their BLEU, in
less than five minutes on two cores. The functions have the names, arguments and defaults of the
2017 code. Only `reuse` is left out, by which TensorFlow 1 used the same weights in two places.
The other files of this project compute the same numbers, but faster, for other models too, and
with checks of what users give them. Only `corpora/sample.py` is needed here: it makes the corpus.

The functions from `embedding` to `label_smoothing` build a graph, as in TensorFlow 1: they take
and return symbolic tensors, which have a shape and no numbers, and create the Keras layers that
hold the weights. `Graph` calls them once for each place in the model. Numbers flow through the
finished graph when its `keras.Model` is called. `scope` is the beginning of the weights' names.

A comment at the end of a line is the shape of the result:

    N  sentences in a batch     T  words in a sentence, with </S> and padding: `maxlen`
    C  hidden units             T_q, T_k  the T of the queries and of the keys
    h  attention heads          K, V  keys and values
"""

import glob
import os
import subprocess
import sys
from collections import Counter

import keras
import numpy as np
import regex
import tensorflow as tf
from keras import ops
from nltk.translate.bleu_score import corpus_bleu
from tqdm import tqdm

# Hyperparameters -----------------------------------------------------------------


class Hyperparams:
    """The 15 hyperparameters of the 2017 code. To change one, edit it here."""

    source_train = "corpora/train.tags.de-en.de"  # IWSLT 2016, German to English
    target_train = "corpora/train.tags.de-en.en"
    source_test = "corpora/IWSLT16.TED.tst2014.de-en.de.xml"
    target_test = "corpora/IWSLT16.TED.tst2014.de-en.en.xml"

    batch_size = 32  # N
    lr = 0.0001  # learning rate of Adam
    logdir = "logdir"  # folder of the trained weights

    maxlen = 10  # T; a pair with a longer side is left out
    min_cnt = 20  # a word that occurs less often becomes <UNK>
    hidden_units = 512  # C
    num_blocks = 6  # in the encoder, and as many in the decoder
    num_epochs = 20  # passes over the training text
    num_heads = 8  # h, a divisor of C
    dropout_rate = 0.1  # share of the units that become zero, at random, in training
    sinusoid = False  # whether positions are sines and cosines; if not, they are learned


class SampleHyperparams(Hyperparams):
    """What differs for the built-in corpus: a small model learns its simple sentences quickly."""

    source_train = "corpora/sample/train.tags.de-en.de"
    target_train = "corpora/sample/train.tags.de-en.en"
    source_test = "corpora/sample/IWSLT16.TED.tst2014.de-en.de.xml"
    target_test = "corpora/sample/IWSLT16.TED.tst2014.de-en.en.xml"
    batch_size = 64
    lr = 0.001
    logdir = "logdir/mini"
    maxlen = 15
    min_cnt = 2
    hidden_units = 128
    num_blocks = 2
    num_epochs = 6
    num_heads = 4


hp = Hyperparams  # what all functions read; the end of this file replaces it

# Vocabularies --------------------------------------------------------------------

PREPROCESSED = "preprocessed/mini"  # folder of the vocabularies
SPECIALS = ["<PAD>", "<UNK>", "<S>", "</S>"]  # padding, unknown word, begin and end of a sentence
PAD, UNK, BOS, EOS = range(4)  # their ids


def read(fpath):
    """Return the text of a file."""
    with open(fpath, encoding="utf-8", newline="\n") as fin:  # only a line feed ends a line
        return fin.read()


def clean(text):
    """Remove what is no white space, Latin letter or apostrophe.

    >>> clean("She isn't 26.").split()
    ['She', "isn't"]
    """
    return regex.sub(r"[^\s\p{Latin}']", "", text)


def make_vocab(fpath, fname):
    """Count the words of the text `fpath`. Write words and counts to `fname`, the highest first."""
    word2cnt = Counter(clean(read(fpath)).split())
    entries = [(word, 1_000_000_000) for word in SPECIALS]  # above any `min_cnt`
    entries += word2cnt.most_common()
    os.makedirs(PREPROCESSED, exist_ok=True)
    with open(f"{PREPROCESSED}/{fname}", "w", encoding="utf-8", newline="\n") as fout:
        fout.writelines(f"{word}\t{cnt}\n" for word, cnt in entries)


def load_vocab(fname):
    """Return word2idx and idx2word. The id of a word is the number of its line, from 0."""
    entries = [line.split("\t") for line in read(f"{PREPROCESSED}/{fname}").splitlines()]
    vocab = [word for word, cnt in entries if int(cnt) >= hp.min_cnt]
    return {word: idx for idx, word in enumerate(vocab)}, dict(enumerate(vocab))


def load_de_vocab():
    """Return de2idx and idx2de."""
    return load_vocab("de.vocab.tsv")


def load_en_vocab():
    """Return en2idx and idx2en."""
    return load_vocab("en.vocab.tsv")


# From text to batches ------------------------------------------------------------


def create_data(source_sents, target_sents):
    """Turn pairs of sentences into rows of ids. Leave out pairs with a side over `maxlen`.

    Returns X and Y, (pairs, T) each, and the sentences of their rows.
    """
    de2idx, _ = load_de_vocab()
    en2idx, _ = load_en_vocab()
    X, Y, Sources, Targets = [], [], [], []
    for source_sent, target_sent in zip(source_sents, target_sents):
        x = [de2idx.get(word, UNK) for word in f"{source_sent} </S>".split()]
        y = [en2idx.get(word, UNK) for word in f"{target_sent} </S>".split()]
        if max(len(x), len(y)) <= hp.maxlen:
            X.append(x + [PAD] * (hp.maxlen - len(x)))
            Y.append(y + [PAD] * (hp.maxlen - len(y)))
            Sources.append(source_sent)
            Targets.append(target_sent)
    return np.array(X, np.int32), np.array(Y, np.int32), Sources, Targets


def load_train_data():
    """Return X and Y of the training text. A line that begins with `<` is markup."""
    de_lines, en_lines = read(hp.source_train).split("\n"), read(hp.target_train).split("\n")
    de_sents = [clean(line) for line in de_lines if line and line[0] != "<"]
    en_sents = [clean(line) for line in en_lines if line and line[0] != "<"]
    X, Y, _, _ = create_data(de_sents, en_sents)
    return X, Y


def load_test_data():
    """Return X, Sources and Targets of the test set, XML with a sentence in each <seg>."""
    seg = "<seg[^>]*>(.*?)</seg>"
    de_sents = [clean(line).strip() for line in regex.findall(seg, read(hp.source_test))]
    en_sents = [clean(line).strip() for line in regex.findall(seg, read(hp.target_test))]
    X, _, Sources, Targets = create_data(de_sents, en_sents)
    return X, Sources, Targets


def get_batch_data():
    """Return the batches of an epoch: x and y, (num_batch, N, T) each, and num_batch.

    Each call shuffles the pairs again, and leaves out those that do not fill a batch.
    """
    X, Y = load_train_data()
    num_batch = len(X) // hp.batch_size
    order = np.random.permutation(len(X))[: num_batch * hp.batch_size]
    order = order.reshape(num_batch, hp.batch_size)  # a row for each batch
    return X[order], Y[order], num_batch


# The parts of the model ----------------------------------------------------------


def embedding(inputs, vocab_size, num_units, zero_pad=True, scale=True, scope="embedding"):
    """Look up a vector for each id: (N, T) -> (N, T, C)."""
    with keras.name_scope(scope):
        lookup_table = keras.layers.Embedding(vocab_size, num_units, "glorot_uniform")
        outputs = lookup_table(inputs)  # (N, T, C)
        if zero_pad:  # <PAD> gets the vector 0, by which `nonzero` recognizes it
            outputs *= ops.cast(ops.not_equal(inputs, PAD), "float32")[:, :, None]
        if scale:  # words get larger vectors than positions, which have no scale
            outputs *= num_units**0.5
        return outputs


def positional_encoding(inputs, num_units, zero_pad=True, scale=True, scope="positional_encoding"):
    """Encode positions as sines (even columns) and cosines (odd columns): (N, T) -> (N, T, C).

    Each column has its own frequency. In the paper, columns 2i and 2i + 1 share one.
    """
    with keras.name_scope(scope):
        pos = np.arange(inputs.shape[1])[:, None]  # (T, 1)
        i = np.arange(num_units)  # (C,)
        angles = pos / 10000 ** (2 * i / num_units)  # (T, C)
        lookup_table = np.where(i % 2 == 0, np.sin(angles), np.cos(angles))  # (T, C)
        if zero_pad:
            lookup_table[0] = 0
        if scale:
            lookup_table *= num_units**0.5
        position_ind = ops.zeros_like(inputs) + np.arange(inputs.shape[1])  # (N, T)
        return ops.take(lookup_table.astype("float32"), position_ind, axis=0)  # (N, T, C)


def nonzero(inputs):
    """Return 0 where a vector is all zeros, as for padding, else 1: (N, T, C) -> (N, T).

    The first `normalize` adds its weight beta to all vectors. After it, padding counts as words.
    """
    return ops.sign(ops.sum(ops.abs(inputs), axis=-1))


def multihead_attention(
    queries,
    keys,
    num_units=None,
    num_heads=8,
    dropout_rate=0,
    is_training=True,
    causality=False,
    scope="multihead_attention",
):
    """Add to each query a weighted mean of values: (N, T_q, C), (N, T_k, C) -> (N, T_q, C).

        normalize(queries + softmax(Q K^T / sqrt(C/h)) V)

    The softmax gives the weights. With `causality`, query i sees keys 0 to i only.
    """
    num_units = num_units or queries.shape[-1]
    masked = -(2.0**32) + 1  # a score that the softmax turns into the weight 0
    with keras.name_scope(scope):
        Q = keras.layers.Dense(num_units, "relu")(queries)  # (N, T_q, C)
        K = keras.layers.Dense(num_units, "relu")(keys)  # (N, T_k, C)
        V = keras.layers.Dense(num_units, "relu")(keys)  # (N, T_k, C)

        # Each head becomes a sentence of its own, so that one product computes all heads.
        Q_ = ops.concatenate(ops.split(Q, num_heads, axis=2), axis=0)  # (h*N, T_q, C/h)
        K_ = ops.concatenate(ops.split(K, num_heads, axis=2), axis=0)  # (h*N, T_k, C/h)
        V_ = ops.concatenate(ops.split(V, num_heads, axis=2), axis=0)  # (h*N, T_k, C/h)

        # Scores: how well a key fits a query.
        scores = ops.matmul(Q_, ops.transpose(K_, (0, 2, 1)))  # (h*N, T_q, T_k)
        scores /= K_.shape[-1] ** 0.5

        # Key masking: no query sees padding.
        key_masks = ops.tile(nonzero(keys), (num_heads, 1))[:, None, :]  # (h*N, 1, T_k)
        scores = ops.where(ops.equal(key_masks, 0), masked, scores)

        if causality:  # no query sees the words after it
            after = np.triu(np.ones(scores.shape[1:], bool), k=1)  # (T_q, T_k)
            scores = ops.where(after, masked, scores)

        # Query masking: queries that are padding get the weights 0.
        query_masks = ops.tile(nonzero(queries), (num_heads, 1))[:, :, None]  # (h*N, T_q, 1)
        weights = ops.softmax(scores) * query_masks  # (h*N, T_q, T_k); the sum over T_k is 1 or 0

        weights = keras.layers.Dropout(dropout_rate)(weights, training=is_training)
        outputs = ops.matmul(weights, V_)  # (h*N, T_q, C/h)
        outputs = ops.concatenate(ops.split(outputs, num_heads, axis=0), axis=2)  # (N, T_q, C)
        return normalize(outputs + queries)


def feedforward(inputs, num_units=[2048, 512], scope="multihead_attention"):  # noqa: B006
    """Change each position by itself, as a convolution of width 1 does: (N, T, C) -> (N, T, C)."""
    with keras.name_scope(scope):
        outputs = keras.layers.Conv1D(num_units[0], 1, activation="relu")(inputs)  # (N, T, 4*C)
        outputs = keras.layers.Conv1D(num_units[1], 1)(outputs)  # (N, T, C)
        return normalize(outputs + inputs)


def normalize(inputs, epsilon=1e-8, scope="ln"):
    """Bring each vector to mean 0 and variance 1: (N, T, C) -> (N, T, C).

        gamma * (inputs - mean) / sqrt(variance + epsilon) + beta

    gamma and beta, (C,) each, are weights, at first 1 and 0.
    """
    with keras.name_scope(scope):
        return keras.layers.LayerNormalization(epsilon=epsilon)(inputs)


def label_smoothing(inputs, epsilon=0.1):
    """Share `epsilon` of the probability among all K words: (N, T, K) -> (N, T, K).

    >>> label_smoothing(np.array([0.0, 1.0, 0.0, 0.0])).round(3).tolist()
    [0.025, 0.925, 0.025, 0.025]
    """
    K = inputs.shape[-1]
    return (1 - epsilon) * inputs + epsilon / K


# The model -----------------------------------------------------------------------


def embed(inputs, vocab_size, is_training, side):
    """Embed words and their positions: (N, T) -> (N, T, C). `side` is "enc" or "dec"."""
    outputs = embedding(inputs, vocab_size, hp.hidden_units, scope=f"{side}_embed")
    key_masks = nonzero(outputs)[:, :, None]  # (N, T, 1)
    options = dict(zero_pad=False, scale=False, scope=f"{side}_pe")
    if hp.sinusoid:
        outputs += positional_encoding(inputs, hp.hidden_units, **options)
    else:
        position_ind = ops.zeros_like(inputs) + np.arange(hp.maxlen)  # (N, T)
        outputs += embedding(position_ind, hp.maxlen, hp.hidden_units, **options)
    outputs *= key_masks  # the vectors of padding are 0 again
    return keras.layers.Dropout(hp.dropout_rate)(outputs, training=is_training)


class Graph:
    """The Transformer, from ids to loss. Attributes are symbolic tensors; `model` runs the graph.

    The decoder reads <S> and the target. At each position it predicts the next word of the target,
    and after the last one </S>.
    """

    def __init__(self, is_training=True):
        de2idx, _ = load_de_vocab()
        en2idx, _ = load_en_vocab()
        attention = dict(
            num_units=hp.hidden_units,
            num_heads=hp.num_heads,
            dropout_rate=hp.dropout_rate,
            is_training=is_training,
        )

        self.x = keras.Input((hp.maxlen,), dtype="int32")  # (N, T)
        self.y = keras.Input((hp.maxlen,), dtype="int32")  # (N, T)
        bos = ops.full_like(self.y[:, :1], BOS)  # (N, 1)
        self.decoder_inputs = ops.concatenate([bos, self.y[:, :-1]], axis=1)  # (N, T)

        with keras.name_scope("encoder"):
            enc = embed(self.x, len(de2idx), is_training, "enc")  # (N, T, C)
            for i in range(hp.num_blocks):
                with keras.name_scope(f"num_blocks_{i}"):
                    enc = multihead_attention(enc, enc, **attention)
                    enc = feedforward(enc, [4 * hp.hidden_units, hp.hidden_units])
        self.enc = enc  # (N, T, C)

        with keras.name_scope("decoder"):
            dec = embed(self.decoder_inputs, len(en2idx), is_training, "dec")  # (N, T, C)
            for i in range(hp.num_blocks):
                with keras.name_scope(f"num_blocks_{i}"):
                    dec = multihead_attention(
                        dec, dec, causality=True, scope="self_attention", **attention
                    )
                    dec = multihead_attention(dec, enc, scope="vanilla_attention", **attention)
                    dec = feedforward(dec, [4 * hp.hidden_units, hp.hidden_units])
        self.dec = dec  # (N, T, C)

        self.logits = keras.layers.Dense(len(en2idx))(dec)  # (N, T, vocab_size)
        self.preds = ops.argmax(self.logits, axis=-1)  # (N, T)

        # The loss is the cross entropy. Padding is no target.
        labels = ops.one_hot(self.y, len(en2idx))  # (N, T, vocab_size)
        self.y_smoothed = label_smoothing(labels)  # (N, T, vocab_size)
        self.loss = -ops.sum(self.y_smoothed * ops.log_softmax(self.logits), axis=-1)  # (N, T)
        self.istarget = ops.cast(ops.not_equal(self.y, PAD), "float32")  # (N, T)
        self.mean_loss = ops.sum(self.loss * self.istarget) / ops.sum(self.istarget)  # ()
        hits = ops.cast(ops.equal(self.preds, self.y), "float32")  # (N, T)
        self.acc = ops.sum(hits * self.istarget) / ops.sum(self.istarget)  # ()

        self.model = keras.Model([self.x, self.y], [self.preds, self.mean_loss, self.acc])


# Training and evaluation ---------------------------------------------------------


def train():
    """Train the model. Save its weights in `logdir` after each epoch."""
    g = Graph(is_training=True)
    weights = g.model.trainable_variables
    optimizer = keras.optimizers.Adam(hp.lr, beta_1=0.9, beta_2=0.98, epsilon=1e-8)

    @tf.function  # the first call compiles it, so that the others are faster
    def train_op(x, y):
        with tf.GradientTape() as tape:
            _, mean_loss, acc = g.model([x, y])
        gradients = tape.gradient(mean_loss, weights)
        # The gradient of an embedding has a row for each word of the batch. A word that comes
        # twice has two rows. Adam needs their sum, which this computes.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply(gradients, weights)
        return mean_loss, acc

    os.makedirs(hp.logdir, exist_ok=True)
    for epoch in range(1, hp.num_epochs + 1):
        x, y, num_batch = get_batch_data()
        if num_batch == 0:
            print(f"{hp.source_train}: no batch of {hp.batch_size} pairs. Lower batch_size.")
            sys.exit(2)
        for step in tqdm(range(num_batch), ncols=70, leave=False, unit="b"):
            mean_loss, acc = train_op(x[step], y[step])
        print(f"epoch {epoch}: mean_loss {mean_loss:.3f}, acc {acc:.3f}")  # of the last batch
        gs = epoch * num_batch  # global step
        g.model.save_weights(f"{hp.logdir}/model_epoch_{epoch:02d}_gs_{gs}.weights.h5")


def greedy(g, x):
    """Translate a batch: (N, T) -> (N, T). At each position, take the most likely word."""
    preds = np.zeros_like(x)  # (N, T)
    for j in range(hp.maxlen):
        # The decoder predicts word j from those before it, which are known by now.
        _preds, _, _ = g.model.predict_on_batch([x, preds])  # (N, T)
        preds[:, j] = _preds[:, j]
    return preds


def eval():
    """Translate the test set with the newest weights. Print, and write to a file, how well."""
    g = Graph(is_training=False)
    path = max(glob.glob(f"{hp.logdir}/*.weights.h5"), key=os.path.getmtime)
    g.model.load_weights(path)
    X, Sources, Targets = load_test_data()
    _, idx2en = load_en_vocab()

    entries, list_of_refs, hypotheses = [], [], []
    for i in range(len(X) // hp.batch_size):  # sentences that do not fill a batch are left out
        batch = slice(i * hp.batch_size, (i + 1) * hp.batch_size)
        for source, target, pred in zip(Sources[batch], Targets[batch], greedy(g, X[batch])):
            got = " ".join(idx2en[idx] for idx in pred).split("</S>")[0].strip()
            entries.append(f"- source: {source}\n- expected: {target}\n- got: {got}\n\n")
            ref, hypothesis = target.split(), got.split()
            if len(ref) > 3 and len(hypothesis) > 3:  # BLEU compares groups of up to 4 words
                list_of_refs.append([ref])  # a list, as a sentence may have several references
                hypotheses.append(hypothesis)
    score = 100 * corpus_bleu(list_of_refs, hypotheses) if hypotheses else 0.0
    last_line = f"Bleu Score = {score}"

    print("".join(entries[:5]) + last_line)
    os.makedirs("results/mini", exist_ok=True)
    name = os.path.basename(path).removesuffix(".weights.h5")
    with open(f"results/mini/{name}", "w", encoding="utf-8") as fout:
        fout.write("".join(entries) + last_line)


if __name__ == "__main__":
    # To train on IWSLT 2016, as the 2017 code does, delete the next four lines.
    hp = SampleHyperparams
    if not os.path.exists(hp.source_train):
        command = [sys.executable, "corpora/sample.py", "--output", "corpora/sample"]
        subprocess.run(command, check=True)
    make_vocab(hp.source_train, "de.vocab.tsv")
    make_vocab(hp.target_train, "en.vocab.tsv")
    train()
    eval()
